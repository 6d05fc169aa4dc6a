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
from typing import TYPE_CHECKING, Any, Optional, Union

from fairseq_mm.cli import arguments
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import SEED

if TYPE_CHECKING:
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
    "Score only the first N words of each story of a prompt; the end of a truncated story is not "
    "scored (default: as many as the model has positions for)."
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

    Args:
        args: Parsed command line, in which options are set.
        options: For each accepted kind of checkpoint, such as ``captions``, a dict from the name
            of an option to its default.
        checkpoints: Opened checkpoints, all of one kind.
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

    Args:
        files: Dict from the label of an input file in the result, such as ``references``, to its
            path. The hash of the file is recorded; a file with the path None is left out.
        options: Names of the options whose values are recorded, in addition to ``--split``,
            ``--seed`` and ``--precision``.
    """
    from fairseq_mm.metrics.result_card import result_card

    card = result_card(
        command=shlex.join(["fairseq-mm", *sys.argv[1:]]),
        files={role: None if path is None else str(path) for role, path in files.items()},
        generated=os.devnull,  # there is no generated text to hash
    )
    card["options"] = {name: getattr(args, name) for name in ("split", "seed", *options)}
    card["options"].update(precision=args.precision, device=str(device))
    return card


class _Texts:
    """Texts of a split, one per line, and the models that compute their likelihood.

    Attributes:
        models: Loaded models.
        device: Device of the models.
        likelihood: Object that computes the likelihood of texts under the models.
        texts: Words of each line's text.
        names: Text of the prompt, or id of the album, of each line; empty for language models.
        files: Dict from a label, such as ``checkpoint_0``, to the path of a file that determines
            the likelihoods.
        ends: Indices of the tokens that end a text or a sentence.
    """

    likelihood: Any
    texts: list[list[str]]
    names: list[str]
    files: dict[str, str]
    ends: list[int]

    def __init__(self, models: "LoadedModels", args: argparse.Namespace) -> None:
        self.models = models
        self.device = models.device
        self.options = {
            "precision": args.precision,
            "batch_tokens": BATCH_TOKENS.get(models.device.type, 32000),
        }

    def identity(self) -> dict[str, Any]:
        """Return the hashes of the files on which the likelihoods depend.

        The result is a dict from a kind of file, such as ``checkpoint``, to the list of hashes.
        """
        from fairseq_mm.metrics.result_card import file_hash

        hashes: dict[str, Any] = {}
        for role, path in self.files.items():
            # Files above 4 GiB are not hashed; their size is used instead.
            entry = file_hash(path)
            digest = str(entry.get("sha256", entry.get("bytes")))[:12]
            # checkpoint_0 and checkpoint_1 have the role `checkpoint`.
            hashes.setdefault(role.partition("_")[0], []).append(digest)
        return hashes


def _numbered(role: str, paths: Sequence[str]) -> dict[str, str]:
    return {f"{role}_{number}": path for number, path in enumerate(paths)}


class PromptTexts(_Texts):
    """Stories with their prompts, or texts of a language model."""

    def __init__(self, args: argparse.Namespace, checkpoints: "Sequence[Checkpoint]") -> None:
        from fairseq_mm.data import split_text
        from fairseq_mm.inference.checkpoint import build_models
        from fairseq_mm.retrieval.story_likelihood import StoryLikelihood

        models = build_models(checkpoints, args.device)
        super().__init__(models, args)
        self.likelihood = StoryLikelihood(models, **self.options)
        most = self.likelihood.max_story_words
        if args.words is not None and args.words > most:
            raise UserError(f"--words {args.words}: the model has positions for {most} words.")
        self.num_words = args.words or most
        self.side = self._find_side(args)
        self.files = _numbered("checkpoint", models.files)
        self.files["text"] = str(split_text.side_path(args.data, args.split, self.side))
        self.prompts: list[list[str]] = []
        if models.are_language_models:
            self.texts = split_text.read_side(args.data, args.split, self.side)
        else:
            self.prompts, self.texts = split_text.read_story_split(args.data, args.split)
            path = split_text.side_path(args.data, args.split, split_text.SOURCE)
            self.files["prompts"] = str(path)
        self.names = [" ".join(words) for words in self.prompts]
        self.ends = [self.likelihood.dictionary.eos()]

    def _find_side(self, args: argparse.Namespace) -> str:
        """Return the language of the texts: ``wp_source`` (prompts) or ``wp_target`` (stories)."""
        from fairseq_mm.data.split_text import SOURCE, TARGET, side_path
        from fairseq_mm.models._provenance import list_words
        from fairseq_mm.prepare.data_folder import read_dictionary_words

        file, option = self.models.files[0], getattr(args, "side", None)
        if not self.models.are_language_models:
            if option == SOURCE:
                raise UserError(f"--side {option}: {file} generates stories, not prompts.")
            return TARGET
        if option:
            return str(option)
        words = set(list_words(self.models.dictionary))
        sides = []
        for side in (SOURCE, TARGET):
            path = side_path(args.data, args.split, side).parents[1] / f"dict.{side}.txt"
            if path.is_file() and words == set(read_dictionary_words(path)):
                sides.append(side)
        if len(sides) != 1:
            raise UserError(
                f"{file}: its dictionary ({len(words)} words) is that of "
                f"{'both sides' if sides else 'neither side'} of {args.data}: give --side."
            )
        return sides[0]

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "words": self.num_words}

    def tokens(self, line: int) -> list[int]:
        """Return the token indices of a line's text, with ``</s>`` unless the text is truncated."""
        return self.likelihood.encode_story(self.texts[line], num_words=self.num_words)

    def condition(self, line: int) -> Optional[list[int]]:
        """Return the token indices of a line's prompt; None for language models."""
        if self.models.are_language_models:
            return None
        try:
            return self.likelihood.encode_prompt(self.prompts[line])
        except UserError as error:
            raise UserError(f"{self.files['prompts']}:{line + 1}: {error}") from None

    def find_lines(self, names: Sequence[str]) -> dict[str, int]:
        """Return a dict from each prompt in ``names`` to the number of its first line in the split.

        Prompts that differ only in unknown words have the same tokens, and so the same line.
        """
        # Prompts that differ only in unknown words have the same tokens. They share one line, so
        # that their scores are equal; computed in two batches, they could differ slightly.
        first: dict[str, int] = {}
        for line, name in enumerate(self.names):
            first.setdefault(name, line)
        line_of_tokens: dict[Any, int] = {}
        lines = {}
        for name in sorted(names, key=first.__getitem__):
            tokens = tuple(self.condition(first[name]) or ())
            lines[name] = line_of_tokens.setdefault(tokens, first[name])
        return lines

    def find_own_line(self, line: int, line_of_prompt: Mapping[str, int]) -> int:
        """Return the line that :meth:`find_lines` has assigned to the prompt of a story.

        Args:
            line: Number of the story's line.
            line_of_prompt: Result of :meth:`find_lines`.
        """
        return line_of_prompt[self.names[line]]


