"""Checks feature stores and data folders for ``fairseq-mm doctor``.

The stores are opened, the task is set up and its splits are loaded with the functions that training
calls. The errors of these functions become findings.
"""

import os
import stat
from collections.abc import Iterator
from glob import escape, glob
from types import SimpleNamespace
from typing import Any, NamedTuple, Optional

from fairseq_mm.cli.doctor_environment import Finding, describe_error, note, ok, problem
from fairseq_mm.data.input_files import SPLITS, read_json
from fairseq_mm.errors import UserError

ANEW = "prepare the folder anew with fairseq-mm prepare"
# Folder of a language model -> side of the pairs that it holds. This repeats a table of
# data.split_text, because that module imports numpy, and doctor must run where numpy is broken.
LANGUAGE_MODELS = {"prompts": "wp_source", "stories": "wp_target"}
# longer than any text or video: the doctor counts what would be cut, and cuts nothing
_ANY_LENGTH = 10**9
# percent of a text's tokens outside the vocabulary that are more than rare words
_MANY_UNKNOWN = 20
# extensions of a split's files that have one line per line of text, and that a task need not read:
# it reads unknowns.jsonl only if there are indexed OOV tokens, but score always does
_LINE_BY_LINE = ("ids", "stories.jsonl", "transcripts.jsonl", "unknowns.jsonl")


class Kind(NamedTuple):
    """Kind of data folder.

    Attributes:
        task: Name of the task that reads the folder.
        inputs: Kind of the task's inputs: ``images``, ``prompts`` or ``videos``.
        languages: Languages (file extensions) of the source text and the target text; empty if the
            folder has only one text.
    """

    task: str
    inputs: str
    languages: tuple[str, ...] = ()

    @property
    def dictionaries(self) -> list[str]:
        """Names of the dictionary files in a data folder of this kind."""
        return [f"dict.{language}.txt" for language in self.languages] or ["dict.txt"]


# these names are recorded in the prepare.json of data folders
KINDS = {
    "captions": Kind("multimodal_captioning", "images"),
    "visual stories": Kind("visual_storytelling", "images"),
    "prompts": Kind("hierarchical_story", "prompts", ("wp_source", "wp_target")),
    "videos": Kind("video_summarization", "videos", ("tran", "desc")),
}


def check_file_types(folder: str) -> Iterator[Finding]:
    """Yield a problem for each pipe or device in a data folder: reading it could take forever."""
    parent, name = os.path.split(os.path.abspath(folder))
    places = [folder, *(os.path.join(folder, inner) for inner in ("text", *LANGUAGE_MODELS))]
    # --data may name the folder of a language model; the pairs in its parent are read, too.
    if name in LANGUAGE_MODELS and os.path.exists(os.path.join(parent, "dict.wp_source.txt")):
        places.append(parent)
    for place in places:
        for entry in sorted(os.listdir(place)) if os.path.isdir(place) else ():
            path = os.path.join(place, entry)
            # A broken link counts as a file here; the reader of the file will report it.
            mode = os.stat(path).st_mode if os.path.exists(path) else stat.S_IFREG
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                text = "must be a file, but is a pipe or a device; nothing else is checked"
                yield problem(path, text, f"remove it, and {ANEW}")


def find_data_folder(folder: str) -> tuple[str, str]:
    """Return the path of the data folder and its kind, a key of ``KINDS``.

    The path is ``folder`` or, if ``folder`` is a language model's folder inside a data folder, the
    path of that data folder.
    """
    parent, name = os.path.split(os.path.abspath(folder))
    for place in (folder, parent) if name in LANGUAGE_MODELS else (folder,):
        kind = str(read_prepare_record(place).get("kind"))
        # The dictionaries decide, because prepare.json may be missing or from another folder.
        for other in ("prompts", "videos"):
            if any(os.path.exists(os.path.join(place, x)) for x in KINDS[other].dictionaries):
                kind = other
        if kind in KINDS and (place == folder or kind == "prompts"):
            return place, kind
    # fairseq-preprocess does not record the kind. The file is read as plain text, because the kind
    # must be known even if the dictionary is damaged or fairseq is missing.
    try:
        with open(os.path.join(folder, "dict.txt"), encoding="utf-8", errors="replace") as file:
            has_sentences = any(line.startswith("<sent> ") for line in file)
    except OSError:
        has_sentences = False
    return folder, "visual stories" if has_sentences else "captions"


