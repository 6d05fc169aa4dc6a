"""Computes attention weights of models of visual stories (Li et al. 2020, Transtory-XL).

Each word of a story attends to the five images, or to the slices of an image: several vectors that
are computed from its feature vector (Figure 5 there). A non-local block computes the similarities
between the positions of an image's feature grid (Figure 4 there).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import torch

from fairseq_mm.analysis import rounded, to_array
from fairseq_mm.data.story_text import NUM_IMAGES, SEPARATOR
from fairseq_mm.errors import UserError
from fairseq_mm.inference.generator import Generator
from fairseq_mm.inference.processor import Example
from fairseq_mm.models._sentence_decoder import AllImageAttention
from fairseq_mm.retrieval.word_likelihood import word_log_probs

NUM_ARROWS = 5  # from one position, as in Figure 4

_SHOWS = (
    "transtory_full has weights of the five images for each word, glac_decoder_attention of the "
    "slices of an image's vector, and glac_non_local similarities of the positions of a grid"
)


class AttentionKinds(NamedTuple):
    """Kinds of attention of a model. Words attend to all five ``images`` or to the ``slices`` of
    one image; positions of an image's ``grid`` attend to each other (non-local block).
    """

    images: bool
    slices: bool
    grid: bool


class VisualStoryInspection(NamedTuple):
    """Attention and likelihood of one story of T words; the ends of sentences count as words."""

    words: list[str]  # words as written; sentences end with ``<sent>``, the story with ``</s>``
    sentences: list[int]  # [T] index of the word's sentence, and of its image, from 0
    is_known: list[bool]  # [T] True if the word is in the dictionary
    log_probs: np.ndarray  # [T] natural logarithms of the words' probabilities
    image_padding_mask: np.ndarray  # [5] bool, True for missing images
    # [T, 5] weights of the images when the word is generated, averaged over the heads of the last
    # layer; None if each word attends to one image only
    image_weights: Optional[np.ndarray]
    # [T, S] weights of the S slices of the word's image; None without slices
    slice_weights: Optional[np.ndarray]
    # [5, R, R] similarities f(x_i, x_j) of the R grid positions in the non-local block; zeros for
    # missing images; None without such a block
    similarities: Optional[np.ndarray]

    @property
    def grids(self) -> list[tuple[int, np.ndarray]]:
        """Pairs (index in the story, similarities), one for each image that is not missing."""
        if self.similarities is None:
            return []
        places = np.flatnonzero(~self.image_padding_mask).tolist()
        return [(place, self.similarities[place]) for place in places]

    def record(self, shape: Optional[tuple[int, int]] = None) -> dict[str, Any]:
        """Return the JSON record of the story, with an entry per word. If the ``shape`` of the
        grids is given, list for each image the positions most similar to the most varied
        position."""
        weights = {"image_weights": self.image_weights, "slice_weights": self.slice_weights}
        words = [
            {
                "word": word,
                "sentence": self.sentences[t] + 1,
                "known": self.is_known[t],
                "log_prob": rounded(self.log_probs[t]),
                **{name: rounded(x[t]) for name, x in weights.items() if x is not None},
            }
            for t, word in enumerate(self.words)
        ]
        if shape is None:
            return {"words": words}
        positions = []
        for place, similarities in self.grids:
            start = most_varied(similarities)
            top = [
                {"position": [*divmod(j, shape[1])], "similarity": rounded(similarities[start, j])}
                for j in top_positions(similarities, start)
            ]
            cell = {"grid": list(shape), "position": [*divmod(start, shape[1])]}
            positions.append({"image": place + 1, **cell, "top": top})
        return {"words": words, "positions": positions}


def get_attention_kinds(generator: Generator) -> AttentionKinds:
    """Return the kinds of attention of a generator's model."""
    (model,) = generator.models
    decoder = model.decoder
    layers: Sequence[Any] = getattr(decoder, "layers", ())
    # attributes are named as in released checkpoints, whose parameters have these names
    kinds = AttentionKinds(
        images=any(
            isinstance(getattr(layer, "pictures", None), AllImageAttention) for layer in layers
        ),
        slices=getattr(decoder, "slices", 1) > 1,
        grid=_non_local(model) is not None,
    )
    if not any(kinds):
        raise UserError(f"{generator.files[0]}: attends to nothing that can be shown: {_SHOWS}.")
    return kinds


def _non_local(model: Any) -> Any:
    return getattr(getattr(model.encoder, "pictures", None), "non_local", None)


@torch.no_grad()
def inspect_visual_story(
    generator: Generator, example: Example, sentences: Sequence[Sequence[str]]
) -> VisualStoryInspection:
    """Compute attention and likelihood at each word of a story, with one model.

    ``example`` has the five images, ``sentences`` the words of each of the five sentences.
    """
    kinds = get_attention_kinds(generator)
    (model,) = generator.models
    dictionary = generator.task.target_dictionary
    inputs = generator.processor.sample([example], [0])["net_input"]
    x, padding_mask = (inputs[name].to(generator.device) for name in ("features", "padding_mask"))
    words = [word for sentence in sentences for word in (*sentence, SEPARATOR)]
    # the last sentence ends the story: it has </s> in place of <sent>
    words[-1] = dictionary.symbols[dictionary.eos()]
    target = torch.tensor([dictionary.index(word) for word in words], device=generator.device)
    previous = target.roll(1).unsqueeze(0)  # the end of the story is fairseq's start token, too
    encoder_out = model.encoder(features=x, padding_mask=padding_mask)
    hidden, extra = model.decoder.extract_features(previous, encoder_out)
    extra = extra or {}
    image_padding_mask = padding_mask.view(NUM_IMAGES, -1).all(dim=1)
    similarities = None
    if kinds.grid:
        grids, _ = model.encoder.pictures.grids(x, padding_mask)
        values = _non_local(model).similarities(grids[0])
        similarities = to_array(values.masked_fill(image_padding_mask[:, None, None], 0))
    return VisualStoryInspection(
        words=words,
        sentences=[k for k, sentence in enumerate(sentences) for _ in range(len(sentence) + 1)],
        is_known=(target != dictionary.unk()).tolist(),
        log_probs=to_array(word_log_probs(model.decoder, hidden[0], target)),
        image_padding_mask=image_padding_mask.cpu().numpy(),
        image_weights=to_array(extra["image_attention"][0]) if kinds.images else None,
        slice_weights=to_array(extra["slice_attention"][0]) if kinds.slices else None,
        similarities=similarities,
    )


def most_varied(similarities: np.ndarray) -> int:
    """Return the row of ``similarities`` [R, R], f(x_i, x_j), that varies most."""
    return int(similarities.var(axis=1).argmax())


def top_positions(similarities: np.ndarray, position: int, count: int = NUM_ARROWS) -> list[int]:
    """Return the ``count`` positions j most similar to ``position`` i, which may be among them."""
    # stable: equal similarities keep the order of positions on every platform
    return np.argsort(-similarities[position], kind="stable")[:count].tolist()
