"""Texts of a split and the models that score them, for ``fairseq-mm rank`` and ``perplexity``."""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
from fairseq import checkpoint_utils

from fairseq_mm.data.binarised_text import load_dictionary
from fairseq_mm.data.feature_store import open_folder_features
from fairseq_mm.data.multimodal_dataset import MultimodalDataset
from fairseq_mm.data.record_split import PROMPTS
from fairseq_mm.data.records import open_split
from fairseq_mm.data.story_text import SEPARATOR
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import Checkpoint, build_models, usable_device
from fairseq_mm.metrics.condition_ranking import (
    candidate_ranks,
    draw_credits,
    rank_albums,
    rank_prompts,
)
from fairseq_mm.metrics.result_card import result_card
from fairseq_mm.models._provenance import list_words
from fairseq_mm.retrieval.text_likelihood import (
    TextLikelihood,
    encode_prompt,
    encode_text,
    max_words,
    prompt_likelihood,
)

# number of tokens of texts in a batch, padding included; 32000 on other devices
BATCH_TOKENS = {"cpu": 4000}


def sample_lines(total: int, wanted: Optional[int], seed: int) -> list[int]:
    """Return ``wanted`` (None for all) random line numbers below ``total``, in ascending order; a
    larger sample with the same seed contains a smaller one."""
    if wanted is None or wanted >= total:
        return list(range(total))
    # rng.choice would give a larger sample other lines; a permutation's beginning is shared.
    return sorted(np.random.default_rng(seed).permutation(total)[:wanted].tolist())


def build_card(
    args: argparse.Namespace, files: Mapping[str, Any], options: Sequence[str], device: Any
) -> dict[str, Any]:
    """Return the description of a run for its JSON result: command, options, hashes, versions.

    ``files`` are the paths of the hashed files by label, ``options`` further recorded options.
    """
    card = result_card(files)
    values = {name: getattr(args, name) for name in ("split", "seed", *options)}
    card["options"] = {**values, "precision": args.precision, "device": str(device)}
    return card


def name_output(files: Sequence[str], split: str) -> str:
    """Return the default output folder, ``CHECKPOINT.rank-SPLIT``; ``+N`` for N more files."""
    others = f"+{len(files) - 1}" if len(files) > 1 else ""
    return f"{os.path.splitext(files[0])[0]}{others}.rank-{split}"


def load_on_data(
    checkpoints: Sequence[Checkpoint], args: argparse.Namespace
) -> tuple[list[Any], Any]:
    """Load models of captions or summaries, in evaluation mode and float32, and their task with the
    split ``args.split`` of the data folder ``args.data``."""
    device = usable_device(args.device)
    for checkpoint in checkpoints:
        if checkpoint.has_provenance and checkpoint.feature_dim:  # else the model reads only text
            checkpoint.check_features(open_folder_features(args.data, args.features))
    # No text is generated, so no references are read; every line is scored.
    overrides = {"data": args.data, "features": args.features, "eval_gen": False}
    if checkpoint.kind != "summaries":  # its task has no such option
        overrides["one_per_item"] = False
    files = [checkpoint.path for checkpoint in checkpoints]
    try:
        models, _, task = checkpoint_utils.load_model_ensemble_and_task(
            files, arg_overrides=overrides
        )
    except RuntimeError as error:  # load_state_dict raises it
        raise UserError(f"{files[0]}: its weights do not fit: {error}") from None
    task.load_dataset(args.split, combine=False)
    return [model.eval().float().to(device) for model in models], task


