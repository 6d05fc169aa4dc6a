"""The doctor's findings of feature stores and data folders: what opening the stores, setting up the
task and loading its splits say."""

import os
import stat
from collections.abc import Iterator, Sequence
from glob import escape, glob
from types import SimpleNamespace
from typing import Any, NamedTuple, Optional

from fairseq_mm.cli.doctor_environment import Finding, note, ok, problem, reason_of
from fairseq_mm.data.input_files import read_json
from fairseq_mm.errors import UserError

SPLITS = ("train", "valid", "test")
ANEW = "prepare the folder anew with fairseq-mm prepare"
# folder of a language model -> side of the prompts and stories that it is of
LANGUAGE_MODELS = {"prompts": "wp_source", "stories": "wp_target"}
# longer than any text or video: the doctor counts what would be cut, and cuts nothing
_ANY_LENGTH = 10**9
# percent of a text's tokens outside the vocabulary that are more than rare words
_MANY_UNKNOWN = 20


class Kind(NamedTuple):
    """A kind of data folder.

    Attributes:
        task: that reads it.
        inputs: ``input_kind`` of that task.
        languages: endings of its texts and dictionaries; none where there is one of each.
    """

    task: str
    inputs: str
    languages: tuple[str, ...] = ()

    @property
    def dictionaries(self) -> list[str]:
        return [f"dict.{language}.txt" for language in self.languages] or ["dict.txt"]


# by the names that prepare.json has for them
KINDS = {
    "captions": Kind("multimodal_captioning", "images"),
    "visual stories": Kind("visual_storytelling", "images"),
    "prompts": Kind("hierarchical_story", "prompts", ("wp_source", "wp_target")),
    "videos": Kind("video_summarization", "videos", ("tran", "desc")),
}


def check_file_types(folder: str) -> Iterator[Finding]:
    """Find pipes and devices in a data folder, which a reader would wait for or never finish."""
    parent, name = os.path.split(os.path.abspath(folder))
    places = [folder, *(os.path.join(folder, inner) for inner in ("text", *LANGUAGE_MODELS))]
    if name in LANGUAGE_MODELS and os.path.exists(os.path.join(parent, "dict.wp_source.txt")):
        places.append(parent)
    for place in places:
        for entry in sorted(os.listdir(place)) if os.path.isdir(place) else ():
            path = os.path.join(place, entry)
            mode = os.stat(path).st_mode if os.path.exists(path) else stat.S_IFREG
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                text = "must be a file, but is a pipe or a device; nothing else is checked"
                yield problem(path, text, f"remove it, and {ANEW}")


def folder_of(folder: str) -> tuple[str, str]:
    """The data folder, which holds a language model's part, and its kind."""
    parent, name = os.path.split(os.path.abspath(folder))
    for place in (folder, parent) if name in LANGUAGE_MODELS else (folder,):
        kind = str(prepared_as(place).get("kind"))
        for other in ("prompts", "videos"):
            if any(os.path.exists(os.path.join(place, x)) for x in KINDS[other].dictionaries):
                kind = other
        if kind in KINDS and (place == folder or kind == "prompts"):
            return place, kind
    has_sentences = any(x.startswith("<sent> ") for x in _lines(os.path.join(folder, "dict.txt")))
    return folder, "visual stories" if has_sentences else "captions"


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return list(file)
    except OSError:
        return []


def prepared_as(folder: str) -> dict[str, Any]:
    """The content of ``prepare.json``, empty where there is none."""
    try:
        content = read_json(os.path.join(folder, "prepare.json"))
    except UserError:
        return {}
    return content if isinstance(content, dict) else {}


def needs_features(folder: str) -> bool:
    """Whether features are expected beside the text: summarizers may read transcripts alone."""
    inputs = KINDS[folder_of(folder)[1]].inputs
    if is_text_alone(folder):
        return False
    names = ("features.h5", "features.json")
    has_features = any(os.path.exists(os.path.join(folder, name)) for name in names)
    return inputs == "images" or (inputs == "videos" and has_features)


def is_text_alone(folder: str) -> bool:
    """Whether it is of captions without images, as ``prepare captions --without-images`` makes."""
    root, name = folder_of(folder)
    of_images = ["features.h5", "features.json"]
    of_images += [f"{split}.{x}" for split in SPLITS for x in ("visual_ids", "references.jsonl")]
    return (
        name == "captions"
        and any(os.path.exists(os.path.join(root, f"{split}.idx")) for split in SPLITS)
        and not any(os.path.exists(os.path.join(root, file)) for file in of_images)
    )