def read_prepare_record(folder: str) -> dict[str, Any]:
    """Read ``prepare.json`` of a folder; return an empty dictionary if it is missing or broken."""
    try:
        content = read_json(os.path.join(folder, "prepare.json"))
    except UserError:
        return {}
    return content if isinstance(content, dict) else {}


def needs_features(folder: str) -> bool:
    """Return True if a data folder must have features; folders of videos may have only text."""
    inputs = KINDS[find_data_folder(folder)[1]].inputs
    if is_text_alone(folder):
        return False
    names = ("features.h5", "features.json")
    has_features = any(os.path.exists(os.path.join(folder, name)) for name in names)
    return inputs == "images" or (inputs == "videos" and has_features)


def is_text_alone(folder: str) -> bool:
    """Return True if ``fairseq-mm prepare captions --without-images`` has made the folder."""
    root, name = find_data_folder(folder)
    image_files = ["features.h5", "features.json"]
    image_files += [f"{split}.{x}" for split in SPLITS for x in ("visual_ids", "references.jsonl")]
    texts = [f"{split}.idx" for split in SPLITS]

    def has_any(names: list[str]) -> bool:
        return any(os.path.exists(os.path.join(root, name)) for name in names)

    return name == "captions" and has_any(texts) and not has_any(image_files)


def check_features(folder: Optional[str], paths: Optional[str]) -> tuple[Any, list[Finding]]:
    """Open and check feature stores.

    Args:
        folder: Data folder whose stores are opened if ``paths`` is None.
        paths: Paths of stores, separated by the system's path separator.

    Returns:
        store: All stores as one; None if they cannot be opened.
        findings: Lines of the report: problems, or the content of the stores.
    """
    subject = paths or os.path.join(folder or "", "features.h5")
    try:
        from fairseq_mm.data.feature_store import open_folder_features
    except ImportError as error:
        return None, [note(subject, f"not checked ({error})", "repair h5py and numpy first")]
    try:
        store = open_folder_features(folder or "", paths)
        # The store records that its values are finite, but they may have changed since then.
        store.check_finite(reread=True)
        for one in store.stores:
            if one.content_checksum:  # other programs write no checksum
                one.check_content()
    except UserError as error:
        return None, [problem("features", str(error), "make it anew with extract or store import")]
    subject = store.path
    findings = [ok(subject, f"{len(store)} items of feature dimension {store.dim}, all finite")]
    findings += [finding for one in store.stores for finding in _check_checksums(one)]
    name = store.attributes.get("extractor")
    if name:
        weights = str(store.attributes.get("weights", "unknown weights"))
        findings.append(ok("extractor", f"{name}, {weights[:40]}"))
    else:
        use = "images cannot be captioned"
        if folder and KINDS[find_data_folder(folder)[1]].inputs == "videos":
            use = "video files cannot be summarized"
        text = f"{subject} does not say which network made it: {use}"
        remedy = "store import with --extractor, --weights, --layer and --preprocessing"
        findings.append(note("extractor", text, remedy))
    return store, findings


def _check_checksums(store: Any) -> Iterator[Finding]:
    if not store.content_checksum:
        text = f"{store.path} has none of its ids and rows, so that exchanged ids go unseen"
        yield note("checksum", text, "fairseq-mm store convert writes a store that has one")
    elif not store.has_checksum:
        text = f"another program has changed {store.path}, and cut off that of its metadata"
        yield note("checksum", text, "make it anew, or add one: fairseq-mm store verify --repair")


def set_up(task: str, folder: str, features: Optional[str]) -> Any:
    """Set up and return a task in a data folder as ``fairseq-train`` does, with default options.

    ``task`` is the name of the task. ``features`` has paths of feature stores; None for the stores
    of the data folder.
    """
    import fairseq_mm

    fairseq_mm.register()  # this imports fairseq, which may be broken
    from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY

    options: dict[str, Any] = {"features": features} if features else {}
    cfg = TASK_DATACLASS_REGISTRY[task](data=folder, seed=1, **options)
    return TASK_REGISTRY[task].setup_task(cfg)


