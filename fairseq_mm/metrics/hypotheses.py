"""Reads generated texts: fairseq-generate's output, JSONL, plain text files, COCO results.

The format is detected from the content. Texts are returned by the id of their item (image, video or
story). If an item has several texts, the first or best is returned and the id is reported.
"""

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Optional

from fairseq_mm.data.input_files import decoded, parse_json, read_bytes
from fairseq_mm.errors import UserError

_LINE = re.compile(r"^([STHDP])-([0-9]{1,15})\t([^\t\n]*)\t?(.*)$", re.MULTILINE)
_SPLIT = re.compile(r"(?:'gen_subset': '|^Generate )([^'\s]*)(?:'| with beam)", re.MULTILINE)
_SCORES_REFERENCES = re.compile(r"(?:'score_reference': |\bscore_reference=)(True|False)")
_N_BEST = re.compile(r"(?:'nbest': |\bnbest=)([0-9]{1,9})")
# lines of commands that log the options of generation, but generate nothing
_OTHER_LOGS = re.compile(r"^.*\bfairseq_cli\.(?!generate\b).*$", re.MULTILINE)
_LOGGED_SETTINGS = re.compile(
    r"^.*\| INFO \| fairseq_cli\.generate \| (\{.*|Namespace\(.*)$", re.MULTILINE
)
# Settings that decide fairseq-generate's texts, as its log names them; the last six are the tasks'.
_SETTINGS = """
    path beam nbest lenpen unkpen min_len max_len_a max_len_b unnormalized no_repeat_ngram_size
    sampling sampling_topk sampling_topp typical_p temperature
    diverse_beam_groups diverse_beam_strength prefix_size seed no_seed_provided fp16 bf16 gen_subset
    features model_overrides
    allow_unk prefix_words min_words_per_sentence max_words_per_sentence repetition_penalty
    end_after_punctuation
"""
_DECODING = tuple(_SETTINGS.split())
# without the split: a run of another split is refused where the caller knows the split
_OF_ONE_RUN = [name for name in (*_DECODING, "data") if name != "gen_subset"]
# the log is at the head of the file, which may have gigabytes of texts
_LOG_CHARACTERS = 1 << 18
# shorter runs may equal their targets by chance
_LEAST_REPEATED = 10


@dataclass
class GeneratedOutput:
    """Parsed output of fairseq-generate. An item is a line of the split, numbered from 0."""

    splits: list[str]  # names of the splits in the log
    # value of ``--score-reference`` in the log; None without a log
    scores_references: Optional[bool]
    # number of an item -> file line and text of its ``S-`` line
    sources: dict[int, tuple[int, str]] = field(default_factory=dict)
    # number of an item -> file line and text of its ``T-`` line
    targets: dict[int, tuple[int, str]] = field(default_factory=dict)
    # number of an item -> scores and texts of its ``H-`` lines, in file order
    hypotheses: dict[int, list[tuple[float, str]]] = field(default_factory=dict)
    # the same for ``D-`` lines
    detokenised: dict[int, list[tuple[float, str]]] = field(default_factory=dict)
    # number of an item -> numbers of its ``P-`` lines
    positional: dict[int, list[str]] = field(default_factory=dict)
    # number of the file's last item if it lacks lines that all others have, so that its texts are
    # ignored
    cut_short: Optional[int] = None


@dataclass
class Hypotheses:
    """Generated texts by item id (of an image, a video or a story), in the order of the file."""

    texts: dict[str, str]  # item id -> text
    layout: str  # detected format of the file
    # ids of items that should have one text, but have several
    repeated: list[str] = field(default_factory=list)
    # number of further texts that are ignored without an error: lower ranks of an n-best list, and
    # texts of an item's second and later lines in the split
    unused: int = 0
    # ids of items whose lines are incomplete at the end of the file
    cut_short: list[str] = field(default_factory=list)
    # ids of all items, if every text equals its target in the ``T-`` line
    equal_to_targets: list[str] = field(default_factory=list)
    # parsed output of fairseq-generate; None for files of other formats
    output: Optional[GeneratedOutput] = None

    def add_all(self, pairs: Iterable[tuple[str, str]], path: str) -> "Hypotheses":
        """Add pairs (id, text). Neighbouring texts of one item are an n-best list; if all ids occur
        again later, the file ``path`` consists of several runs."""
        last, returned = None, set()
        for key, text in pairs:
            if key in self.texts:
                if key not in self.repeated:
                    self.repeated.append(key)
                if key != last:
                    returned.add(key)
            self.texts.setdefault(key, text)
            last = key
        if len(returned) == len(self.texts) > 1:
            raise _several_runs(path, f"each id (such as {self.repeated[0]!r}) comes twice or more")
        return self