def check_features(folder: Optional[str], paths: Optional[str]) -> tuple[Any, list[Finding]]:
    """The stores that are given, or else the folder's, opened as one, and what was found; None
    where they cannot be."""
    subject = paths or os.path.join(folder or "", "features.h5")
    try:
        from fairseq_mm.data.feature_store import open_folder_features
    except ImportError as error:
        return None, [note(subject, f"not checked ({error})", "repair h5py and numpy first")]
    try:
        store = open_folder_features(folder or "", paths)
        store.check_finite(reread=True)
        for one in store.stores:
            if one.content_checksum:
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
        if folder and KINDS[folder_of(folder)[1]].inputs == "videos":
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
    """A task of a data folder, with its defaults.

    Raises:
        UserError: if the folder's files are missing or do not fit.
    """
    import fairseq_mm

    fairseq_mm.register()
    from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY

    options: dict[str, Any] = {"features": features} if features else {}
    cfg = TASK_DATACLASS_REGISTRY[task](data=folder, seed=1, **options)
    return TASK_REGISTRY[task].setup_task(cfg)


def check_data(
    folder: str, features: Optional[str], *, is_readable: bool, is_aligned: bool = False
) -> Iterator[Finding]:
    """
    Args:
        folder: of the data.
        features: feature stores that are given, or None.
        is_readable: False where features are expected, and cannot be read.
        is_aligned: all files have the digests that were recorded when they were written.
    """
    if not os.path.isdir(folder):
        yield problem(folder, "no such folder", "make it with fairseq-mm prepare")
        return
    from fairseq_mm.prepare.data_folder import is_half_moved

    if is_half_moved(folder):
        text = "a run of prepare was killed before its files had moved out of .partial"
        yield problem(folder, text, "run the same fairseq-mm prepare again, which moves them")
        return
    root, name = folder_of(folder)
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
    except Exception as error:  # a broken package raises anything
        text = f"its text is not checked ({reason_of(error)})"
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
            any_positions = (_ANY_LENGTH, _ANY_LENGTH)
            reader = SimpleNamespace(reads_video=False, max_positions=lambda: any_positions)
            task.models.append(reader)
    parts: list[str] = []
    if kind.inputs == "prompts":
        yield from _check_parts(root, task, parts)
    splits = [split for split in SPLITS if _has_split(root, split)]
    if not splits:
        text = f"has none of the splits {', '.join(SPLITS)}"
        yield problem(root, text, "run fairseq-mm prepare")
    limits = SimpleNamespace(**vars(task.cfg))
    for option in ("max_source_positions", "max_target_positions", "max_frames"):
        if hasattr(task.cfg, option):
            setattr(task.cfg, option, _ANY_LENGTH)
    for split in splits:
        yield from _check_split(task, root, split, kind, limits, parts, is_aligned)


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


def _check_parts(folder: str, task: Any, parts: list[str]) -> Iterator[Finding]:
    """Adds to ``parts`` the language models' folders that have the dictionary of the pairs."""
    from fairseq_mm.data.binarised_text import load_dictionary

    for part, side in LANGUAGE_MODELS.items():
        path = os.path.join(folder, part, "dict.txt")
        if not os.path.isdir(os.path.dirname(path)):
            if "options" in prepared_as(folder):  # prepare made the folder
                text = "is missing; it is for language models only"
                yield note(os.path.dirname(path), text, ANEW)
            continue
        try:
            if load_dictionary(path).symbols == _dictionary_of(task, part).symbols:
                parts.append(part)
                continue
            text = f"is not the dictionary of the pairs, dict.{side}.txt"
        except UserError as error:
            text = str(error)
        yield problem(path, text, ANEW)


def _dictionary_of(task: Any, part: str) -> Any:
    is_source = LANGUAGE_MODELS[part] == "wp_source"
    return task.source_dictionary if is_source else task.target_dictionary


def _has_split(root: str, split: str) -> bool:
    files = glob(f"{escape(os.path.join(root, split))}.*")
    parts = [os.path.join(root, part, f"{split}.idx") for part in LANGUAGE_MODELS]
    return any(x.endswith((".idx", ".bin", ".visual_ids")) for x in files) or any(
        map(os.path.exists, parts)
    )


