"""Parses fairseq-generate's output: a whole run, or the joined outputs of its shards."""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Optional

from fairseq_mm.errors import UserError

_LINE = re.compile(r"^([STHDP])-([0-9]{1,15})\t([^\t\n]*)\t?(.*)$", re.MULTILINE)
_SPLIT = re.compile(r"(?:'gen_subset': '|^Generate )([^'\s]*)(?:'| with beam)", re.MULTILINE)
_SCORES_REFERENCES = re.compile(r"(?:'score_reference': |\bscore_reference=)(True|False)")
_N_BEST = re.compile(r"(?:'nbest': |\bnbest=)([0-9]{1,9})")
LOGGED_SETTINGS = re.compile(
    r"^.*\| INFO \| fairseq_cli\.generate \| (\{.*|Namespace\(.*)$", re.MULTILINE
)
# Settings that decide fairseq-generate's texts, as its log names them; the last six are the tasks'.
_DECODING = """
    path beam nbest lenpen unkpen min_len max_len_a max_len_b unnormalized no_repeat_ngram_size
    sampling sampling_topk sampling_topp typical_p temperature
    diverse_beam_groups diverse_beam_strength prefix_size seed no_seed_provided fp16 bf16 gen_subset
    features model_overrides
    allow_unk prefix_words min_words_per_sentence max_words_per_sentence repetition_penalty
    end_after_punctuation
"""
# without the split: a run of another split is refused where the caller knows the split
_OF_ONE_RUN = [name for name in (*_DECODING.split(), "data") if name != "gen_subset"]


@dataclass
class GeneratedOutput:
    """Parsed output of fairseq-generate. An item is a line of the split, numbered from 0.

    Args:
        splits: Names of the splits in the log.
        scores_references: Value of ``--score-reference`` in the log; None without a log.
        sources: Dict from the number of an item to the line number and text of its ``S-`` line.
        targets: Dict from the number of an item to the line number and text of its ``T-`` line.
        hypotheses: Dict from the number of an item to the scores and texts of its ``H-`` lines, in
            the order of the file.
        detokenised: Dict from the number of an item to the scores and texts of its ``D-`` lines, in
            the order of the file.
        cut_short: Number of the last item of the file, if it lacks lines that all other items
            have, so that its texts are ignored; otherwise None.
    """

    splits: list[str]
    scores_references: Optional[bool]
    sources: dict[int, tuple[int, str]] = field(default_factory=dict)
    targets: dict[int, tuple[int, str]] = field(default_factory=dict)
    hypotheses: dict[int, list[tuple[float, str]]] = field(default_factory=dict)
    detokenised: dict[int, list[tuple[float, str]]] = field(default_factory=dict)
    cut_short: Optional[int] = None

    def repeats_targets(self) -> bool:
        """Return True if every generated text equals its target, as with ``--score-reference``.

        The texts are not compared, and the result is False, if there are fewer than ten texts, or
        if the output has a log; ``scores_references`` then has the value of the option.
        """
        # a few generated texts may all be equal to their targets
        if self.scores_references is not None or len(self.hypotheses) < 10:
            return False
        return all(
            number in self.targets
            # in targets fairseq prints <<unk>>, so that an unknown word equals no hypothesis
            and all(
                words == self.targets[number][1].replace("<<unk>>", "<unk>") for _, words in scored
            )
            for number, scored in self.hypotheses.items()
        )


def read_settings(log: str, names: Iterable[str] = tuple(_DECODING.split())) -> dict[str, object]:
    """Read the settings ``names`` from fairseq-generate's log, which lists all settings in a line.

    Settings that are not in the line are left out.
    """
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


def has_generated_lines(path: str, text: str) -> bool:
    """Return True if ``text``, the content of the file ``path``, has ``H-`` or ``D-`` lines of
    fairseq-generate. Raise UserError if it has only other lines of fairseq-generate."""
    if re.search(r"^[HD]-[0-9]{1,15}\t", text, re.MULTILINE):
        return True
    lines = [line for line in text.split("\n") if line.strip()]
    if all(re.match(r"[STHDPAIE]-[0-9]+\s", line) for line in lines):
        raise UserError(
            f"{path}: must have lines H-NUMBER, score and text, separated by tabs, as "
            f"fairseq-generate prints them, but begins with {lines[0][:40]!r}."
        )
    return False


def _keep_log_of_generation(text: str) -> str:
    # other commands log the options of generation too, but generate nothing
    return re.sub(r"^.*\bfairseq_cli\.(?!generate\b).*$", "", text, flags=re.MULTILINE)


def find_splits(text: str) -> list[str]:
    """Return the names of the splits in the log of fairseq-generate, each once."""
    return list(dict.fromkeys(_SPLIT.findall(_keep_log_of_generation(text))))


def parse_generated(path: str, text: str) -> GeneratedOutput:
    """Parse ``text``, the content of the file ``path``: the output of one fairseq-generate run.

    If the split was generated in shards, the file may hold the joined outputs of all shards. Raise
    UserError if an ``H-`` or ``D-`` line has no score, a line of the split was generated more than
    once, or the logs of the shards have different settings.
    """
    log = _keep_log_of_generation(text)
    _check_logs_agree(path, text)
    logged = {value == "True" for value in _SCORES_REFERENCES.findall(log)}
    splits = find_splits(text)
    output = GeneratedOutput(splits, True in logged if logged else None)
    limit = max(map(int, _N_BEST.findall(log)), default=None)
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
        if kind in "ST":
            texts = output.sources if kind == "S" else output.targets
            texts.setdefault(number, (file_line, match[0].split("\t", 1)[1]))
        elif kind in "HD":
            generated = output.hypotheses if kind == "H" else output.detokenised
            scored = generated.setdefault(number, [])
            try:
                scored.append((float(score), match[4]))
            except ValueError:
                raise UserError(
                    f"{path}: {kind}-{number} must have a score and a text, separated by tabs, "
                    f"but has {score[:40]!r} for a score."
                ) from None
            is_repeated = is_repeated or (limit is not None and len(scored) > limit)
        if is_repeated:
            raise UserError(
                f"{path}:{file_line}: {kind}-{number} is in line {first_line} already: the file "
                "must hold one run of fairseq-generate, but holds several, or a line twice; score "
                "each run by itself."
            )
    others = [item_kinds for item, item_kinds in kinds.items() if item != number]
    if others and not kinds[number] >= set.intersection(*others):
        # the file was cut short within its last item: its text may be half a line
        output.cut_short = number
        output.hypotheses.pop(number, None)
        output.detokenised.pop(number, None)
    return output


def _check_logs_agree(path: str, text: str) -> None:
    first: dict[str, tuple[int, object]] = {}
    for match in LOGGED_SETTINGS.finditer(text):
        file_line = text.count("\n", 0, match.start()) + 1
        for name, value in read_settings(match[1], _OF_ONE_RUN).items():
            first_line, expected = first.setdefault(name, (file_line, value))
            if value != expected:
                raise UserError(
                    f"{path}:{file_line}: its log has {name} {value!r}, but the log of line "
                    f"{first_line} has {expected!r}: the file must hold one run, but holds "
                    "several; score each run by itself."
                )
