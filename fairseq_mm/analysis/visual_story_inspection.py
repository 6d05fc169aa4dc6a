"""What a model of visual stories attended to: weights of images or of slices for each word of a
story (Li et al. 2020, Transtory-XL, Figure 5), and which positions of an image's grid its
non-local block relates (Figure 4).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor

from fairseq_mm.data.visual_story_text import NUM_IMAGES, SEPARATOR
from fairseq_mm.errors import UserError
from fairseq_mm.inference.generator import Generator
from fairseq_mm.inference.processor import Example
from fairseq_mm.models._sentence_decoder import AllImageAttention
from fairseq_mm.retrieval.word_likelihood import word_log_probs

# Figure 4 draws so many arrows from a position
NUM_ARROWS = 5

_SHOWS = (
    "transtory_full has weights of the five images for each word, glac_decoder_attention of the "
    "slices of an image's vector, and glac_non_local similarities of the positions of a grid"
)


class Traces(NamedTuple):
    """What there is to see in a model.

    Attributes:
        images: each word has weights of the five images.
        slices: each word has weights of the slices of its image's vector.
        grid: a non-local block relates the positions of an image's grid.
    """

    images: bool
    slices: bool
    grid: bool


class VisualStoryInspection(NamedTuple):
    """One story of T words, the ends of its sentences included.

    Attributes:
        words: as they were given; the end of a sentence is ``<sent>``, that of the story ``</s>``.
        sentences: number of each word's sentence, hence of its image, from 0.
        is_known: whether the dictionary has them.
        log_probs: ``[T]`` natural.
        is_missing: ``[5]`` bool, images that are not there.
        image_weights: ``[T, 5]`` where the word is written, the heads' mean in the last layer;
            None where words see one image.
        slice_weights: ``[T, S]`` where the word is written; None where there is one slice.
        similarities: ``[5, R, R]`` f(x_i, x_j) of the non-local block; rows of zeros for images
            that are not there, and None without such a block.
    """

    words: list[str]
    sentences: list[int]
    is_known: list[bool]
    log_probs: np.ndarray
    is_missing: np.ndarray
    image_weights: Optional[np.ndarray]
    slice_weights: Optional[np.ndarray]
    similarities: Optional[np.ndarray]


def traces_of(generator: Generator) -> Traces:
    """
    Raises:
        UserError: if there are several models, or nothing to see in the one.
    """
    if len(generator.models) > 1:
        raise UserError(
            f"{', '.join(generator.files)}: give one model, not {len(generator.models)}."
        )
    (model,) = generator.models
    decoder = model.decoder
    layers: Sequence[Any] = getattr(decoder, "layers", ())
    traces = Traces(
        images=any(
            isinstance(getattr(layer, "pictures", None), AllImageAttention) for layer in layers
        ),
        slices=getattr(decoder, "slices", 1) > 1,
        grid=_non_local(model) is not None,
    )
    if not any(traces):
        raise UserError(f"{generator.files[0]}: attends to nothing that can be shown: {_SHOWS}.")
    return traces


def _non_local(model: Any) -> Any:
    return getattr(getattr(model.encoder, "pictures", None), "non_local", None)


@torch.no_grad()
def inspect_visual_story(
    generator: Generator, example: Example, sentences: Sequence[Sequence[str]]
) -> VisualStoryInspection:
    """
    Args:
        generator: of one model.
        example: the five images, of its processor.
        sentences: words of each of the five.

    Raises:
        UserError: if there is nothing to see in the model.
    """
    traces = traces_of(generator)
    (model,) = generator.models
    dictionary = generator.task.target_dictionary
    inputs = generator.processor.sample([example], [0])["net_input"]
    x, padding_mask = (inputs[name].to(generator.device) for name in ("features", "padding_mask"))
    words = [word for sentence in sentences for word in (*sentence, SEPARATOR)]
    words[-1] = dictionary.symbols[dictionary.eos()]
    target = torch.tensor([dictionary.index(word) for word in words], device=generator.device)
    previous = target.roll(1).unsqueeze(0)  # the end of the story is fairseq's start token, too
    encoder_out = model.encoder(features=x, padding_mask=padding_mask)
    hidden, extra = model.decoder.extract_features(previous, encoder_out)
    extra = extra or {}
    is_missing = padding_mask.view(NUM_IMAGES, -1).all(dim=1)
    similarities = None
    if traces.grid:
        grids, _ = model.encoder.pictures.grids(x, padding_mask)
        found = _non_local(model).similarities(grids[0])
        similarities = _array(found.masked_fill(is_missing[:, None, None], 0))
    return VisualStoryInspection(
        words=words,
        sentences=[k for k, sentence in enumerate(sentences) for _ in range(len(sentence) + 1)],
        is_known=(target != dictionary.unk()).tolist(),
        log_probs=_array(word_log_probs(model.decoder, hidden[0], target)),
        is_missing=is_missing.cpu().numpy(),
        image_weights=_array(extra["image_attention"][0]) if traces.images else None,
        slice_weights=_array(extra["slice_attention"][0]) if traces.slices else None,
        similarities=similarities,
    )


def _array(x: Tensor) -> np.ndarray:
    return x.double().cpu().numpy()


def most_varied(similarities: np.ndarray) -> int:
    """The position i whose similarities f(x_i, x_j) vary most, of ``[R, R]``."""
    return int(similarities.var(axis=1).argmax())


def top_positions(similarities: np.ndarray, position: int, count: int = NUM_ARROWS) -> list[int]:
    """The positions j of the greatest f(x_i, x_j), the greatest first; i may be among them.

    Args:
        similarities: ``[R, R]``.
        position: i.
        count: how many, or all where there are fewer.
    """
    return np.argsort(-similarities[position], kind="stable")[:count].tolist()


def grid_shape(num_rows: int, given: Optional[tuple[int, int]] = None) -> tuple[int, int]:
    """Rows and columns of a grid of so many positions: a square, unless another is given.

    Raises:
        UserError: if the given grid has not so many positions, or none is given and they are no
            square.
    """
    if given is not None:
        if given[0] * given[1] != num_rows:
            raise UserError(
                f"--grid {given[0]}x{given[1]}: has {given[0] * given[1]} positions, but the "
                f"features have {num_rows} an image."
            )
        return given
    side = math.isqrt(num_rows)
    if side * side != num_rows:
        raise UserError(
            f"the features have {num_rows} positions an image, which are no square: give rows and "
            "columns of the grid (--grid 6x8)."
        )
    return side, side
