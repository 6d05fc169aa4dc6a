"""Texts, models and common options of ``fairseq-mm rank`` and ``fairseq-mm perplexity``.

Both commands score the texts of a data folder. The kind of a checkpoint (:attr:`.Checkpoint.kind`)
decides which texts: captions, stories of prompts, visual stories or summaries.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import SEED

if TYPE_CHECKING:
    import numpy as np

    from fairseq_mm.data.records import Split
    from fairseq_mm.inference.checkpoint import Checkpoint, LoadedModels
    from fairseq_mm.retrieval.story_likelihood import Pair

# kind of a checkpoint -> what its models generate or embed, for messages
KINDS = {
    "captions": "captions",
    "vectors": "image-sentence embeddings",
    "prompts": "stories of prompts",
    "albums": "visual stories",
    "summaries": "summaries of videos",
}
WORDS_HELP = (
    "Score only the first N words of a story, without an end (default: the model's positions)."
)
# number of tokens of texts in a batch, padding included; 32000 on other devices
BATCH_TOKENS = {"cpu": 4000}
# options and their defaults, by the kinds of checkpoints that have them
Options = Mapping[str, Mapping[str, Any]]


def add_scoring_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that every kind of checkpoint accepts."""
    parser.add_argument("data", metavar="DATA", help="Data folder, made by fairseq-mm prepare.")
    arguments.add(
        parser,
        *("checkpoint", "split", "features", "seed"),
        split={"default": "valid", "help": "Split of the data folder (default: valid)."},
        features={
            "help": "Feature store of the images, or several, separated by the system's path "
            "separator (default: features.h5 in DATA)."
        },
        seed={"default": SEED},
    )
    group = parser.add_argument_group("speed and memory")
    arguments.add(group, "device")
    group.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="Precision of the networks; bfloat16 rounds a token's log-probability in its third "
        "digit (default: float32).",
    )
    arguments.add_numbers(group, threads="Number of CPU threads (default: PyTorch's).")


def resolve_options(
    args: argparse.Namespace, options: Options, checkpoints: "Sequence[Checkpoint]"
) -> str:
    """Set missing options in ``args`` to the defaults of the checkpoints' kind; return the kind.

    ``options`` are the options of each accepted kind of checkpoint, with their defaults.
    """
    if args.seed < 0:  # NumPy's generators would raise a ValueError
        raise UserError(f"--seed: must be 0 or more, but is {args.seed}.")
    checkpoint = checkpoints[0]
    kind = checkpoint.kind
    if kind not in options:
        *others, last = (KINDS[name] for name in options)
        raise UserError(
            f"{checkpoint.path}: must be a checkpoint of {', '.join(others)} or {last}, but was "
            f"trained with --task {checkpoint.task_name}."
        )
    # These options have no default in argparse, because it would look like a given option.
    for name in dict.fromkeys(name for table in options.values() for name in table):
        if name in options[kind]:
            if getattr(args, name) is None:
                setattr(args, name, options[kind][name])
        elif arguments.is_given(args, name):
            of = " or ".join(KINDS[other] for other in options if name in options[other])
            raise UserError(
                f"{arguments.flag(name)}: is for checkpoints of {of}, but {checkpoint.path} is one "
                f"of {KINDS[kind]}."
            )
    if args.threads:
        import torch

        torch.set_num_threads(args.threads)
    return kind


def sample_lines(total: int, wanted: Optional[int], seed: int) -> list[int]:
    """Return ``wanted`` random line numbers from 0 to ``total - 1``, in ascending order.

    If ``wanted`` is None or more than ``total``, all line numbers are returned. If two samples have
    the same seed, the larger one contains the smaller one.
    """
    import numpy as np

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
    from fairseq_mm.metrics.result_card import result_card

    card = result_card(
        command=shlex.join(["fairseq-mm", *sys.argv[1:]]),
        files=dict(files),
        generated=os.devnull,  # there is no generated text to hash
    )
    values = {name: getattr(args, name) for name in ("split", "seed", *options)}
    card["options"] = {**values, "precision": args.precision, "device": str(device)}
    return card


def name_output(files: Sequence[str], split: str) -> str:
    """Return the default output folder, ``CHECKPOINT.rank-SPLIT``; ``+N`` for N more."""
    others = f"+{len(files) - 1}" if len(files) > 1 else ""
    return f"{os.path.splitext(files[0])[0]}{others}.rank-{split}"