def check_data(
    folder: str, features: Optional[str], *, is_readable: bool, is_aligned: bool = False
) -> Iterator[Finding]:
    """Check a data folder: set up its task and load its splits.

    Yields findings, the lines of the report: problems, and a line "ok" for each file or split
    without a problem.

    Args:
        folder: Data folder.
        features: Paths of feature stores (default: the stores of the folder).
        is_readable: False if the folder needs features, but they could not be opened.
        is_aligned: True if digests show that no file has changed since ``prepare`` wrote the
            folder. The files are then not compared with each other.
    """
    if not os.path.isdir(folder):
        yield problem(folder, "no such folder", "make it with fairseq-mm prepare")
        return
    from fairseq_mm.prepare.data_folder import is_half_moved

    if is_half_moved(folder):
        text = "a run of prepare was killed before its files had moved out of .partial"
        yield problem(folder, text, "run the same fairseq-mm prepare again, which moves them")
        return
    root, name = find_data_folder(folder)
    kind = KINDS[name]
    if is_text_alone(root):
        yield from _check_text_alone(root, is_aligned)
        return
    if not is_readable and kind.inputs == "images":
        text = "its text is not checked, as no task can be set up without features"
        yield note(folder, text, "repair the features first")
        return
    try:
        task = set_up(kind.task, root, features if kind.inputs != "prompts" else None)
    except UserError as error:
        yield problem(folder, str(error), ANEW)
        return
    except Exception as error:  # a broken package can raise any error
        text = f"its text is not checked ({describe_error(error)})"
        yield note(folder, text, "repair the installation first")
        return
    dictionaries = [task.source_dictionary, task.target_dictionary] if kind.languages else []
    for file, dictionary in zip(kind.dictionaries, dictionaries or [task.target_dictionary]):
        words = len(dictionary) - dictionary.nspecial
        yield ok(os.path.join(root, file), f"{words} words")
    if kind.inputs == "videos":
        yield from _check_subwords(root, task)
        if features is None and not (is_readable and needs_features(root)):
            if is_readable:
                text = "has no features.h5; models that read the transcript alone need none"
                yield note(root, text, "make it with fairseq-mm extract")
            # The task opens features unless its model reads text only, and it truncates texts to
            # the model's positions. This stand-in reads text only and has no such limit.
            any_positions = (_ANY_LENGTH, _ANY_LENGTH)
            reader = SimpleNamespace(reads_video=False, max_positions=lambda: any_positions)
            task.models.append(reader)
    checks = _SplitChecks(task, root, kind, is_aligned=is_aligned)
    if kind.inputs == "prompts":
        yield from checks.check_language_models()
    splits = [split for split in SPLITS if _has_split(root, split)]
    if not splits:
        text = f"has none of the splits {', '.join(SPLITS)}"
        yield problem(root, text, "run fairseq-mm prepare")
    for split in splits:
        yield from checks.check(split)


def _check_text_alone(folder: str, is_aligned: bool) -> Iterator[Finding]:
    from fairseq_mm.data.binarised_text import (
        check_no_empty_line,
        check_same_text,
        load_binarised_text,
        load_dictionary,
    )

    path = os.path.join(folder, "dict.txt")
    try:
        dictionary = load_dictionary(path)
    except UserError as error:
        yield problem(path, str(error), ANEW)
        return
    yield ok(path, f"{len(dictionary) - dictionary.nspecial} words")
    text = "has no images: its text is for SC-NLM and n-gram models"
    yield note(folder, text, "other models need a folder prepared with images")
    for split in SPLITS:
        base = os.path.join(folder, split)
        if not _has_split(folder, split):
            continue
        try:
            lines = load_binarised_text(base, num_types=len(dictionary), end=dictionary.eos())
            check_no_empty_line(f"{base}.idx", lines.sizes)
            text_path = os.path.join(folder, "text", f"{split}.txt")
            if not is_aligned and os.path.isfile(text_path):
                check_same_text(text_path, lines, base, dictionary)
            _check_tags(folder, split, lines.sizes)
        except UserError as error:
            yield problem(split, str(error), ANEW)
        else:
            yield ok(split, f"{len(lines)} lines of text alone")