class SplitTexts:
    """Captions or summaries of a split, and the models that compute their likelihood.

    Attributes:
        likelihood: Scorer of the texts.
        texts: Text of each line, as words; for captions and summaries, the line's number instead.
        num_words: Number of words after which a text is truncated; None if texts never are.
        ends: Indices of the tokens that end a text or a sentence.
        files: Dict from a label, such as ``checkpoint_0``, to the path of a file that determines
            the likelihoods.
    """

    likelihood: TextLikelihood
    num_words: Optional[int] = None

    def __init__(self, args: argparse.Namespace, checkpoints: Sequence[Checkpoint]) -> None:
        self.device = usable_device(args.device)
        self.files = _numbered("checkpoint", [checkpoint.path for checkpoint in checkpoints])
        self.options = {
            "precision": args.precision,
            "batch_tokens": BATCH_TOKENS.get(self.device.type, 32000),
        }
        self.load(args, checkpoints)

    def load(self, args: argparse.Namespace, checkpoints: Sequence[Checkpoint]) -> None:
        """Load the models and the texts."""
        models, task = load_on_data(checkpoints, args)
        self.dataset = task.datasets[args.split]
        self.dictionary = task.target_dictionary
        self.ends = [self.dictionary.eos()]
        self.texts: Sequence[Any] = range(len(self.dataset))
        self.likelihood = TextLikelihood(
            models,
            self.dataset.__getitem__,
            self.dataset.collater,
            # models of other packages may compute more than what output_layer returns
            has_features=False,
            **self.options,
        )

    def tokens(self, line: int) -> list[int]:
        """Return the token indices of a line's text, with the end unless the text is truncated."""
        return self.dataset[line]["target"].tolist()

    def condition(self, line: int) -> Any:
        """Return the prompt, images or video of a line, in the form that ``likelihood`` reads."""
        return line

    def describe(self, lines: Sequence[int], counts: Any) -> dict[str, Any]:
        """Return JSON fields that describe ``lines`` and their ``counts``
        (``perplexity.Counts``)."""
        return {}


class StoryTexts(SplitTexts):
    """Stories of a split, which are ranked under their prompts or images."""

    noun: str  # plural noun for the conditions of the texts
    condition_name: str  # name of the condition in files of likelihoods
    ties: str  # how ties are counted, for the signature of a ranking
    # text of the prompt, or id of the album, of each line; empty for language models
    names: list[str]
    load_split: Any  # function that loads the texts and their conditions
    identify: Any  # function from a line to what identifies its condition in files
    rank: Any
    rank_draws: Any
    rank_fields: Any

    def load(self, args: argparse.Namespace, checkpoints: Sequence[Checkpoint]) -> None:
        self.models = build_models(checkpoints, args.device)
        self.dictionary = self.models.dictionary
        self.ends = [self.dictionary.eos()]
        self.load_split(args)

    def tokens(self, line: int) -> list[int]:
        return encode_text(self.dictionary, self.texts[line], self.num_words)

    def find_lines(self, names: Sequence[str]) -> dict[str, int]:
        """Return a dict from each prompt or album in ``names`` to the number of its first line."""
        first: dict[str, int] = {}
        for line, name in enumerate(self.names):
            # condition_columns ignores white space, too
            first.setdefault(" ".join(name.split()), line)
        return {name: first[name] for name in names}

    def find_own_line(self, line: int, first: int) -> int:
        """Return the line whose condition is used for ``line``; ``first`` is the first line with an
        equal name of the condition."""
        return first


class PromptTexts(StoryTexts):
    """Stories with their prompts, or texts of a language model."""

    noun, condition_name, ties = "prompts", "prompt", "shared"
    rank, rank_draws = staticmethod(rank_prompts), staticmethod(draw_credits)

    def load_split(self, args: argparse.Namespace) -> None:
        split = open_split(args.data, args.split, PROMPTS.sides)
        self.files["split"] = split.path
        self.likelihood = prompt_likelihood(self.models, **self.options)
        most = max_words(self.models, "story")
        self.num_words = min(args.words or most, most)
        self.side = "wp_target"
        if self.models.are_language_models:
            words = set(list_words(self.dictionary))
            paths = {side: split.dictionary_path(side) for side in split.sides}
            sides = [
                side
                for side, path in paths.items()
                if os.path.isfile(path) and words == set(list_words(load_dictionary(path)))
            ]
            if len(sides) != 1:
                raise UserError(
                    f"{split.folder}: the dictionary of {self.models.files[0]} must be that of "
                    f"prompts or of stories, but is that of {' and '.join(sides) or 'neither'}."
                )
            (self.side,) = sides
        self.texts = split.tokens(self.side)
        self.prompts: list[list[str]] = []
        if not self.models.are_language_models:
            self.prompts = split.tokens("wp_source")
        self.names = [" ".join(words) for words in self.prompts]

    def condition(self, line: int) -> Optional[tuple[int, ...]]:
        return encode_prompt(self.models, self.prompts[line]) if self.prompts else None

    def identify(self, line: int) -> Optional[list[int]]:
        condition = self.condition(line)
        return None if condition is None else [*condition]

    def find_lines(self, names: Sequence[str]) -> dict[str, int]:
        # Prompts that differ only in unknown words have the same tokens. They share one line, so
        # that their scores are equal; computed in two batches, they could differ slightly.
        line_of_tokens: dict[Any, int] = {}
        lines = super().find_lines(names)
        for name, line in sorted(lines.items(), key=lambda item: item[1]):
            lines[name] = line_of_tokens.setdefault(self.condition(line), line)
        return lines

    def rank_fields(
        self, line: int, own: float, others: np.ndarray, by_draw: np.ndarray
    ) -> dict[str, Any]:
        """Return fields about the ranking of a story: ``own`` and ``others`` are its
        log-likelihoods by condition, ``by_draw`` its credits or ranks from ``rank_draws``.
        """
        return {
            "prompt": self.names[line],
            "prompts": 1 + len(others),
            "rank": 1 + int((others > own).sum()),
            "accuracy": float(by_draw.mean()),
        }

    def describe(self, lines: Sequence[int], counts: Any) -> dict[str, Any]:
        return {"side": self.side, "texts_cut": counts.truncated}