def _several_runs(where: str, why: str) -> UserError:
    return UserError(
        f"{where}: {why}: the file must hold one run, but holds several; score each run by itself."
    )


def read_text(path: str) -> str:
    # progress bars and Windows end lines with \r, too
    return re.sub("\r\n?", "\n", decoded(read_bytes(path), path))


def read_hypotheses(
    path: str,
    *,
    item_ids: Sequence[str],
    visual_ids: Optional[Sequence[Any]] = None,
    split: Optional[str] = None,
) -> Hypotheses:
    """Read a file of generated texts.

    Args:
        path: Path of the file.
        item_ids: Ids of the items that have references, in order. Line i of a plain text file is
            the text of item i, unless the lines are an id, a tab and a text.
        visual_ids: Item id of each line of the split, for the output of fairseq-generate, and for
            plain text files with one line per line of the split.
        split: Name of the split; output of fairseq-generate for another split is refused. None
            accepts any split.
    """
    text = read_text(path)
    # an empty list is a COCO results file without captions; a fairseq-generate without hypotheses
    # has other lines
    if re.fullmatch(r"\s*(\[\s*\]\s*)?|([STPAIE]-[0-9]+\s.*\n|\s*\n)+", text):
        raise UserError(
            f"{path}: must have generated texts, such as lines H-NUMBER, score and text of "
            f"fairseq-generate, but begins with {text[:40]!r}."
        )
    # a caption may begin with a bracket too: only a bracket and an object are JSON
    if re.match(r"\s*\[\s*\{", text):
        pairs = [_read_entry(x, f"{path}: entry {i}") for i, x in enumerate(parse_json(text, path))]
        return Hypotheses({}, "coco").add_all(pairs, path)
    if re.match(r"\s*\{", text):
        return _read_jsonl(path, text)
    if re.search(r"^[HD]-[0-9]{1,15}\t", text, re.MULTILINE):
        return _read_generated(path, text, visual_ids, split)
    lines = text.removesuffix("\n").split("\n")
    return _read_plain(path, lines, item_ids, visual_ids)


def _read_entry(entry: Any, where: str) -> tuple[str, str]:
    """Return id and text of an entry of COCO results or of a record of JSONL."""
    entry = entry if isinstance(entry, dict) else {}
    key = entry.get("id", entry.get("image_id"))
    text = entry.get("hypothesis", entry.get("caption"))
    if text is None and isinstance(entry.get("story"), str):  # what people wrote for a prompt
        text = " ".join(entry["story"].replace("\n", " <newline> ").split())
    # True is an int in Python, but no id
    if not isinstance(text, str) or not isinstance(key, (str, int)) or isinstance(key, bool):
        raise UserError(
            f'{where}: must be {{"id": "...", "hypothesis": "..."}} or COCO\'s {{"image_id": ..., '
            f'"caption": "..."}}, but is {str(entry)[:60]!r} instead.'
        )
    return str(key), text


