"""fairseq_mm: multimodal and long-form generation for fairseq (``--user-dir fairseq_mm``).

If fairseq is already imported, as it is when fairseq's commands read ``--user-dir``, importing this
package registers its tasks, models, criterions and optimizers. Otherwise the import loads neither
torch nor fairseq; call :func:`register` or :func:`from_pretrained`.
"""

import sys
from typing import TYPE_CHECKING, Any, Literal, Optional, Union, overload

if TYPE_CHECKING:
    from fairseq_mm.inference.checkpoint_files import Path, Paths
    from fairseq_mm.inference.embedder import Embedder
    from fairseq_mm.inference.generator import Generator
    from fairseq_mm.inference.structured_captioner import StructuredCaptioner

__version__ = "0.3.0"


def register() -> None:
    """Register the tasks, models, criterions and optimizers of this package and of its plugins.

    Plugins are installed packages, see :mod:`fairseq_mm.compat.plugins`. A second call changes
    nothing.

    Raises:
        ImportError: if fairseq is missing or cannot be imported; the message says what to do.
    """
    from fairseq_mm import compat

    # first, because it says what to install if fairseq is missing
    compat.apply()
    from fairseq_mm import criterions, models, optim, tasks  # noqa: F401
    from fairseq_mm.compat.plugins import load_plugins

    load_plugins()


@overload
def from_pretrained(
    path: "Paths", *, kind: Literal["generator"], **options: Any
) -> "Generator": ...
@overload
def from_pretrained(path: "Paths", *, kind: Literal["embedder"], **options: Any) -> "Embedder": ...
@overload
def from_pretrained(
    path: "Paths", *, kind: Literal["captioner"], **options: Any
) -> "StructuredCaptioner": ...
@overload
def from_pretrained(
    path: "Paths", *, kind: None = None, **options: Any
) -> "Union[Generator, Embedder, StructuredCaptioner]": ...


def from_pretrained(  # type: ignore[misc]  # overloads name only what decides the type
    path: "Paths",
    *,
    weights: "Optional[Path]" = None,
    prompt_model: "Optional[Paths]" = None,
    embedding: "Optional[Path]" = None,
    data: "Optional[Path]" = None,
    device: Optional[str] = None,
    revision: Optional[str] = None,
    token: Optional[str] = None,
    kind: Optional[Literal["generator", "embedder", "captioner"]] = None,
) -> "Union[Generator, Embedder, StructuredCaptioner]":
    """Load the generator of a checkpoint, or of an ensemble of several checkpoints.

        model = fairseq_mm.from_pretrained("m_rnn", weights="mobilenet_v2.pt")
        model.generate("dog.jpg", beam=3)[0].text

    Args:
        path: Checkpoint, or folder with ``checkpoint_best.pt`` or else ``checkpoint_last.pt``, or
            model folder of ``fairseq-mm export``. If there is no such file or folder, the name of a
            model of the Hugging Face hub, ``OWNER/NAME`` or ``OWNER/NAME@REVISION``, which is
            downloaded to huggingface_hub's cache. For an ensemble, several checkpoints, as a list
            or joined by the system's path separator; the probabilities of the models are averaged.
        weights: State dict file of the image or video feature extractor (default: the file beside
            the checkpoint whose SHA-256 digest the checkpoint records).
        prompt_model: Checkpoint of a language model that generates prompts for a story model, in
            the same forms as ``path``.
        embedding: Checkpoint of the image-sentence embedding on whose vectors the model was
            trained.
        data: Data folder. fairseq's own models (such as BART) that summarise transcripts need it
            for the vocabulary; models that read part-of-speech sequences (``sc_nlm``) need it for
            the sequences of the training captions.
        device: ``cpu``, ``cuda``, ``cuda:1``; by default a GPU if there is one.
        revision: Branch, tag or commit of the hub's model ``path`` (default: the main branch).
        token: Access token for private models of the hub (default: the token that huggingface_hub
            finds).
        kind: Kind of the result: ``generator``, ``embedder`` or ``captioner`` (default: the kind
            that fits the checkpoint). With this argument, type checkers know the returned class.

    Returns:
        A :class:`fairseq_mm.inference.embedder.Embedder` for image-sentence embeddings (``vse_*``),
        a :class:`fairseq_mm.inference.structured_captioner.StructuredCaptioner` for ``sc_nlm`` with
        ``embedding`` and ``data``, else a :class:`fairseq_mm.inference.generator.Generator`.
    """
    from fairseq_mm.inference.checkpoint_files import checkpoint_files

    # a missing file is reported before torch and fairseq are imported, which takes seconds
    files = checkpoint_files(path, revision=revision, token=token)
    if prompt_model is not None:
        prompt_model = checkpoint_files(prompt_model, token=token)
    if embedding is not None:
        (embedding,) = checkpoint_files([embedding], token=token)
    from fairseq_mm.inference import set_up  # noqa: F401  (registers, so it comes first)
    from fairseq_mm.inference.checkpoint import Checkpoint
    from fairseq_mm.inference.pretrained import from_checkpoints

    return from_checkpoints(
        Checkpoint.open_all(files, data=data),
        weights=weights,
        prompt_model=prompt_model,
        embedding=embedding,
        data=data,
        device=device,
        kind=kind,
    )


# a program that has imported fairseq expects the names in its registries at once
if sys.modules.get("fairseq") is not None:
    from fairseq_mm import compat

    register()
    if compat.is_user_dir():
        compat.check_hydra_recipe()
