"""fairseq_mm: multimodal and long-form generation for fairseq (``--user-dir fairseq_mm``).

Importing the package where fairseq is imported, which is how ``--user-dir`` comes, registers its
tasks, models, criterions and optimizers. Elsewhere the import loads neither torch nor fairseq and
changes nothing; :func:`register` and :func:`from_pretrained` register.
"""

import sys
from collections.abc import Sequence
from os import PathLike
from typing import Any, Optional, Union

__version__ = "0.2.0"


def register() -> None:
    """Registers tasks, models, criterions and the like; calling it again changes nothing.

    Raises:
        ImportError: naming the remedy, if fairseq is missing or does not import.
    """
    from fairseq_mm import compat

    compat.apply()
    from fairseq_mm import criterions, models, optim, tasks  # noqa: F401


def from_pretrained(
    path: Union[str, PathLike, Sequence[Union[str, PathLike]]],
    *,
    weights: Optional[Union[str, PathLike]] = None,
    prompt_model: Optional[Union[str, PathLike, Sequence[Union[str, PathLike]]]] = None,
    embedding: Optional[Union[str, PathLike]] = None,
    data: Optional[Union[str, PathLike]] = None,
    device: Optional[str] = None,
) -> Any:
    """The generator of a checkpoint, or of an ensemble of several.

        model = fairseq_mm.from_pretrained("checkpoints/m_rnn", weights="mobilenet_v2.pt")
        model.generate("dog.jpg", beam=3)[0].text

    Args:
        path: checkpoint, or folder with ``checkpoint_best.pt`` or else ``checkpoint_last.pt``;
            several as a list or joined by the system's path separator are an ensemble, whose
            probabilities are averaged.
        weights: state dict file of the extractor of images or videos; found by its content if it
            lies in the folder of a checkpoint.
        prompt_model: language model, as ``path``, that generates prompts for a model of stories.
        embedding: checkpoint of the image-sentence embedding on whose vectors ``path`` was trained.
        data: data folder: of a model of fairseq's own that summarises transcripts, for its
            vocabulary; of a model that reads part-of-speech sequences (``sc_nlm``), for the
            training captions from which it takes them.
        device: ``cpu``, ``cuda``, ``cuda:1``; by default a GPU where there is one.

    Returns:
        A :class:`fairseq_mm.inference.generator.Generator`; of image-sentence embeddings
        (``vse_*``) a :class:`fairseq_mm.inference.embedder.Embedder`; of ``sc_nlm`` with
        ``embedding`` and ``data`` a
        :class:`fairseq_mm.inference.structured_captioner.StructuredCaptioner`.

    Raises:
        UserError: if a checkpoint cannot be loaded, two do not fit together, or an argument is of
            another kind of model.
    """
    from fairseq_mm.inference.checkpoint_files import checkpoint_files

    checkpoint_files(path)  # before torch and fairseq, whose import takes seconds
    register()
    from fairseq_mm import compat

    compat.activate()
    from fairseq_mm.inference import pretrained

    return pretrained.from_pretrained(
        path,
        weights=weights,
        prompt_model=prompt_model,
        embedding=embedding,
        data=data,
        device=device,
    )


# a program that uses fairseq already finds our names there; others wait for what they ask for
if sys.modules.get("fairseq") is not None:
    from fairseq_mm import compat

    register()
    if compat.is_user_dir():
        compat.check_hydra_recipe()