def _read_jsonl(path: str, text: str) -> Hypotheses:
    pairs = []
    made_by: dict[str, tuple[int, Any]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        entry = parse_json(line, f"{path}:{number}")
        pairs.append(_read_entry(entry, f"{path}:{number}"))
        for name in ("checkpoint", "options"):
            first, value = made_by.setdefault(name, (number, entry.get(name)))
            if entry.get(name) != value:
                raise _several_runs(f"{path}:{number}", f"has another {name!r} than line {first}")
    return Hypotheses({}, "jsonl").add_all(pairs, path)


def _read_generated(
    path: str, text: str, visual_ids: Optional[Sequence[Any]], split: Optional[str]
) -> Hypotheses:
    output = parse_generated(path, text)
    # its H- lines are the references: every metric would be perfect
    if output.scores_references:
        raise UserError(
            f"{path}: is the output of fairseq-generate --score-reference, whose texts are the "
            "references; give it as --reference-scores."
        )
    if visual_ids is None:
        raise UserError(
            f"{path}: is fairseq-generate's output, whose line numbers need --data and --split to "
            "be joined with references."
        )
    # line numbers of another split would be accepted just as well, and give wrong scores
    for generated in output.splits:
        if split is not None and split not in generated.split(","):
            raise UserError(
                f"{path}: was generated for the split {generated}, but --split is {split}."
            )
    # fairseq prints a detokenised text (D-) in addition to its tokens (H-)
    lines = {**output.hypotheses, **output.detokenised}
    if lines and max(lines) >= len(visual_ids):
        raise UserError(
            f"{path}: line {max(lines)} must be one of the split's {len(visual_ids)} lines "
            "(counted from 0); it was generated from another split or data folder."
        )
    hypotheses = Hypotheses({}, "fairseq-generate", output=output)
    # an n-best list has equally many texts for every line; more texts of a line are repetitions
    n_best = min(map(len, lines.values()), default=0)
    for number in sorted(lines):
        texts, key = lines[number], str(visual_ids[number])
        if key in hypotheses.texts:  # a later line of the same item
            hypotheses.unused += len(texts)
            continue
        best = max(texts, key=lambda scored: scored[0]) if n_best > 1 else texts[0]
        hypotheses.texts[key] = best[1]
        hypotheses.unused += n_best - 1
        if len(texts) > n_best:
            hypotheses.repeated.append(key)
    if output.cut_short is not None and output.cut_short < len(visual_ids):
        key = str(visual_ids[output.cut_short])
        if key not in hypotheses.texts:  # no earlier line of the item is scored
            hypotheses.cut_short.append(key)
    # a log has the value of --score-reference; without one, texts may all equal their targets
    if output.scores_references is None and len(output.hypotheses) >= _LEAST_REPEATED:
        # in targets fairseq prints <<unk>>, so that an unknown word equals no hypothesis
        targets = {i: text.replace("<<unk>>", "<unk>") for i, (_, text) in output.targets.items()}
        scored = output.hypotheses.items()
        if all(words == targets.get(i) for i, texts in scored for _, words in texts):
            hypotheses.equal_to_targets = list(hypotheses.texts)
    return hypotheses


def _begin_with_ids(path: str, lines: Sequence[str], item_ids: Sequence[str]) -> bool:
    """Return True if all lines have a tab, and one begins with an id or a path that ends with an
    id. Raise UserError if most lines begin so, but one has no tab: the file was cut short."""
    known = set(item_ids)
    keys = [line.split("\t")[0] for line in lines if "\t" in line]
    count = sum(key in known or PurePosixPath(key).name in known for key in keys)
    if len(keys) == len(lines):
        return count > 0
    if 2 * count <= len(lines):
        return False
    number = next(number for number, line in enumerate(lines, 1) if "\t" not in line)
    raise UserError(
        f"{path}:{number}: must be an id, a tab and a text, as other lines are, but has no tab."
    )


def _read_plain(
    path: str, lines: list[str], item_ids: Sequence[str], visual_ids: Optional[Sequence[Any]]
) -> Hypotheses:
    if _begin_with_ids(path, lines, item_ids):
        pairs = [(key, text) for key, text, *_ in (line.split("\t") for line in lines)]
        return Hypotheses({}, "ids and text").add_all(pairs, path)
    if len(lines) == len(item_ids):
        return Hypotheses(dict(zip(item_ids, lines)), "text")
    if visual_ids is None or len(lines) != len(visual_ids):
        of_split = "" if visual_ids is None else f" or the split's {len(visual_ids)} lines"
        raise UserError(
            f"{path}: must have a line for each of {len(item_ids)} items{of_split}, but has "
            f"{len(lines)} lines."
        )
    hypotheses = Hypotheses({}, "text")
    # an item has several lines in a split: equal texts are no repetition
    for key, line in zip(visual_ids, lines):
        if hypotheses.texts.setdefault(key, line) != line and key not in hypotheses.repeated:
            hypotheses.repeated.append(key)
    hypotheses.unused = len(lines) - len(hypotheses.texts)
    return hypotheses


def read_settings(log: str, names: Iterable[str] = _DECODING) -> dict[str, object]:
    """Read the settings ``names`` from the line of fairseq-generate's log that lists all settings;
    leave out settings that are not in the line."""
    settings: dict[str, object] = {}
    for name in names:
        value = re.search(rf"(?:'{name}': |\b{name}=)('[^']*'|[^\s,{{}}()]+)", log)
        if value is None:
            continue
        try:
            settings[name] = ast.literal_eval(value.group(1))
        except (ValueError, SyntaxError):
            settings[name] = value.group(1)
    return settings


def decoding_settings(path: str) -> dict[str, object]:
    """Read the decoding settings of generated texts from the log in fairseq-generate's output or
    from the field ``options`` of JSONL; return an empty dict if there are none."""
    with open(path, encoding="utf-8", errors="replace") as file:
        head = file.read(_LOG_CHARACTERS)
    if not head.lstrip().startswith("{"):
        return next(map(read_settings, _LOGGED_SETTINGS.findall(head)), {})
    try:
        entry = parse_json(head.lstrip().split("\n", 1)[0])
    except ValueError:
        return {}
    options = entry.get("options") if isinstance(entry, dict) else None
    return options if isinstance(options, dict) else {}


def allows_unk(path: str) -> Optional[bool]:
    """Return True if the model was allowed to generate ``<unk>`` in a file's texts, False if not;
    None if the file does not say so."""
    value = decoding_settings(path).get("allow_unk")
    return value if isinstance(value, bool) else None


def find_splits(text: str) -> list[str]:
    """Return the names of the splits in the log of fairseq-generate, each once."""
    return list(dict.fromkeys(_SPLIT.findall(_OTHER_LOGS.sub("", text))))


def parse_generated(path: str, text: str) -> GeneratedOutput:
    """Parse ``text``, the content of the file ``path``: the output of one fairseq-generate run, or
    the joined outputs of its shards."""
    _check_logs_agree(path, text)
    log = _OTHER_LOGS.sub("", text)
    logged = {value == "True" for value in _SCORES_REFERENCES.findall(log)}
    output = GeneratedOutput(find_splits(text), True in logged if logged else None)
    limit = max(map(int, _N_BEST.findall(log)), default=None)
    texts = {"S": output.sources, "T": output.targets}
    scored_texts = {"H": output.hypotheses, "D": output.detokenised}
    first_lines: dict[tuple[str, int], int] = {}
    last_numbers: dict[str, int] = {}
    kinds: dict[int, set[str]] = {}
    number, file_line, position = -1, 1, 0
    for match in _LINE.finditer(text):
        # from the last match on: counting from the beginning would take quadratic time
        file_line += text.count("\n", position, match.start())
        position = match.start()
        kind, number, score = match[1], int(match[2]), match[3]
        first_line = first_lines.setdefault((kind, number), file_line)
        # S and T are printed once; the lines of an n-best list follow one another
        is_repeated = first_line < file_line and (kind in "ST" or last_numbers[kind] != number)
        last_numbers[kind] = number
        kinds.setdefault(number, set()).add(kind)
        if kind in texts:
            texts[kind].setdefault(number, (file_line, match[0].split("\t", 1)[1]))
        elif kind == "P":
            output.positional.setdefault(number, []).append(match[0].split("\t", 1)[1])
        elif kind in scored_texts:
            scored = scored_texts[kind].setdefault(number, [])
            try:
                scored.append((float(score), match[4]))
            except ValueError:
                raise UserError(
                    f"{path}: {kind}-{number} must have a score and a text, separated by tabs, "
                    f"but has {score[:40]!r} for a score."
                ) from None
            is_repeated = is_repeated or (limit is not None and len(scored) > limit)
        if is_repeated:
            why = f"{kind}-{number} is in line {first_line} already"
            raise _several_runs(f"{path}:{file_line}", why)
    others = [item_kinds for item, item_kinds in kinds.items() if item != number]
    if others and not kinds[number] >= set.intersection(*others):
        # the file was cut short within its last item: its text may be half a line
        output.cut_short = number
        output.hypotheses.pop(number, None)
        output.detokenised.pop(number, None)
    return output


def _check_logs_agree(path: str, text: str) -> None:
    first: dict[str, tuple[int, object]] = {}
    for match in _LOGGED_SETTINGS.finditer(text):
        file_line = text.count("\n", 0, match.start()) + 1
        for name, value in read_settings(match[1], _OF_ONE_RUN).items():
            first_line, expected = first.setdefault(name, (file_line, value))
            if value != expected:
                why = f"its log has {name} {value!r}, but the log of line {first_line} has "
                raise _several_runs(f"{path}:{file_line}", f"{why}{expected!r}")