def _check_subwords(folder: str, task: Any) -> Iterator[Finding]:
    from fairseq_mm.data.indexed_oov import oov_token

    subwords = task.subwords
    options = prepared_as(folder).get("options")
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
    """
    Raises:
        UserError: If the split has part-of-speech tags, but not one for each token.
    """
    import numpy as np

    from fairseq_mm.data.binarised_text import check_line_counts
    from fairseq_mm.data.pos_sequences import check_alignment, read_tags

    path, text_path = (os.path.join(folder, f"{split}.{end}") for end in ("tags", "idx"))
    if os.path.exists(path):
        counts = [len(line.split()) for line in read_tags(path)]
        check_line_counts({text_path: len(sizes), path: len(counts)})
        check_alignment(path, np.array(counts), text_path, np.asarray(sizes) - 1)


# of a split, with a line for each line of text
_LINE_BY_LINE = ("ids", "stories.jsonl", "transcripts.jsonl", "unknowns.jsonl")


def _check_lines(task: Any, dataset: Any, folder: str, kind: Kind) -> None:
    """Compare the files that must agree line by line with the binarised text.

    Raises:
        UserError: If one has another number of lines, or the text is another.
    """
    from fairseq_mm.data.binarised_text import check_line_counts, check_same_text
    from fairseq_mm.data.input_files import read_lines

    base = os.path.join(folder, dataset.split)
    counts = {base: len(dataset)}
    for ending in _LINE_BY_LINE:
        if os.path.isfile(f"{base}.{ending}"):
            counts[f"{base}.{ending}"] = sum(1 for _ in read_lines(f"{base}.{ending}"))
    check_line_counts(counts)
    sides = (dataset.source, dataset.target) if kind.languages else (dataset.target,)
    for language, lines in zip(kind.languages or ("txt",), sides):
        path = os.path.join(folder, "text", f"{dataset.split}.{language}")
        is_source = bool(kind.languages) and language == kind.languages[0]
        dictionary = task.source_dictionary if is_source else task.target_dictionary
        ending = f".{'-'.join(kind.languages)}.{language}" if kind.languages else ""
        if os.path.isfile(path):
            check_same_text(path, lines, base + ending, dictionary)
    references_path, ids_path = f"{base}.references.jsonl", f"{base}.visual_ids"
    if all(map(os.path.isfile, (path, references_path, ids_path))):
        _check_references_fit(path, references_path, ids_path)


def _check_references_fit(text_path: str, references_path: str, ids_path: str) -> None:
    """Compare the text with the references, which have it as it was published.

    Raises:
        UserError: If the text of an item is a reference of another item and none of its own.
    """
    from fairseq_mm.cli.score_alignment import letters_of
    from fairseq_mm.data.input_files import read_lines
    from fairseq_mm.data.split_files import read_references, read_visual_ids

    references = {
        key: [letters_of(text) for text in texts]
        for key, texts in read_references(references_path).items()
    }
    item_of = {letters: key for key, texts in references.items() for letters in texts}
    for key, (number, line) in zip(read_visual_ids(ids_path), read_lines(text_path)):
        words = [word for word in line.split() if word[0] + word[-1] != "<>"]  # such as <sent>
        letters = letters_of(" ".join(words))
        is_own = any(own.startswith(letters) for own in references.get(key, []))
        if not is_own and letters in item_of:
            raise UserError(
                f"{references_path}: line {number} of {text_path} must be among the references of "
                f"{key!r}, but is among those of {item_of[letters]!r}."
            )