class AlbumTexts(StoryTexts):
    """Visual stories with their image sequences."""

    noun, condition_name, ties = "albums", "images", "against-the-model-within-0.001-nats"
    rank, rank_draws = staticmethod(rank_albums), staticmethod(candidate_ranks)

    def load_split(self, args: argparse.Namespace) -> None:
        split = open_split(args.data, args.split)
        features = open_folder_features(args.data, args.features)
        paths = [store.path for store in features.stores]
        self.files.update(split=split.path, **_numbered("features", paths))
        self.missing, self.texts, self.visual_ids = split.missing, split.tokens(), split.items
        self.names = [album or key for album, key in zip(split.field("album"), self.visual_ids)]
        # image sequence -> its first line, which stands for it
        self.first = {images: line for line, images in reversed([*enumerate(self.visual_ids)])}
        self.ends.append(self.dictionary.index(SEPARATOR))
        R = self.models.task.rows_per_image
        dataset = MultimodalDataset(
            self.visual_ids,
            features,
            None,
            self.dictionary,
            split=args.split,
            missing=self.missing,
            rows_per_image=R,
        )
        for image in {key for images in self.first for key in images.split("\t")} - self.missing:
            if features.count_rows(image) != R:
                raise UserError(
                    f"{features.path}: {image!r} has {features.count_rows(image)} regions, but the "
                    f"model was trained on {R} an image."
                )
        self.likelihood = TextLikelihood(
            self.models.models,
            dataset.__getitem__,
            dataset.collater,
            # so that many texts of a batch share their images, which are encoded once
            group=lambda line: line // 32,
            **self.options,
        )

    def condition(self, line: int) -> int:
        return self.first[self.visual_ids[line]]

    def identify(self, line: int) -> str:
        return self.visual_ids[line]

    def find_own_line(self, line: int, first: int) -> int:
        # An album has several image sequences; the story was written for this one.
        return self.condition(line)

    def rank_fields(
        self, line: int, own: float, others: np.ndarray, by_draw: np.ndarray
    ) -> dict[str, Any]:
        images = self.visual_ids[line].split("\t")
        return {"album": self.names[line], "images": images, "ranks": by_draw.tolist()}

    def describe(self, lines: Sequence[int], counts: Any) -> dict[str, Any]:
        sequences = {self.visual_ids[line] for line in lines}
        return {
            "sentences": len(counts.sentences),
            "sequences": len(sequences),
            "sequences_with_missing_images": sum(
                not self.missing.isdisjoint(line.split("\t")) for line in sequences
            ),
        }


TEXTS: dict[str, Any] = {
    "captions": SplitTexts,
    "summaries": SplitTexts,
    "prompts": PromptTexts,
    "albums": AlbumTexts,
}


def _numbered(role: str, paths: Sequence[str]) -> dict[str, str]:
    return {f"{role}_{number}": path for number, path in enumerate(paths)}