class AlbumTexts(_Texts):
    """Visual stories with their image sequences."""

    def __init__(self, args: argparse.Namespace, checkpoints: "Sequence[Checkpoint]") -> None:
        from fairseq_mm.data.feature_store import open_folder_features
        from fairseq_mm.data.split_files import read_missing_images
        from fairseq_mm.data.split_text import read_visual_story_split, story_text_path
        from fairseq_mm.data.story_text import SEPARATOR
        from fairseq_mm.inference.checkpoint import build_models
        from fairseq_mm.retrieval.story_likelihood import SequenceImages, VisualStoryLikelihood

        split = read_visual_story_split(args.data, args.split)
        features = open_folder_features(args.data, args.features)
        models = build_models(checkpoints, args.device)
        super().__init__(models, args)
        checkpoints[0].check_features(features)
        self.missing = read_missing_images(args.data)
        images = SequenceImages(features, self.missing, models.task.rows_per_image)
        images.check(split.visual_ids)
        self.likelihood = VisualStoryLikelihood(models, images, **self.options)
        self.texts, self.visual_ids, self.names = split
        self.files = {
            **_numbered("checkpoint", models.files),
            "stories": str(story_text_path(args.data, args.split)),
            "visual_ids": str(Path(args.data) / f"{args.split}.visual_ids"),
            **_numbered("features", [store.path for store in features.stores]),
        }
        self.ends = [models.dictionary.index(SEPARATOR), models.dictionary.eos()]

    def tokens(self, line: int) -> list[int]:
        """Return the token indices of a line's story, with ``<sent>`` separators and ``</s>``."""
        return self.likelihood.encode_story(self.texts[line])

    def condition(self, line: int) -> str:
        """Return the image sequence of a line: the ids of its images, separated by tabs."""
        return self.visual_ids[line]

    def find_lines(self, names: Sequence[str]) -> dict[str, int]:
        """Return a dict from each album id in ``names`` to the number of the album's first line."""
        first: dict[str, int] = {}
        for line, name in enumerate(self.names):
            # condition_columns ignores white space, too
            first.setdefault(" ".join(name.split()), line)
        return {name: first[name] for name in names}

    def find_own_line(self, line: int, line_of_album: Mapping[str, int]) -> int:
        """Return the number of the first line that has the same image sequence as ``line``.

        ``line_of_album`` is ignored; it exists because :class:`PromptTexts` needs such an argument.
        """
        # An album has several image sequences; the story was written for this one.
        return self.visual_ids.index(self.visual_ids[line])