def load_texts(args: argparse.Namespace, checkpoints: "Sequence[Checkpoint]") -> Any:
    """Load the texts of the split, and the models that compute their likelihood."""
    return _TEXTS[checkpoints[0].kind](args, checkpoints)


def _numbered(role: str, paths: Sequence[str]) -> dict[str, str]:
    return {f"{role}_{number}": path for number, path in enumerate(paths)}


class StoryTexts:
    """Texts of a split, one per line, and the models that compute their likelihood.

    Attributes:
        noun: Plural noun for the conditions of the texts.
        condition_name: Name of the condition in files of likelihoods.
        ties: How ties are counted, for the signature of a ranking.
        models: Loaded models.
        likelihood: Object that computes the likelihood of texts under the models.
        num_words: Number of words after which a text is truncated; None if texts never are.
        texts: Words of each line's text.
        names: Text of the prompt, or id of the album, of each line; empty for language models.
        files: Dict from a label, such as ``checkpoint_0``, to the path of a file that determines
            the likelihoods.
        ends: Indices of the tokens that end a text or a sentence.
    """

    noun: str
    condition_name: str
    ties: str
    likelihood: Any
    rank: Any
    rank_draws: Any
    rank_fields: Any
    num_words: Optional[int] = None
    ends: list[int]

    def __init__(
        self, args: argparse.Namespace, split: "Split", checkpoints: "Sequence[Checkpoint]"
    ) -> None:
        from fairseq_mm.inference.checkpoint import build_models

        self.models: LoadedModels = build_models(checkpoints, args.device)
        self.device = self.models.device
        self.options = {
            "precision": args.precision,
            "batch_tokens": BATCH_TOKENS.get(self.device.type, 32000),
        }
        self.texts: list[list[str]] = []
        self.names: list[str] = []
        self.files = {**_numbered("checkpoint", self.models.files), "split": split.path}

    def settings(self) -> dict[str, Any]:
        """Return digests of the checkpoints, texts and features on which likelihoods depend."""
        import hashlib

        from fairseq_mm.metrics.result_card import file_hash

        hashes: dict[str, Any] = {"words": self.num_words}
        for role, path in self.files.items():
            if role != "split":  # the same texts may be in a file of another form
                # Files above 4 GiB are not hashed; their size is used instead.
                entry = file_hash(path)
                digest = str(entry.get("sha256", entry.get("bytes")))[:12]
                # checkpoint_0 and checkpoint_1 have the role `checkpoint`.
                hashes.setdefault(role.partition("_")[0], []).append(digest)
        content = repr([(self.condition(line), text) for line, text in enumerate(self.texts)])
        return {**hashes, "texts": hashlib.sha256(content.encode()).hexdigest()[:12]}

    def tokens(self, line: int) -> list[int]:
        """Return the token indices of a line's text, with the end unless the text is truncated."""
        return self.likelihood.encode_story(self.texts[line], num_words=self.num_words)

    def condition(self, line: int) -> Any:
        """Return the prompt or image sequence of a line, in the form that ``likelihood`` needs."""
        raise NotImplementedError

    def find_lines(self, names: Sequence[str]) -> dict[str, int]:
        """Return a dict from each prompt or album in ``names`` to the number of its first line."""
        first: dict[str, int] = {}
        for line, name in enumerate(self.names):
            # condition_columns ignores white space, too
            first.setdefault(" ".join(name.split()), line)
        return {name: first[name] for name in names}

    def find_own_line(self, line: int, first: int) -> int:
        """Return the line whose condition is that of ``line``; ``first`` is the first such line."""
        return first


