"""fairseq_mm: multimodal and long-form generation for fairseq (``--user-dir fairseq_mm``).

Importing the package registers its tasks, models, criterions and optimizers. fairseq itself
scans only ``tasks/`` and ``models/``, and nothing at all when the package was imported before,
so the imports stand here.
"""

import sys
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Optional, Union

from fairseq_mm import errors

__version__ = "0.1.0"


def register() -> None:
    """Registers tasks, models, criterions and the like; calling it again changes nothing.

    Raises:
        ImportError: naming the remedy, if fairseq is missing or does not import.
    """
    from fairseq_mm import compat

    compat.apply()
    from fairseq_mm import criterions, models, optim, tasks  # noqa: F401

    errors.report_on_exit()


def from_pretrained(
    path: Union[str, PathLike, Sequence[Union[str, PathLike]]],
    *,
    weights: Optional[Union[str, PathLike]] = None,
    prompt_model: Optional[Union[str, PathLike, Sequence[Union[str, PathLike]]]] = None,
    embedding: Optional[Union[str, PathLike]] = None,
    data: Optional[Union[str, PathLike]] = None,
    device: Optional[str] = None,
) -> Any:
    """What a checkpoint was trained for: a captioner of images, a teller of stories, of
    prompts or of five images, or a summariser of videos.

    Args:
        path: checkpoint, or folder with ``checkpoint_best.pt`` or else ``checkpoint_last.pt``;
            several as a list or joined by the system's path separator are an ensemble.
        weights: of the extractor of images or videos, see
            :func:`.from_pretrained`.
        prompt_model: language model, as ``path``, that makes up prompts for a model of their
            stories.
        embedding: checkpoint of the embedding model on whose vectors a captioner was trained, see
            :func:`.from_pretrained`.
        data: data folder: of a model of fairseq's own that summarises transcripts, see
            :func:`.from_pretrained`; of a captioner by structures, see
            :func:`.load_structured_captioner`.
        device: ``cpu``, ``cuda``, ``cuda:1``; by default a GPU where there is one.

    Returns:
        a :class:`.Captioner`, a
        :class:`.StructuredCaptioner`, a
        :class:`.VisualStoryteller`, a
        :class:`.Storyteller` or a
        :class:`.VideoSummarizer`.

    Raises:
        UserError: if a checkpoint cannot be loaded, two do not fit together, or an argument is
            of the other kind.
    """
    register()
    from fairseq_mm.inference import captioner, storyteller, text_models, visual_storyteller

    states = text_models.load_states(path)
    first = next(iter(states.values()))
    weights = None if weights is None else fspath(weights)
    if embedding is not None and text_models.right_command(first) != "caption":
        raise errors.UserError("`embedding` is for models that caption, but `path` is none.")
    if text_models.summarizes_videos(first):
        from fairseq_mm.inference import video_summarizer

        if prompt_model is not None:
            raise errors.UserError(
                "`prompt_model` is for models that tell stories of prompts, but `path` summarises "
                "videos."
            )
        return video_summarizer.from_pretrained(
            path,
            weights=weights,
            data=None if data is None else fspath(data),
            device=device,
            states=states,
        )
    if data is not None and not text_models.reads_structures(first):
        raise errors.UserError(
            "`data` is for models of fairseq's own that summarise transcripts and for captioners "
            "by structures, but `path` is none."
        )
    if text_models.describes_images(first):
        tells = text_models.tells_visual_stories(first)
        if prompt_model is not None:
            raise errors.UserError(
                "`prompt_model` is for models that tell stories of prompts, but `path` "
                f"{'tells them of images' if tells else 'is a captioner'}."
            )
        if tells:
            return visual_storyteller.from_pretrained(
                path, weights=weights, device=device, states=states
            )
        if embedding is not None and data is not None:
            from fairseq_mm.inference import structured_loading

            return structured_loading.load_structured_captioner(
                path, embedding=embedding, data=data, weights=weights, device=device, states=states
            )
        return captioner.from_pretrained(
            path, weights=weights, device=device, embedding=embedding, states=states
        )
    if weights is not None:
        raise errors.UserError(
            "`weights` is for models of images or videos, but `path` is one of text."
        )
    models = text_models.load_text_models(path, device=device, states=states)
    prompt_models = None
    if prompt_model is not None:
        prompt_models = text_models.load_text_models(prompt_model, device=device)
    return storyteller.Storyteller(models, prompt_models)


# The `fairseq-mm` command registers only where it builds a model.
if Path(sys.argv[0] if sys.argv else "").stem != "fairseq-mm":
    register()