def load_on_data(
    checkpoints: "Sequence[Checkpoint]", args: argparse.Namespace
) -> tuple[list[Any], Any]:
    """Load models of captions or summaries, and set up their task.

    Args:
        checkpoints: Opened checkpoints.
        args: Parsed command line, with the options ``data`` and ``features``.

    Returns:
        models: Models in evaluation mode and float32.
        task: Task of the data folder ``args.data``.
    """
    from fairseq import checkpoint_utils

    from fairseq_mm.data.feature_store import open_folder_features

    files = [checkpoint.path for checkpoint in checkpoints]
    for checkpoint in checkpoints:
        if checkpoint.kind not in ("captions", "vectors", "summaries"):
            raise UserError(
                f"{checkpoint.path}: must be a checkpoint of --task multimodal_captioning, but is "
                f"one of {checkpoint.task_name} instead."
            )
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

    The attributes are the same as in :class:`_Texts`, but ``models`` is missing, and ``texts`` has
    the indices of the lines instead of words.
    """

    def __init__(self, args: argparse.Namespace, checkpoints: "Sequence[Checkpoint]") -> None:
        from fairseq_mm.inference.checkpoint import usable_device

        self.device = usable_device(args.device)
        models, task = load_on_data(checkpoints, args)
        task.load_dataset(args.split, combine=False)
        self.dataset = task.datasets[args.split]
        self.likelihood: Any = DatasetLikelihood(
            [model.to(self.device) for model in models],
            self.dataset,
            task.target_dictionary,
            device=self.device,
            precision=args.precision,
            batch_tokens=BATCH_TOKENS["cpu"],
        )
        self.texts = range(len(self.dataset))
        self.names: list[str] = []
        self.ends = [task.target_dictionary.eos()]
        self.files = {
            **_numbered("checkpoint", [checkpoint.path for checkpoint in checkpoints]),
            "visual_ids": str(Path(args.data) / f"{args.split}.visual_ids"),
        }

    def tokens(self, line: int) -> list[int]:
        """Return the token indices of a line's text, with ``</s>``."""
        return self.dataset[line]["target"].tolist()

    def condition(self, line: int) -> int:
        """Return ``line`` itself, by which :class:`DatasetLikelihood` finds the image or video."""
        return line


class DatasetLikelihood:
    """Likelihood of the texts of a dataset, as ``fairseq-generate --score-reference`` computes it.

    It works with every model that fairseq can decode. :class:`.TextLikelihood` works only with the
    story models of this package.
    """

    def __init__(
        self,
        models: list[Any],
        dataset: Any,
        dictionary: Any,
        *,
        device: Any,
        precision: str,
        batch_tokens: int,
    ) -> None:
        self.models, self.dataset, self.dictionary = models, dataset, dictionary
        self.device, self.precision, self.batch_tokens = device, precision, batch_tokens

    def batches(
        self, pairs: "Sequence[Pair]", *, log_probs_of: Any = None
    ) -> Iterator[tuple[list[int], list[Any]]]:
        """Compute the log-probabilities of the tokens of texts, batch by batch.

        Args:
            pairs: For each text, its index in the dataset and its token indices.
            log_probs_of: Not used; :meth:`.TextLikelihood.batches` has such an argument.

        Yields:
            numbers: Indices in ``pairs`` of the texts of one batch.
            log_probs: For each text, [tokens] natural logarithms of the probabilities.
        """
        import torch
        from fairseq import utils
        from fairseq.sequence_scorer import SequenceScorer

        scorer = SequenceScorer(self.dictionary)
        number_of_line = {line: number for number, (line, _) in enumerate(pairs)}
        # A batch begins with its longest text, whose length limits how many texts fit.
        order = sorted(range(len(pairs)), key=lambda number: -len(pairs[number][1]))
        while order:
            size = max(1, self.batch_tokens // len(pairs[order[0]][1]))
            batch, order = order[:size], order[size:]
            sample = self.dataset.collater([self.dataset[pairs[number][0]] for number in batch])
            sample = utils.apply_to_sample(lambda tensor: tensor.to(self.device), sample)
            bfloat16 = self.precision == "bfloat16"
            with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, bfloat16):
                hypotheses = scorer.generate(self.models, sample)
            # The collater sorts examples by the length of their source text, if they have one.
            numbers = [number_of_line[line] for line in sample["id"].tolist()]
            yield numbers, [best[0]["positional_scores"].float().cpu() for best in hypotheses]


Stories = Union[PromptTexts, AlbumTexts]
Texts = Union[Stories, DatasetTexts]
TEXTS: dict[str, Any] = {
    "captions": DatasetTexts,
    "summaries": DatasetTexts,
    "prompts": PromptTexts,
    "albums": AlbumTexts,
}