def _check_split(
    task: Any,
    folder: str,
    split: str,
    kind: Kind,
    limits: Any,
    parts: Sequence[str],
    is_aligned: bool,
) -> Iterator[Finding]:
    """
    Args:
        task: of the folder.
        folder: of the data.
        split: its name.
        kind: of the folder.
        limits: the task's options before they were made to cut nothing.
        parts: language models' folders.
        is_aligned: digests have shown that no file was changed.
    """
    base = os.path.join(folder, split)
    if hasattr(task.cfg, "eval_gen"):  # its references are read as for validation
        task.cfg.eval_gen = split != "train" or os.path.exists(f"{base}.references.jsonl")
    try:
        task.load_dataset(split, combine=False, epoch=1)
        dataset = task.datasets[split]
        if not is_aligned:
            _check_lines(task, dataset, folder, kind)
        if kind.inputs == "images":
            _check_tags(folder, split, dataset.target.sizes)
    except UserError as error:
        yield problem(split, str(error), ANEW)
        return
    findings = list(_check_references(folder, split, kind))
    if not is_aligned:
        findings += [x for part in parts for x in _check_part(task, dataset, folder, part)]
    if kind.inputs == "images":
        text = f"{len(dataset)} lines of {len(set(dataset.visual_ids))} items"
    elif kind.inputs == "prompts":
        text = f"{len(dataset)} pairs"
        for name, lines, side in _texts(dataset, ("prompt", "story")):
            text += f", longest {name} of {lines.sizes.max():,} tokens"
            findings += _check_positions(split, name, lines.sizes, side, limits)
    else:
        text = f"{len(dataset)} videos"
        for name, lines, side in _texts(dataset, ("transcripts", "summaries")):
            described, share = _describe(lines, getattr(limits, f"max_{side}_positions"), task)
            text += f"; {name} {described}"
            if share > _MANY_UNKNOWN:
                many = f"{share:.0f} % of the tokens in {name} are unknown"
                remedy = "prepare with a smaller --threshold, subwords, or more training text"
                findings.append(note(split, many, remedy))
        if dataset.features is not None:
            text += f"; {_describe_frames(dataset, limits.max_frames)}"
    yield from findings
    if not any(finding.level == "PROBLEM" for finding in findings):
        yield ok(split, text)


def _check_references(folder: str, split: str, kind: Kind) -> Iterator[Finding]:
    path = os.path.join(folder, f"{split}.references.jsonl")
    if kind.inputs == "prompts" or split == "train" or os.path.exists(path):
        return
    text = f"{path}: no such file; score and --eval-gen take the binarised text instead"
    if "options" in prepared_as(folder):
        yield problem(split, text, ANEW)
    else:  # a folder of fairseq-preprocess
        yield note(split, text, "write the references as people wrote them, with punctuation")


def _texts(dataset: Any, names: Sequence[str]) -> Iterator[tuple[str, Any, str]]:
    return zip(names, (dataset.source, dataset.target), ("source", "target"))


def _check_part(task: Any, dataset: Any, folder: str, part: str) -> Iterator[Finding]:
    """Whether a language model's folder has the text of the pairs."""
    from fairseq_mm.data.binarised_text import load_binarised_text

    dictionary = _dictionary_of(task, part)
    base = os.path.join(folder, part, dataset.split)
    try:
        lines = load_binarised_text(base, num_types=len(dictionary), end=dictionary.eos())
    except UserError as error:
        yield problem(dataset.split, str(error), ANEW)
        return
    texts = dataset.source if part == "prompts" else dataset.target
    other = [i + 1 for i, (x, y) in enumerate(zip(texts, lines)) if not x.equal(y)]
    theirs, ours = lines.sizes, texts.sizes
    if len(ours) != len(theirs) or other:
        where = f"line {other[0]} differs" if other else f"{len(theirs)} lines, not {len(ours)}"
        text = f"{base}.idx must be of the same text as the pairs, but is not ({where})"
        yield problem(dataset.split, text, ANEW)


def _check_positions(
    split: str, name: str, sizes: Any, side: str, limits: Any
) -> Iterator[Finding]:
    limit = getattr(limits, f"max_{side}_positions") - 2  # two positions are padding's
    if sizes.max() > limit:
        text = (
            f"the {name} of line {sizes.argmax() + 1} has {sizes.max():,} tokens, its end "
            f"included, but models have positions for {limit:,} by default ({(sizes > limit).sum()}"
            " such lines)"
        )
        remedy = f"train with --max-{side}-positions {sizes.max() + 2} or --truncate-{side}"
        yield note(split, text, remedy)


def _describe(lines: Any, limit: int, task: Any) -> tuple[str, float]:
    """Lengths of a text and the percentage of its tokens outside the vocabulary."""
    sizes, unk = lines.sizes, task.dictionary.unk()
    unknown = sum(int((lines[i] == unk).sum()) for i in range(len(lines)))
    share = 100 * unknown / max(1, int(sizes.sum()) - len(sizes))
    cut = int((sizes > limit).sum())
    text = f"of {sizes.min()} to {sizes.max()} tokens, {cut} cut to {limit}, {share:.2f} % unknown"
    return text, share


def _describe_frames(dataset: Any, limit: int) -> str:
    import numpy as np

    rows = np.array([dataset.features.count_rows(key) for key in dict.fromkeys(dataset.visual_ids)])
    return (
        f"videos of {rows.min()} to {rows.max()} rows of features, median {np.median(rows):g}, "
        f"{int((rows > limit).sum())} cut to {limit}"
    )
