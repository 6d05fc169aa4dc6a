"""Scores generated texts against references.

  fairseq-mm score captions.jsonl --data data-bin/flickr8k --split valid
  fairseq-mm score results.json --references captions_val2014.json
  fairseq-mm score a.txt --data data-bin/flickr8k --compare b.txt --json s.json
  fairseq-mm score --constant --data data-bin/flickr8k
  fairseq-mm score --system A --text-only B --baseline 62.3,46.1,58.2

HYPOTHESES is the output of fairseq-generate, JSON lines with "id" and "hypothesis",
COCO results, or plain text. Presets: coco (coco-caption), m_rnn (Mao et al. 2015),
how2 (Yu et al. 2021), wp (Fan et al. 2018, without references), vist (VIST challenge).
Protocols, metrics and signatures: docs/metrics.md.
"""

import argparse
import difflib
import json
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
from tqdm.auto import tqdm

from fairseq_mm.cli import arguments, score_gain, score_inputs, score_models
from fairseq_mm.cli.arguments import NATURAL, POSITIVE, Rows, Rule, flag
from fairseq_mm.cli.records import counted, list_first
from fairseq_mm.cli.score_inputs import JoinedTexts, References, without_separators
from fairseq_mm.data.caption_text import CaptionTokenizer
from fairseq_mm.data.elapsed_time import elapsed_time
from fairseq_mm.data.output_file import write_file
from fairseq_mm.data.records import Split, open_split, split_names
from fairseq_mm.data.story_text import SEPARATOR, split_sentences, tokenize_story_text
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import SEED
from fairseq_mm.metrics.bootstrap import interval, p_value, resampled
from fairseq_mm.metrics.copying import CopiedRuns
from fairseq_mm.metrics.hypotheses import Hypotheses, allows_unk
from fairseq_mm.metrics.perplexity import perplexity_rows, read_log_probabilities
from fairseq_mm.metrics.ptb_tokenizer import ptb_tokenize
from fairseq_mm.metrics.result_card import result_card
from fairseq_mm.metrics.score_rows import FIRST_WORDS, Row, TokenizedItems, format_figure
from fairseq_mm.metrics.submissions import coco_results, vist_results
from fairseq_mm.metrics.text_scores import METRICS as TEXT_METRICS
from fairseq_mm.metrics.text_scores import Metric, names_of_figures, score_texts

_MODEL_OPTIONS = ("images", "clip_model", "bert_model")
METRICS = {
    **TEXT_METRICS,
    **score_models.METRICS,
    # of the lines of a split, not of items
    "perplexity": Metric(None, ("perplexity", "perplexity_sentence"), ("reference_scores",)),
}
# value of --constant without TEXT; an empty TEXT, as from an unset variable of a shell, differs
MOST_FREQUENT = "\0"
COMPARE_SAMPLES = 1000
_NAMED = 5  # ids in a message
_WIDTH = 80
_LEAST_NOTE = 24  # columns of a note, also in a wide table
# number of sequences -> name of the official test part; figures over one part say nothing about
# figures over the other
OFFICIAL_TEST_PARTS = {
    1938: "the official evaluation's template",
    2019: "the whole official test part",
}

Tokenizer = Callable[[str], list[str]]
_tokenize_m_rnn = CaptionTokenizer("m_rnn")
TOKENIZERS: dict[str, Tokenizer] = {
    "ptb": ptb_tokenize,
    # the rules would split <unk> at its brackets; the model generated it as one token
    "m_rnn": lambda text: _tokenize_m_rnn(text.replace("<unk>", "unk")),
    "wp": tokenize_story_text,
    "none": str.split,
}


class Preset(NamedTuple):
    """Evaluation protocol of a paper or challenge, which ``--preset`` names."""

    tokenizer: str  # name of the tokenizer, one of :data:`TOKENIZERS`
    metrics: tuple[str, ...]  # names of the metrics
    has_references: bool = True  # False if the protocol needs no references
    submission: str = ""  # challenge whose results ``--submission`` writes