def _has_split(root: str, split: str) -> bool:
    # Any file counts: a split that has lost only its index must be reported as damaged.
    files = glob(f"{escape(os.path.join(root, split))}.*")
    parts = [os.path.join(root, part, f"{split}.idx") for part in LANGUAGE_MODELS]
    has_file = any(file.endswith((".idx", ".bin", ".visual_ids")) for file in files)
    return has_file or any(map(os.path.exists, parts))


def _check_subwords(folder: str, task: Any) -> Iterator[Finding]:
    from fairseq_mm.data.indexed_oov import oov_token

    subwords = task.subwords
    options = read_prepare_record(folder).get("options")
    recorded = options.get("subwords_fingerprint") if isinstance(options, dict) else None
    indexed = [oov_token(k) for k in range(subwords.indexed_oov)]
    lacking = [token for token in indexed if token not in task.dictionary]
    if recorded not in (None, subwords.fingerprint):
        text = f"the folder was prepared with others ({recorded}) than it has now"
        yield problem("subwords", f"{text} ({subwords.fingerprint}, {subwords.kind})", ANEW)
    if lacking:
        text = f"the dictionary lacks {lacking[0]} of {len(indexed)} indexed OOV tokens"
        yield problem("subwords", text, ANEW)
    if recorded in (None, subwords.fingerprint) and not lacking:
        text = f"{subwords.kind}, {subwords.fingerprint}"
        more = f", {len(indexed)} indexed OOV tokens" if indexed else ""
        yield ok("subwords", text + more)


def _check_tags(folder: str, split: str, sizes: Any) -> None:
    """Raise UserError if a split has part-of-speech tags that do not fit its text.

    ``sizes`` has the number of tokens of each line; a line must have as many tags.
    """
    path, text_path = (os.path.join(folder, f"{split}.{end}") for end in ("tags", "idx"))
    if os.path.exists(path):
        from fairseq.data import Dictionary

        from fairseq_mm.data.pos_sequences import load_pos_sequences

        # Only lengths are compared, so that an empty dictionary of tags is enough.
        load_pos_sequences(path, Dictionary(), sizes=sizes, text_path=text_path)


def _check_references_fit(text_path: str, references_path: str, ids_path: str) -> None:
    """Raise UserError if a line of a split's text is a reference only of another image or video.

    No other check finds exchanged references: every file is readable, and all line counts agree.
    ``ids_path`` is the file with the image or video id of each line of the text.
    """
    from fairseq_mm.cli.score_alignment import extract_letters
    from fairseq_mm.data.input_files import read_lines
    from fairseq_mm.data.split_files import read_references, read_visual_ids

    references = {
        key: [extract_letters(text) for text in texts]
        for key, texts in read_references(references_path).items()
    }
    item_by_letters = {letters: key for key, texts in references.items() for letters in texts}
    for key, (number, line) in zip(read_visual_ids(ids_path), read_lines(text_path)):
        # Only letters are compared: references are as published, but the text was tokenized, may
        # be truncated, and has separators such as <sent>.
        words = [word for word in line.split() if word[0] + word[-1] != "<>"]
        letters = extract_letters(" ".join(words))
        is_own = any(own.startswith(letters) for own in references.get(key, []))
        if not is_own and letters in item_by_letters:
            raise UserError(
                f"{references_path}: line {number} of {text_path} must be among the references of "
                f"{key!r}, but is among those of {item_by_letters[letters]!r}."
            )