class PromptTexts(StoryTexts):
    """Stories with their prompts, or texts of a language model."""

    noun, condition_name, ties = "prompts", "prompt", "shared"

    def __init__(self, args: argparse.Namespace, checkpoints: "Sequence[Checkpoint]") -> None:
        from fairseq_mm.data.records import PROMPTS, open_split
        from fairseq_mm.metrics.condition_ranking import draw_credits, rank_prompts
        from fairseq_mm.retrieval.story_likelihood import StoryLikelihood

        split = open_split(args.data, args.split, PROMPTS.sides)
        super().__init__(args, split, checkpoints)
        self.rank, self.rank_draws = rank_prompts, draw_credits
        self.likelihood = StoryLikelihood(self.models, **self.options)
        most = self.likelihood.max_story_words
        self.num_words = min(args.words or most, most)
        self.side = self._find_side(getattr(args, "side", None), split)
        self.texts = split.tokens(self.side)
        self.prompts: list[list[str]] = []
        if not self.models.are_language_models:
            self.prompts = split.tokens("wp_source")
        self.names = [" ".join(words) for words in self.prompts]
        self.ends = [self.likelihood.dictionary.eos()]

    def _find_side(self, option: Optional[str], split: "Split") -> str:
        """Return the side of the texts: ``wp_source`` (prompts) or ``wp_target`` (stories)."""
        from fairseq_mm.models._provenance import list_words
        from fairseq_mm.prepare.data_folder import read_dictionary_words

        file = self.models.files[0]
        if not self.models.are_language_models:
            if option == "wp_source":
                raise UserError(f"--side {option}: {file} generates stories, not prompts.")
            return "wp_target"
        if option:
            return option
        words = set(list_words(self.models.dictionary))
        paths = {side: split.dictionary_path(side) for side in split.sides}
        sides = [
            side
            for side, path in paths.items()
            if os.path.isfile(path) and words == read_dictionary_words(Path(path))
        ]
        if len(sides) != 1:
            both = "both sides" if sides else "neither side"
            raise UserError(f"{file}: its dictionary is that of {both} of {split.folder}: --side.")
        return sides[0]

    def condition(self, line: int) -> Optional[list[int]]:
        return self.likelihood.encode_prompt(self.prompts[line]) if self.prompts else None

    def find_lines(self, names: Sequence[str]) -> dict[str, int]:
        # Prompts that differ only in unknown words have the same tokens. They share one line, so
        # that their scores are equal; computed in two batches, they could differ slightly.
        line_of_tokens: dict[Any, int] = {}
        lines = super().find_lines(names)
        for name, line in sorted(lines.items(), key=lambda item: item[1]):
            tokens = tuple(self.condition(line) or ())
            lines[name] = line_of_tokens.setdefault(tokens, line)
        return lines

    def rank_fields(
        self, line: int, own: float, others: "np.ndarray", by_draw: "np.ndarray"
    ) -> dict[str, Any]:
        """Return fields about the ranking of a story, by its log-likelihood under its own condition
        and under others, and by the credits or ranks ``by_draw`` of ``rank_draws``.
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

    def __init__(self, args: argparse.Namespace, checkpoints: "Sequence[Checkpoint]") -> None:
        from fairseq_mm.data.feature_store import open_folder_features
        from fairseq_mm.data.records import open_split
        from fairseq_mm.data.story_text import SEPARATOR
        from fairseq_mm.metrics.condition_ranking import candidate_ranks, rank_albums
        from fairseq_mm.retrieval.story_likelihood import SequenceImages, VisualStoryLikelihood

        split = open_split(args.data, args.split)
        features = open_folder_features(args.data, args.features)
        super().__init__(args, split, checkpoints)
        self.rank, self.rank_draws = rank_albums, candidate_ranks
        checkpoints[0].check_features(features)
        self.missing, self.texts, self.visual_ids = split.missing, split.tokens(), split.items
        self.names = [album or key for album, key in zip(split.field("album"), self.visual_ids)]
        images = SequenceImages(features, self.missing, self.models.task.rows_per_image)
        images.check(self.visual_ids)
        self.likelihood = VisualStoryLikelihood(self.models, images, **self.options)
        self.files.update(_numbered("features", [store.path for store in features.stores]))
        dictionary = self.models.dictionary
        self.ends = [dictionary.index(SEPARATOR), dictionary.eos()]

    def condition(self, line: int) -> str:
        return self.visual_ids[line]

    def find_own_line(self, line: int, first: int) -> int:
        # An album has several image sequences; the story was written for this one.
        return self.visual_ids.index(self.visual_ids[line])

    def rank_fields(
        self, line: int, own: float, others: "np.ndarray", by_draw: "np.ndarray"
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


def load_on_data(
    checkpoints: "Sequence[Checkpoint]", args: argparse.Namespace
) -> tuple[list[Any], Any]:
    """Load models of captions or summaries, in evaluation mode and float32, and set up their task
    on the data folder ``args.data``."""
    from fairseq import checkpoint_utils

    from fairseq_mm.data.feature_store import open_folder_features

    files = [checkpoint.path for checkpoint in checkpoints]
    for checkpoint in checkpoints:
        if checkpoint.has_provenance and checkpoint.feature_dim:  # else the model reads only text
            with closing(open_folder_features(args.data, args.features)) as features:
                checkpoint.check_features(features)
    # No text is generated, so no references are read; every line is scored.
    overrides = {"data": args.data, "features": args.features, "eval_gen": False}
    if checkpoint.kind != "summaries":  # its task has no such option
        overrides["one_per_item"] = False
    try:
        models, _, task = checkpoint_utils.load_model_ensemble_and_task(
            files, arg_overrides=overrides
        )
    except RuntimeError as error:  # load_state_dict raises it
        raise UserError(f"{files[0]}: its weights do not fit: {error}") from None
    return [model.eval().float() for model in models], task


class DatasetTexts:
    """Captions or summaries of a binarized split, with the models that compute their likelihood.

    The attributes are those of :class:`StoryTexts`, but ``texts`` has the indices of the lines. The
    likelihood is the one of ``fairseq-generate --score-reference``, for every model that fairseq
    can decode; :class:`.TextLikelihood` works only with the story models of this package.
    """

    num_words = None

    def __init__(self, args: argparse.Namespace, checkpoints: "Sequence[Checkpoint]") -> None:
        from fairseq_mm.inference.checkpoint import usable_device

        self.device = usable_device(args.device)
        models, task = load_on_data(checkpoints, args)
        self.models = [model.to(self.device) for model in models]
        task.load_dataset(args.split, combine=False)
        self.dataset = task.datasets[args.split]
        self.dictionary = task.target_dictionary
        self.is_bfloat16 = args.precision == "bfloat16"
        self.likelihood = self
        self.texts = range(len(self.dataset))
        self.ends = [self.dictionary.eos()]
        self.files = _numbered("checkpoint", [checkpoint.path for checkpoint in checkpoints])

    def tokens(self, line: int) -> list[int]:
        return self.dataset[line]["target"].tolist()

    def condition(self, line: int) -> int:
        """Return ``line`` itself, by which :meth:`batches` finds the image or video."""
        return line

    def describe(self, lines: Sequence[int], counts: Any) -> dict[str, Any]:
        return {}

    def batches(
        self, pairs: "Sequence[Pair]", *, log_probs_of: Any = None
    ) -> Iterator[tuple[list[int], list[Any]]]:
        """Compute the log-probabilities of texts, see :meth:`.TextLikelihood.batches`.

        ``pairs`` are the index in the dataset and the token indices of each text; ``log_probs_of``
        is not used.
        """
        import torch
        from fairseq import utils
        from fairseq.sequence_scorer import SequenceScorer

        scorer = SequenceScorer(self.dictionary)
        number_of_line = {line: number for number, (line, _) in enumerate(pairs)}
        # A batch begins with its longest text, whose length limits how many texts fit.
        order = sorted(range(len(pairs)), key=lambda number: -len(pairs[number][1]))
        while order:
            size = max(1, BATCH_TOKENS["cpu"] // len(pairs[order[0]][1]))
            batch, order = order[:size], order[size:]
            sample = self.dataset.collater([self.dataset[pairs[number][0]] for number in batch])
            sample = utils.apply_to_sample(lambda tensor: tensor.to(self.device), sample)
            autocast = torch.autocast(self.device.type, torch.bfloat16, self.is_bfloat16)
            with torch.no_grad(), autocast:
                hypotheses = scorer.generate(self.models, sample)
            # The collater sorts examples by the length of their source text, if they have one.
            numbers = [number_of_line[line] for line in sample["id"].tolist()]
            yield numbers, [best[0]["positional_scores"].float().cpu() for best in hypotheses]


_TEXTS: dict[str, Any] = {
    "captions": DatasetTexts,
    "summaries": DatasetTexts,
    "prompts": PromptTexts,
    "albums": AlbumTexts,
}