PRESETS = {
    "coco": Preset(
        "ptb", ("bleu", "meteor", "rouge_l", "cider", "diversity", "novelty"), submission="coco"
    ),
    # none: words are what spaces separate, as in the tables of Yu et al.
    "how2": Preset("none", ("rouge", "bleu", "meteor", "cider", "content_f1", "novel_ngrams")),
    "m_rnn": Preset("m_rnn", ("bleu", "perplexity", "diversity", "novelty"), submission="coco"),
    "vist": Preset(
        "ptb",
        ("meteor_vist", "meteor", "bleu", "rouge_l", "cider", "diversity", "sentences"),
        submission="vist",
    ),
    # a prompt has many good stories: overlap with one reference says little
    "wp": Preset("none", ("diversity", "copying"), has_references=False),
}


_FILE = {"metavar": "FILE"}
_ARGUMENTS: Rows = {
    "inputs": ("Generated texts.", {"nargs": "?", "metavar": "HYPOTHESES"}),
    "--constant": (
        "Score one text for all items (default: most frequent).",
        {"nargs": "?", "const": MOST_FREQUENT, "metavar": "TEXT"},
    ),
    "--preset": ("Protocol (default: coco).", {"choices": PRESETS, "default": "coco"}),
    "--metrics": ("Metrics, or figures such as bleu4.", {"metavar": "NAMES"}),
    "--tokenizer": ("Tokens.", {"choices": TOKENIZERS}),
    "--first-words": (f"Words that first_distinct reads (default: {FIRST_WORDS}).", POSITIVE),
    "--references": ("JSON lines, COCO annotations, or lines.", _FILE),
    "--references-of": (
        "The item (default), or all stories of its album.",
        {"choices": ("item", "album")},
    ),
    "--reference-scores": ("Output of --score-reference, for perplexity.", _FILE),
}
_OUTPUT: Rows = {
    "--compare": ("Texts of another system, paired by item.", _FILE),
    "--bootstrap": (f"Resamples (default: 0; with --compare {COMPARE_SAMPLES}).", NATURAL),
    "--per-item": ("Write the scores of each item as JSON lines.", _FILE),
    "--submission": ("Write COCO's results or VIST's stories.", _FILE),
    "--signatures": ("Print how each figure was computed.", arguments.FLAG),
}
_TEXTS = ("inputs", "constant")
_RULES = (
    Rule(
        "system",
        (*_TEXTS, "reference_scores", "compare", "per_item", "submission", "metrics"),
        because="figures have no texts",
    ),
    *(Rule(x, needs=(y,)) for x in ("system", "text_only") for y in ("text_only", "baseline")),
    Rule("baseline", needs=("text_only",)),
    Rule("text_only", needs=("inputs", "system")),
    Rule("constant", ("inputs", "submission", "reference_scores")),
    Rule("submission", needs=("inputs",)),
    Rule("references_of", ("references",)),
    *(Rule(x, needs=_TEXTS) for x in ("compare", "per_item")),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "fairseq-mm score [HYPOTHESES] [--data DIR] [options]"
    split = {"help": "Default: that of HYPOTHESES, or valid."}
    arguments.add(parser, "data", "split", split=split)
    arguments.add_rows(parser, _ARGUMENTS)
    arguments.add_rows(parser, _OUTPUT)
    arguments.add(parser, "json", "seed", seed={**NATURAL, "default": SEED})
    arguments.add_rows(parser, score_models.ARGUMENTS)
    arguments.add(parser, "device", device={"help": "Device of the models."})
    arguments.add_rows(parser, score_gain.OPTIONS)


def run(args: argparse.Namespace) -> None:
    arguments.check(args, _RULES)
    arguments.require(args, *_TEXTS, "reference_scores", "system")
    texts = args.inputs or args.reference_scores
    # with --references, the folder that a record names is not needed
    source = None if args.references and args.data is None else texts
    args.data, args.split = score_inputs.find_source(source, args.data, args.split)
    preset = PRESETS[args.preset]
    submission = preset.submission
    if args.submission and not (submission == "coco" or (submission and args.data)):
        raise UserError("--submission: needs --preset coco or m_rnn, or vist with --data.")
    files = ("json", "per_item", "submission")
    arguments.check_outputs({name: getattr(args, name) for name in files})
    result: dict[str, Any] = {"preset": args.preset}
    if args.system is not None:
        result = score_gain.compute_gain(None, args)
        score_gain.print_gain(result)
        if args.json:
            write_file(args.json, json.dumps(result, indent=2, ensure_ascii=False) + "\n")
        return
    split = None
    # stories without references may be compared with training texts alone
    if args.data and (preset.has_references or args.split in split_names(args.data)):
        split = open_split(args.data, args.split)
    metrics, names = _select_metrics(args, split)
    samples = args.bootstrap
    if samples is None:
        samples = COMPARE_SAMPLES if args.compare else 0
    outputs = (args.metrics, args.json, args.per_item, args.compare)
    if args.submission and not any((*outputs, args.data, args.references)):
        captions = score_inputs.read_without_references(args.inputs, None)
        write_file(args.submission, _format_submission(preset, captions, None))
        count = counted(len(captions.texts), "caption")
        print(f"wrote {args.submission}: {count}; nothing to score them by", file=sys.stderr)
        return
    rows: list[Row] = []
    if args.inputs is not None or args.constant is not None:
        computed = [name for name in metrics if name != "perplexity"]
        rows, ids = _score(args, split, computed, names, result, samples)
    if "perplexity" in metrics:
        rows += [row for row in _perplexities(args, split) if row.name in names]
    result["scores"] = [make_entry(row, samples=samples, seed=args.seed) for row in rows]
    _print_result(result, with_signatures=args.signatures)
    if args.text_only:
        columns = {row.name: row.per_item for row in rows}
        figures = np.array([columns[name] for name in score_gain.METRICS], dtype=float).T
        system = score_gain.SystemScores(args.inputs, figures, ids)
        result["gain"] = score_gain.compute_gain(system, args)
        print()
        score_gain.print_gain(result["gain"])
    if args.json:
        inputs: dict[str, Optional[str]] = {
            "hypotheses": args.inputs,
            "compared": args.compare,
            "reference_scores": args.reference_scores,
            "references": args.references or (None if split is None else split.path),
            "dictionary": None if split is None else split.dictionary_path(),
        }
        training = _open_training(args) if {"novelty", "copying"} & {*metrics} else None
        if training is not None:
            inputs["training_text"] = training[0]
        card = result_card(inputs, texts)
        card["signatures"] = {row.name: row.signature for row in rows}
        card.update({key: x for key, x in result.items() if key == "visual_stories"})
        result["card"] = card
        write_file(args.json, json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    # after the files are written, whose notes say which input each figure lacks
    if all(row.value is None for row in rows):
        raise UserError(f"no figure could be computed; {rows[0].name}: {rows[0].note}")


def _format_submission(preset: Preset, system: JoinedTexts, split: Any) -> str:
    if preset.submission == "vist":
        return vist_results({key: without_separators(x) for key, x in system.texts.items()}, split)
    # the server has references of images that this data folder or file has not
    texts = {**system.texts, **system.without_references}
    return coco_results(texts, system.hypotheses.repeated)


def split_metrics(text: str, known: Collection[str]) -> tuple[list[str], set[str]]:
    """Parse ``--metrics``: return the named metrics, which must be ``known``, and the scores to
    print. ``bleu`` selects bleu1 to bleu4, ``bleu4`` only this score."""
    figures_of = {name: names_of_figures(name, METRICS) for name in known}
    # a name of a metric may be a score of another one, too: rouge_l
    owners = {x: name for name, figures in figures_of.items() for x in figures if x not in known}
    metrics: list[str] = []
    figures: set[str] = set()
    for name in map(str.strip, text.split(",")):
        metric = owners.get(name, name)
        if metric not in known:
            near = difflib.get_close_matches(name, (*known, *owners), n=1)
            raise UserError(
                f"--metrics: must be of {', '.join(known)}, or figures of them such as bleu4, but "
                f"has {name!r}{f'; did you mean {near[0]}?' if near else '.'}"
            )
        figures.update((name,) if name in owners else figures_of[metric])
        if metric not in metrics:
            metrics.append(metric)
    if {"rouge", "rouge_l"} <= {*metrics}:
        raise UserError(
            "--metrics: has rouge and rouge_l, which both make a row rouge_l: the former's has "
            "beta 1, the latter's is coco-caption's with beta 1.2."
        )
    return metrics, figures


def _select_metrics(args: argparse.Namespace, split: Optional[Split]) -> tuple[list[str], set[str]]:
    """Return the metrics of ``--metrics`` or ``--preset``, and the names of the scores to print."""
    preset = PRESETS[args.preset]
    named = args.metrics or ",".join(preset.metrics)
    if args.metrics is None and (split is None or not any(split.field("transcript"))):
        # a preset leaves the row out; --metrics novel_ngrams gets a row with a note on the lack
        named = ",".join(x for x in preset.metrics if "sources" not in METRICS[x].needs)
    if args.reference_scores is not None:
        has_texts = args.inputs is not None or args.constant is not None
        named = f"{named},perplexity" if has_texts else "perplexity"
    metrics, figures = split_metrics(named, METRICS)
    for name in metrics:
        for option in _MODEL_OPTIONS:
            if option in METRICS[name].needs and getattr(args, option) is None:
                raise UserError(f"--metrics {name}: needs {flag(option)}.")
    if args.text_only and "rouge" not in metrics:
        raise UserError("--text-only: needs --preset how2, or another one with --metrics rouge.")
    return metrics, figures


def _score(
    args: argparse.Namespace,
    split: Optional[Split],
    metrics: list[str],
    figures: Collection[str],
    result: dict[str, Any],
    samples: int,
) -> tuple[list[Row], list[str]]:
    """Score the texts. Return the first system's scores, and the ids of the scored items; add
    fields about each system's texts to ``result``."""
    preset = PRESETS[args.preset]
    references, systems = _read_systems(args, split, metrics)
    all_ids = list((references or systems[0]).texts)
    # systems are compared over the items that both have, so that each figure is over equal items
    ids = [key for key in all_ids if all(key in system.texts for system in systems)]
    if not ids:
        raise UserError(f"{args.inputs} and {args.compare}: have no item in common.")
    if args.submission:
        # before the metrics, which may take minutes or fail: the file does not need scores
        write_file(args.submission, _format_submission(preset, systems[0], split))
    reference_texts = [] if references is None else [references.texts[key] for key in ids]
    tokenizer = args.tokenizer or preset.tokenizer
    with elapsed_time("tokenize") as show:
        needs_models = bool({*metrics} & {*score_models.METRICS})
        models = score_models.build_scorer(args, ids, show) if needs_models else None
        scored = score_systems(
            [[system.texts[key] for key in ids] for system in systems],
            reference_texts,
            metrics,
            tokenizer,
            # a constant text has no file whose head could tell
            unk=[
                None if x.hypotheses.layout == "constant" else allows_unk(x.path) for x in systems
            ],
            show=show,
            models=models,
            training=_open_training(args) if "copying" in metrics else None,
            **_read_shared(args, split, metrics, ids, TOKENIZERS[tokenizer]),
        )
    tables = [[row for row in rows if row.name in figures] for _, rows in scored]
    for row in tables[0]:
        row.expected = len(all_ids)
    result["texts"] = [system.describe() for system in systems]
    if "meteor_vist" in preset.metrics and references is not None:
        result["visual_stories"] = describe_split(references, ids)
    if len(systems) == 2:
        result["comparison"] = compare(*tables, samples=samples, seed=args.seed)
    if args.per_item:
        items = scored[0][0]
        fields: list[dict[str, Any]] = [{"references": x} for x in reference_texts] or [
            {} for _ in ids
        ]
        for i, run in enumerate(items.copied_runs or ()):
            fields[i].update(length=len(items.hypotheses[i]), **run.to_dict())
        columns = {row.name: row.per_item for row in tables[0] if row.per_item is not None}
        entries: list[dict[str, Any]] = [
            {"id": key, "hypothesis": systems[0].texts[key]}
            | {name: x[i] for name, x in columns.items()}
            | fields[i]
            for i, key in enumerate(ids)
        ]
        # as text, item 10 would stand before item 9
        numeric = all(key.isdecimal() for key in ids)
        entries.sort(key=lambda entry: (int(entry["id"]) if numeric else 0, entry["id"]))
        lines = (json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
        write_file(args.per_item, "".join(lines))
    return tables[0], ids


# path and lines of training texts
Training = tuple[str, Iterable[str]]


def score_systems(
    systems: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str],
    tokenizer: str,
    *,
    unk: Sequence[Optional[bool]],
    show: Callable[[str], None],
    models: Any = None,
    training: Optional[Training] = None,
    **shared: Any,
) -> list[tuple[TokenizedItems, list[Row]]]:
    """Compute the scores of each system by all metrics.

    Args:
        systems: For each system, its text of each item.
        references: References of each item; empty without references.
        metrics: Names of the metrics.
        tokenizer: One of :data:`TOKENIZERS`.
        unk: For each system, True if its texts may contain ``<unk>``; None if unknown.
        show: Function that is called with the name of each metric.
        models: Metrics that need trained models.
        training: Texts that the metric ``copying`` searches.
        **shared: Fields of :class:`.TokenizedItems` that the systems share.
    """
    split_words = TOKENIZERS[tokenizer]
    # a separator is no word: it would count as a match in every metric of n-grams
    systems_plain = [list(map(without_separators, texts)) for texts in systems]
    references = [list(map(without_separators, texts)) for texts in references]
    reference_tokens = [list(map(split_words, texts)) for texts in references]
    tokens = [list(map(split_words, texts)) for texts in systems_plain]
    runs: Sequence[Any] = [None] * len(systems)
    if training is not None:
        path, lines = training
        # all systems in one search: WritingPrompts' training text is read once, for minutes
        search = CopiedRuns([words for stories in tokens for words in stories])
        search.read(tqdm(lines, "training text", unit=" texts", leave=False, disable=None), path)
        found = iter(search.results())
        runs = [[next(found) for _ in stories] for stories in tokens]
        shared["training_words"] = search.words_read
    results = []
    for i, texts in enumerate(systems):
        items = TokenizedItems(
            hypotheses=tokens[i],
            references=reference_tokens,
            tokenization=tokenizer,
            texts=systems_plain[i],
            reference_texts=references,
            sentences=_split_stories(texts, split_words) if "sentences" in metrics else None,
            copied_runs=runs[i],
            allows_unk=unk[i],
            **shared,
        )
        rows: list[Row] = []
        for name in metrics:
            if name in score_models.METRICS:
                rows += models(name, items.texts, items.reference_texts)
            else:
                show(name)
                rows += score_texts(items, [name])
        results.append((items, rows))
    return results


def _split_stories(texts: Sequence[str], tokenize: Tokenizer) -> Optional[list[list[list[str]]]]:
    """Split stories into sentences at ``<sent>``, and tokenize the sentences; return None if no
    text contains ``<sent>``."""
    if not any(SEPARATOR in text.split() for text in texts):
        return None
    return [[tokenize(sentence) for sentence in split_sentences(text)] for text in texts]


def _open_training(args: argparse.Namespace) -> Optional[Training]:
    """Open the training split; None without one."""
    if args.data is None or "train" not in split_names(args.data):
        return None
    split = open_split(args.data, "train")
    return split.path, map(" ".join, split.iterate_tokens())


def _read_shared(
    args: argparse.Namespace,
    split: Optional[Split],
    metrics: list[str],
    ids: list[str],
    split_words: Tokenizer,
) -> dict[str, Any]:
    """Return the arguments of ``TokenizedItems`` that are equal for both compared systems."""
    shared: dict[str, Any] = {}
    if args.references_of == "album":
        shared["references_of"] = args.references_of
    if args.first_words is not None:
        shared["first_words"] = args.first_words
    training = _open_training(args) if "novelty" in metrics else None
    if training is not None:
        lines = [without_separators(line) for line in training[1] if line.strip()]
        shared["training_texts"] = list(map(split_words, lines)) or None
    if "sentences" in metrics and split is not None:
        # stories that people wrote, whose scores are shown for comparison
        written = list(map(" ".join, split.iterate_tokens()))
        shared["written_sentences"] = _split_stories(written, split_words)
    if "novel_ngrams" in metrics and split is not None:
        shared["sources"] = score_inputs.get_sources(split, ids, split_words)
    return shared


def _read_systems(
    args: argparse.Namespace, split: Optional[Split], metrics: list[str]
) -> tuple[Optional[References], list[JoinedTexts]]:
    """Read the references, and the texts of each system (two systems with ``--compare``).

    References are None if neither metrics, arguments nor the preset ask for any.
    """
    paths = [path for path in (args.inputs, args.compare) if path]
    references = None
    has_references = args.references or (args.data and PRESETS[args.preset].has_references)
    if has_references or any("references" in METRICS[name].needs for name in metrics):
        references = score_inputs.read_score_references(
            split, args.references, args.references_of or "item"
        )
        systems = [score_inputs.join_texts(path, references) for path in paths]
    else:
        systems = [score_inputs.read_without_references(path, split) for path in paths]
    if args.constant is not None:
        # first: --compare is the other system, whose figures are subtracted
        if split is None and (references is None or args.constant == MOST_FREQUENT):
            raise UserError("--constant: needs --data, or TEXT and --references.")
        items: Any = references.texts if references is not None else split and split.items
        text = args.constant
        if text == MOST_FREQUENT:
            text = score_inputs.most_frequent_text(open_split(args.data, "train"))
        texts = dict.fromkeys(items, text)
        constant = JoinedTexts(f"every text is {text!r}", Hypotheses(texts, "constant"), texts)
        systems.insert(0, constant)
    return references, systems


def describe_split(references: References, ids: Sequence[str]) -> dict[str, object]:
    """Count the scored image sequences of a split, and their images with features. Return the
    counts, and a line of text with the counts as ``summary``."""
    expected = len(references.texts)
    # an id has the ids of five images, separated by tabs
    images = {image for key in references.texts for image in key.split("\t")}
    counts: dict[str, object] = {"sequences": len(ids), "sequences_expected": expected}
    summary = f"sequences: {len(ids):,} of {expected:,}"
    if expected in OFFICIAL_TEST_PARTS:
        counts["part"] = OFFICIAL_TEST_PARTS[expected]
        summary += f" ({counts['part']})"
    counts["images"] = len(images)
    summary += f"; images: {len(images):,}"
    if references.split is not None:
        missing = images & references.split.missing
        counts["images_with_features"] = len(images) - len(missing)
        counts["images_missing"] = len(missing)
        counts["sequences_with_missing_images"] = sum(
            not missing.isdisjoint(key.split("\t")) for key in references.texts
        )
        summary += f", {len(images) - len(missing):,} with features"
    counts["summary"] = summary
    return counts


def _perplexities(args: argparse.Namespace, split: Optional[Split]) -> list[Row]:
    """Return the perplexity over all tokens, and the mean perplexity of the sentences, computed
    from the log-probabilities in the file ``--reference-scores``."""
    if args.reference_scores is None:
        return perplexity_rows(None)
    texts, output = read_log_probabilities(args.reference_scores)
    if split is None:
        return perplexity_rows(texts)
    path = args.reference_scores
    score_inputs.check_generated_for(path, output, split)
    longest = max(text.num_tokens for text in texts.values())
    sizes = [len(words) + 1 for words in split.iterate_tokens()]
    for number, text in texts.items():
        count, size = text.num_tokens, sizes[number] if number < len(sizes) else 0
        # a shorter text was cut at the run's maximum length, and is then as long as the longest
        if count > size or (count < size and count < longest):
            raise UserError(
                f"{path}: P-{number} has {count} scores, but line {number} (counted from 0) of "
                f"{split.path} has {size} tokens, its end included: it was generated from "
                "another data folder or split."
            )
    return perplexity_rows(texts, len(split))


def compare(
    rows: Sequence[Row], others: Sequence[Row], *, samples: int, seed: int
) -> list[dict[str, object]]:
    """Return one JSON record per metric: the scores of two systems, and their difference with, if
    possible, a 95 % confidence interval and a p-value of a paired bootstrap."""
    compared = []
    for row, other in zip(rows, others):
        if row.value is None or other.value is None:
            continue
        entry: dict[str, object] = {
            "metric": row.name,
            "values": [row.value, other.value],
            "difference": row.value - other.value,
        }
        if samples and row.sums is not None and other.sums is not None:
            # one seed draws the same items for both systems: a paired bootstrap
            differences = resampled(row.sums, row.statistic, samples=samples, seed=seed)
            differences -= resampled(other.sums, row.statistic, samples=samples, seed=seed)
            entry["interval"] = interval(differences)
            entry["p"] = p_value(differences)
        compared.append(entry)
    return compared


def make_entry(row: Row, *, samples: int, seed: int) -> dict[str, object]:
    """Return the JSON record of a score, with a 95 % bootstrap interval if ``samples`` is not 0."""
    entry: dict[str, object] = {
        "metric": row.name,
        "value": row.value,
        "scored": row.scored,
        "signature": row.signature,
    }
    if row.expected is not None:
        entry["expected"] = row.expected
    if row.note:
        entry["note"] = row.note
    if samples and row.value is not None and row.sums is not None:
        figures = resampled(row.sums, row.statistic, samples=samples, seed=seed)
        entry["interval"] = interval(figures)
        # only with both numbers can somebody else compute the same interval
        entry["signature"] = f"{row.signature}|bootstrap:{samples}|seed:{seed}"
    return entry


def print_problems(path: str, problems: Mapping[str, list[str]]) -> None:
    """Print ``problems``, from :meth:`.JoinedTexts.problems`, to stderr."""
    for what, ids in problems.items():
        print(f"{path}: {len(ids)} {what}: {list_first(ids, _NAMED)}", file=sys.stderr)


def _print_result(result: dict[str, Any], *, with_signatures: bool) -> None:
    """Print the JSON result of the command as tables; print problems of the texts to stderr."""
    for system in result.get("texts", ()):
        if system["layout"] == "constant":
            # the most frequent text was not on the command line
            print(system["path"], file=sys.stderr)
        print_problems(system["path"], system["problems"])
    lines = [["metric", "value", "95% interval", "scored", "note"]]
    for entry in result["scores"]:
        name = entry["metric"]
        total = f"/{entry['expected']}" if "expected" in entry else ""
        cells = [name, format_figure(name, entry["value"]), _format_interval(entry)]
        lines.append([*cells, f"{entry['scored']}{total}", entry.get("note", "")])
    _print_columns(lines)
    if with_signatures:
        print("\nsignatures")
        print("\n".join(entry["signature"] for entry in result["scores"]))
    if "visual_stories" in result:
        print(f"\n{textwrap.fill(result['visual_stories']['summary'], _WIDTH)}")
    if "comparison" not in result:
        return
    first, second = (system["path"] for system in result["texts"])
    print(f"\nA: {first}\nB: {second}")
    lines = [["metric", "A", "B", "A - B", "95% interval", "p"]]
    for entry in result["comparison"]:
        name = entry["metric"]
        figures = [format_figure(name, x) for x in (*entry["values"], entry["difference"])]
        p = f"{entry['p']:.3f}" if "p" in entry else ""
        lines.append([name, *figures, _format_interval(entry), p])
    _print_columns(lines)


def _format_interval(entry: dict[str, Any]) -> str:
    if "interval" not in entry:
        return ""
    low, high = entry["interval"]
    return f"[{format_figure(entry['metric'], low)}, {format_figure(entry['metric'], high)}]"


def _print_columns(lines: list[list[str]]) -> None:
    """Print a table without its empty columns; the first of ``lines`` is the header. Long text in
    the last column is wrapped."""
    columns = [i for i in range(len(lines[0])) if any(line[i] for line in lines[1:])]
    widths = [max(len(line[i]) for line in lines) + 2 for i in columns[:-1]]
    room = max(_LEAST_NOTE, _WIDTH - sum(widths))
    for line in lines:
        *cells, last = [line[i] for i in columns]
        start = "".join(cell.ljust(width) for cell, width in zip(cells, widths))
        for part in textwrap.wrap(last, room) or [""]:
            print(f"{start}{part}".rstrip())
            start = " " * sum(widths)