class _SplitChecks:
    """Checks of the splits of a data folder.

    Args:
        task: Task of the data folder. Its maximum lengths are removed, so that all texts and videos
            are loaded completely.
        folder: Path of the data folder.
        kind: Task, inputs and languages of the data folder.
        is_aligned: True if digests show that no file has changed since ``prepare`` wrote the
            folder. The files are then not compared with each other.
    """

    def __init__(self, task: Any, folder: str, kind: Kind, *, is_aligned: bool) -> None:
        self.task = task
        self.folder = folder
        self.kind = kind
        self.is_aligned = is_aligned
        # Findings name the task's limits, which are replaced below.
        self.limits = SimpleNamespace(**vars(task.cfg))
        for option in ("max_source_positions", "max_target_positions", "max_frames"):
            if hasattr(task.cfg, option):
                setattr(task.cfg, option, _ANY_LENGTH)
        # folder of a language model -> its dictionary, if it equals the dictionary of the pairs
        self.language_models: dict[str, Any] = {}

    def check_language_models(self) -> Iterator[Finding]:
        """Yield a problem if a language model's dictionary differs from the data folder's."""
        from fairseq_mm.data.binarised_text import load_dictionary

        for part, side in LANGUAGE_MODELS.items():
            path = os.path.join(self.folder, part, "dict.txt")
            if not os.path.isdir(os.path.dirname(path)):
                # Only prepare writes these folders, and only prepare records options.
                if "options" in read_prepare_record(self.folder):
                    text = "is missing; it is for language models only"
                    yield note(os.path.dirname(path), text, ANEW)
                continue
            dictionary = self.task.target_dictionary
            if part == "prompts":
                dictionary = self.task.source_dictionary
            try:
                if load_dictionary(path).symbols == dictionary.symbols:
                    self.language_models[part] = dictionary
                    continue
                text = f"is not the dictionary of the pairs, dict.{side}.txt"
            except UserError as error:
                text = str(error)
            yield problem(path, text, ANEW)

    def check(self, split: str) -> Iterator[Finding]:
        """Load a split, compare its files with each other, and yield its problems or its size."""
        cfg, inputs = self.task.cfg, self.kind.inputs
        references_path = os.path.join(self.folder, f"{split}.references.jsonl")
        # With --eval-gen, the task reads the references, as a validation does.
        if hasattr(cfg, "eval_gen"):
            cfg.eval_gen = split != "train" or os.path.exists(references_path)
        try:
            # `combine` and `epoch` tell the task that it loads the split for training.
            self.task.load_dataset(split, combine=False, epoch=1)
            dataset = self.task.datasets[split]
            if not self.is_aligned:
                self._check_lines(dataset)
            if inputs == "images":
                _check_tags(self.folder, split, dataset.target.sizes)
        except UserError as error:
            yield problem(split, str(error), ANEW)
            return
        findings = []
        if inputs != "prompts" and split != "train" and not os.path.exists(references_path):
            text = f"{references_path}: no such file; score and --eval-gen take the binarised text "
            text += "instead"
            if "options" in read_prepare_record(self.folder):
                findings.append(problem(split, text, ANEW))
            else:  # a folder of fairseq-preprocess
                remedy = "write the references as people wrote them, with punctuation"
                findings.append(note(split, text, remedy))
        if not self.is_aligned:
            for part in self.language_models:
                findings += self._check_language_model(dataset, part)
        if inputs == "images":
            text = f"{len(dataset)} lines of {len(set(dataset.visual_ids))} items"
        elif inputs == "prompts":
            text = f"{len(dataset)} pairs"
            for name, side in (("prompt", "source"), ("story", "target")):
                sizes = getattr(dataset, side).sizes
                text += f", longest {name} of {sizes.max():,} tokens"
                findings += self._check_positions(split, name, sizes, side)
        else:
            text = f"{len(dataset)} videos"
            for name, side in (("transcripts", "source"), ("summaries", "target")):
                description, share = self._describe_text(getattr(dataset, side), side)
                text += f"; {name} {description}"
                if share > _MANY_UNKNOWN:
                    many = f"{share:.0f} % of the tokens in {name} are unknown"
                    remedy = "prepare with a smaller --threshold, subwords, or more training text"
                    findings.append(note(split, many, remedy))
            if dataset.features is not None:
                text += f"; {self._describe_frames(dataset)}"
        yield from findings
        if not any(finding.level == "PROBLEM" for finding in findings):
            yield ok(split, text)

    def _check_lines(self, dataset: Any) -> None:
        """Compare the files of a loaded split with its binarised text.

        Raise UserError if a file has another number of lines, or if the references or the text
        before binarisation do not agree with the binarised text.
        """
        from fairseq_mm.data.binarised_text import check_same_text
        from fairseq_mm.data.input_files import check_line_counts, read_lines

        base = os.path.join(self.folder, dataset.split)
        counts = {base: len(dataset)}
        for ending in _LINE_BY_LINE:
            if os.path.isfile(f"{base}.{ending}"):
                counts[f"{base}.{ending}"] = sum(1 for _ in read_lines(f"{base}.{ending}"))
        check_line_counts(counts)
        texts = [("txt", base, dataset.target, self.task.target_dictionary)]
        if self.kind.languages:
            source, target = self.kind.languages
            pair = f"{base}.{source}-{target}"
            texts = [
                (source, f"{pair}.{source}", dataset.source, self.task.source_dictionary),
                (target, f"{pair}.{target}", dataset.target, self.task.target_dictionary),
            ]
        for ending, binarised, lines, dictionary in texts:
            text_path = os.path.join(self.folder, "text", f"{dataset.split}.{ending}")
            if os.path.isfile(text_path):
                check_same_text(text_path, lines, binarised, dictionary)
        references_path, ids_path = f"{base}.references.jsonl", f"{base}.visual_ids"
        if all(map(os.path.isfile, (text_path, references_path, ids_path))):
            _check_references_fit(text_path, references_path, ids_path)

    def _check_language_model(self, dataset: Any, part: str) -> Iterator[Finding]:
        """Yield a problem if a language model's folder has another text than the data folder.

        ``dataset`` is the loaded split, ``part`` the name of the folder: ``prompts`` or
        ``stories``.
        """
        from fairseq_mm.data.binarised_text import load_binarised_text

        # fairseq's language_modeling task would join the lines to blocks of tokens.
        dictionary = self.language_models[part]
        base = os.path.join(self.folder, part, dataset.split)
        try:
            lines = load_binarised_text(base, num_types=len(dictionary), end=dictionary.eos())
        except UserError as error:
            yield problem(dataset.split, str(error), ANEW)
            return
        pairs = dataset.source if part == "prompts" else dataset.target
        different = [i + 1 for i, (x, y) in enumerate(zip(pairs, lines)) if not x.equal(y)]
        if len(pairs.sizes) != len(lines.sizes) or different:
            where = f"{len(lines.sizes)} lines, not {len(pairs.sizes)}"
            if different:  # a line number helps more than the counts
                where = f"line {different[0]} differs"
            text = f"{base}.idx must be of the same text as the pairs, but is not ({where})"
            yield problem(dataset.split, text, ANEW)

    def _check_positions(self, split: str, name: str, sizes: Any, side: str) -> Iterator[Finding]:
        limit = getattr(self.limits, f"max_{side}_positions") - 2  # padding takes two positions
        if sizes.max() > limit:
            text = (
                f"the {name} of line {sizes.argmax() + 1} has {sizes.max():,} tokens, its end "
                f"included, but models have positions for {limit:,} by default "
                f"({(sizes > limit).sum()} such lines)"
            )
            remedy = f"train with --max-{side}-positions {sizes.max() + 2} or --truncate-{side}"
            yield note(split, text, remedy)

    def _describe_text(self, lines: Any, side: str) -> tuple[str, float]:
        """Return a description of the lengths of binarised texts, and the percentage of ``<unk>``.

        ``side``, ``source`` or ``target``, selects the length to which training truncates the
        texts.
        """
        sizes, limit = lines.sizes, getattr(self.limits, f"max_{side}_positions")
        unk = self.task.dictionary.unk()
        unknown = sum(int((lines[i] == unk).sum()) for i in range(len(lines)))
        # The </s> of each line is not counted; a text may have no other token.
        share = 100 * unknown / max(1, int(sizes.sum()) - len(sizes))
        cut = int((sizes > limit).sum())
        text = f"of {sizes.min()} to {sizes.max()} tokens, {cut} cut to {limit}"
        return f"{text}, {share:.2f} % unknown", share

    def _describe_frames(self, dataset: Any) -> str:
        import numpy as np

        keys, limit = dict.fromkeys(dataset.visual_ids), self.limits.max_frames
        rows = np.array([dataset.features.count_rows(key) for key in keys])
        return (
            f"videos of {rows.min()} to {rows.max()} rows of features, median {np.median(rows):g}, "
            f"{int((rows > limit).sum())} cut to {limit}"
        )
