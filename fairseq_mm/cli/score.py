"""Scores generated text against references.

  fairseq-mm score generate-valid.txt --data data-bin/flickr8k --split valid
  fairseq-mm score generate-valid.txt --data data-bin/flickr8k --preset m_rnn \\
      --reference-scores scored-valid.txt
  fairseq-mm score captions.jsonl --references valid.references.jsonl \\
      --metrics bleu,cider
  fairseq-mm score results.json --references captions_val2014.json \\
      --json scores.json
  fairseq-mm score a.txt --data data-bin/flickr8k --compare b.txt
  fairseq-mm score --constant --data data-bin/flickr8k
  fairseq-mm score captions.jsonl --metrics clipscore --images photos \\
      --clip-model clip-vit-base-patch32
  fairseq-mm score stories.jsonl --data data-bin/wp --preset wp \\
      --per-item copied.jsonl
  fairseq-mm score vg.jsonl --data data-bin/how2 --preset how2 \\
      --text-only bart.items.jsonl --baseline 62.3,46.1,58.2
  fairseq-mm score --system 68.0,51.4,63.3 --text-only 64.0,46.4,58.9 \\
      --baseline 62.3,46.1,58.2

HYPOTHESES is the output of fairseq-generate for --split of --data, a JSONL file
of {"id", "hypothesis"} or {"id", "caption"}, a COCO results file, or a plain text
file, whose lines are id, tab and text (like the output of fairseq-mm caption), or
whose line i is the text for item i of the references. References are
DATA/SPLIT.references.jsonl, another such file, a COCO annotation file (.json), or
a plain text file with one reference a line, whose items are numbered from 0. In a
folder of fairseq-preprocess, the binarised targets are the references. Missing,
repeated and unknown ids are reported on stderr, the other items are scored, and
each score says how many of all items were scored. A file that contains the output
of several runs is not scored.

Presets: `coco` is coco-caption's protocol (PTB tokens in lower case without
punctuation). `m_rnn` is the protocol of Mao et al. 2015: text is split and
lower-cased as in their code, with punctuation, BLEU follows section 9.3, and
perplexity, end token included, is computed from --reference-scores, which is the
output of the following command over all captions, not one per item:

    fairseq-generate DATA --task multimodal_captioning --score-reference \\
        --all-lines ...

`how2` scores summaries of videos as Yu et al. 2021 (Tables 1 and 2): words are
separated by spaces; ROUGE-1, -2 and -L are means of F1 with beta 1 (in the preset
coco, rouge_l has beta 1.2); BLEU, METEOR and CIDEr-D are computed as in the
preset coco; Content F1 is computed from the alignment of METEOR without
normalisation of the text. If there is DATA/SPLIT.transcripts.jsonl, novel1 to
novel4 are the shares of n-grams that the transcript lacks, for summaries and
references. DATA/SPLIT.unknowns.jsonl has the words that replace indexed OOV
tokens (<unk-0>).

--text-only and --baseline compute the share of a gain that comes from the video:
the mean over ROUGE-1, -2 and -L of (system - text-only) / (system - baseline).
The last example has the scores of Yu et al. 2021, whose share is 83.6 %. If
systems are given as files of --per-item, scores are averaged over the items that
all these files have. If the system and its text-only backbone have scores by item,
the share has a 95 % confidence interval; for a baseline that is given by three
numbers, the interval does not count the baseline's own uncertainty.

`wp` (Fan et al. 2018) measures stories without references: how varied they are,
and copied_words, the mean length of the longest contiguous run of words that a
story shares with a story of DATA/text/train.wp_target ("longest common
subsequence" in section 7.1).

`vist` scores stories of five images with <sent> between their sentences.
meteor_vist is the challenge's protocol (EvalVIST: METEOR 1.5 with the task hter,
the whole story as one segment without normalisation, the best of its references,
mean over image sequences). meteor_vist_rank uses METEOR's default task, whose
scores are about half as large: never compare the two. The other scores are the
metrics of coco-caption over whole stories, and the shares of words, trigrams and
sentences that repeat earlier sentences of the story (repeated_*). The output says
how many image sequences of the split were scored, and how many images have
features.

clipscore, refclipscore and bertscore need a trained model (--clip-model,
--bert-model). clipscore needs no references: without --data and
--references, captions are scored by the ids in their file.
"""

import argparse
import json
import shlex
import sys
from typing import Any, Callable, Optional

from fairseq_mm.cli import arguments, score_gain, score_inputs, score_models, score_output
from fairseq_mm.cli import score_visual_stories as visual
from fairseq_mm.cli.arguments import NUMBER, Rows, flag
from fairseq_mm.cli.records import counted
from fairseq_mm.cli.score_alignment import check_scores_for
from fairseq_mm.cli.score_constant import MOST_FREQUENT, constant_texts
from fairseq_mm.cli.score_inputs import existing_file
from fairseq_mm.cli.score_metrics import (
    NAMES,
    PRESETS,
    TOKENIZERS,
    load_tokenizer,
    select_metrics,
    split_metrics,
)
from fairseq_mm.data.elapsed_time import elapsed_time
from fairseq_mm.data.input_files import read_lines
from fairseq_mm.data.output_file import write_file
from fairseq_mm.data.split_text import read_story_words, story_text_path
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import SEED
from fairseq_mm.metrics.coco_results import coco_results
from fairseq_mm.metrics.meteor import TASKS
from fairseq_mm.metrics.perplexity import perplexity_rows, read_log_probabilities
from fairseq_mm.metrics.result_card import allows_unk, result_card
from fairseq_mm.metrics.score_rows import FIRST_WORDS, Row, TokenizedItems
from fairseq_mm.metrics.text_scores import score_texts

INPUTS = (
    *("hypotheses", "compare", "references", "reference_scores", "training_text"),
    *("text_only", "baseline"),
)
OUTPUTS = ("json", "per_item", "submission")

_FILE = {"metavar": "FILE"}
_ARGUMENTS: Rows = {
    "hypotheses": (
        "Generated texts, in one of the layouts above.",
        {"nargs": "?", "metavar": "HYPOTHESES"},
    ),
    "--constant": (
        "In place of HYPOTHESES: score the same TEXT for every item; without TEXT, the most "
        "frequent text of the training split, or of visual stories its most frequent first to "
        "fifth sentence.",
        {"nargs": "?", "const": MOST_FREQUENT, "metavar": "TEXT"},
    ),
    "--preset": (
        "Tokenizer and metrics of a protocol, described above (default: coco).",
        {"choices": PRESETS, "default": "coco"},
    ),
    "--metrics": (
        "Metrics instead of the preset's, or single figures of them, such as bleu4: "
        f"{', '.join(NAMES)}.",
        {"metavar": "NAMES"},
    ),
    "--tokenizer": (
        "Tokens instead of the preset's; wp: as WritingPrompts is split, none: what spaces "
        "separate.",
        {"choices": TOKENIZERS},
    ),
    "--meteor-task": (
        "Parameters of METEOR, the -t of its jar (default: rank).",
        {"choices": TASKS, "default": "rank"},
    ),
    # no default: the option is refused where the metric is not computed
    "--first-words": (
        "Number of words of each text that first_distinct reads; shorter texts are left out "
        f"(default: {FIRST_WORDS}).",
        {"type": arguments.positive, "metavar": "N"},
    ),
}
_REFERENCES: Rows = {
    "--references": (
        "References: references.jsonl, a COCO annotation .json, or a line each.",
        _FILE,
    ),
    "--training-text": (
        "Training texts, one a line, for novelty (default: DATA/text/train.txt) and copying "
        "(default: DATA/text/train.wp_target).",
        _FILE,
    ),
    "--reference-scores": (
        "Output of fairseq-generate --score-reference, for perplexity.",
        _FILE,
    ),
    "--references-of": (
        "References of the item, or all stories of its album, from "
        "DATA/SPLIT.album_references.jsonl (default: item).",
        {"choices": ("item", "album"), "default": "item"},
    ),
}
_RESAMPLING: Rows = {
    "--compare": ("Texts of another system, paired by item.", _FILE),
    # no default: 0 switches an interval off, and the default differs for --compare and the gain
    "--bootstrap": (
        "Number of resamples for 95%% intervals (default: 0; "
        f"{score_output.COMPARE_SAMPLES} with --compare).",
        NUMBER,
    ),
}
_OUTPUT: Rows = {
    "--per-item": ("Write the scores of each item as JSONL, by id.", _FILE),
    "--submission": (
        "Write captions, those without references too, as COCO's evaluation server takes them "
        "(captions_val2014_NAME_results.json), and without --data and --references nothing else; "
        "or with --preset vist stories as the VIST challenge does.",
        _FILE,
    ),
    # --card without FILE is "", not None: _check names the file after HYPOTHESES
    "--card": (
        "Write the card: command, hashes, options of generation, versions (default name: "
        "HYPOTHESES.card.json).",
        {"nargs": "?", "const": "", "metavar": "FILE"},
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_rows(parser, _ARGUMENTS)
    group = parser.add_argument_group("references")
    split = {"help": "Split of the data folder (default: the split of HYPOTHESES, or valid)."}
    arguments.add(group, "data", "split", split=split)
    arguments.add_rows(group, _REFERENCES)
    group = parser.add_argument_group("comparison and intervals")
    arguments.add_rows(group, _RESAMPLING)
    arguments.add(group, "seed", seed={"default": SEED})
    group = parser.add_argument_group(
        "metrics with models", "Models for --metrics clipscore, refclipscore and bertscore."
    )
    arguments.add_rows(group, score_models.ARGUMENTS)
    arguments.add(group, "device")
    group = parser.add_argument_group(
        "gain from the video",
        "Files that this command wrote with --per-item, or ROUGE-1, -2 and -L as three figures in "
        "percent.",
    )
    arguments.add_rows(group, score_gain.OPTIONS)
    group = parser.add_argument_group("output")
    arguments.add(group, "json")
    arguments.add_rows(group, _OUTPUT)


def run(args: argparse.Namespace) -> None:
    if args.split is None:
        args.split = score_inputs.find_split(args.hypotheses or args.reference_scores, args.data)
    metrics = [] if args.system is not None else select_metrics(args)
    has_gain = score_gain.check_gain_options(args, metrics)
    for option, readers in score_models.READ_BY.items():
        chosen = [name for name in readers if name in metrics]
        if getattr(args, option) is not None and not chosen:
            raise UserError(f"{flag(option)}: needs --metrics {' or '.join(readers)}.")
        if option in score_models.NEEDED and chosen and getattr(args, option) is None:
            raise UserError(f"--metrics {chosen[0]}: needs {flag(option)}.")
    if args.system is not None:
        score_gain.run_gain(args)
        return
    gain_samples = args.bootstrap  # before the default of the other intervals is filled in
    _check(args)
    others = ("data", "references", "metrics", "json", "per_item", "card", "compare", "bootstrap")
    has_others = any(getattr(args, name) for name in (*others, "reference_scores"))
    if args.submission and args.preset in ("coco", "m_rnn") and not has_others:
        texts = score_inputs.read_alone(args.hypotheses)
        write_file(args.submission, _coco_submission(texts))
        count = counted(len(texts.texts), "caption")
        print(f"wrote {args.submission}: {count}; nothing to score them by", file=sys.stderr)
        return
    result: dict[str, Any] = {"preset": args.preset}
    rows: list[Row] = []
    if args.hypotheses is not None or args.constant is not None:
        names = [name for name in metrics if name != "perplexity"]
        rows, ids = _score(args, names, result)
    if "perplexity" in metrics:
        rows += _perplexities(args)
    result["scores"] = [
        score_output.make_entry(row, samples=args.bootstrap, seed=args.seed) for row in rows
    ]
    score_output.print_result(result)
    if has_gain:
        columns = {row.name: row.per_item for row in rows}
        by_item = dict(zip(ids, zip(*(columns[name] for name in score_gain.METRICS))))
        scores = score_gain.SystemScores.average("system", args.hypotheses, by_item)
        result["gain"] = score_gain.compute_gain(scores, args, samples=gain_samples)
        print()
        score_gain.print_gain(result["gain"])
    if args.json or args.card:
        card = _make_card(args, metrics)
        card["signatures"] = {row.name: row.signature for row in rows}
        if "visual_stories" in result:
            card["visual_stories"] = result["visual_stories"]
        for path, content in ((args.card, card), (args.json, {**result, "card": card})):
            if path:
                write_file(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    # after the files are written, whose notes say which input each figure lacks
    if all(row.value is None for row in rows):
        raise UserError(f"no figure could be computed; {rows[0].name}: {rows[0].note}")


def _check(args: argparse.Namespace) -> None:
    """Check options and output files, and set the defaults of ``--bootstrap`` and ``--card``."""
    album = args.references_of == "album"
    if album and (args.references or args.data is None or not PRESETS[args.preset].has_references):
        raise UserError(
            "--references-of album: needs --data, no --references, and a preset with references."
        )
    if args.constant is not None:
        options = ("hypotheses", "submission", "reference_scores")
        score_gain.check_absent(args, options, "--constant")
    if args.submission and args.preset not in ("coco", "m_rnn", "vist"):
        raise UserError("--submission: needs --preset coco, m_rnn or vist.")
    if args.submission and args.preset == "vist" and args.data is None:
        raise UserError("--submission: needs --data with --preset vist.")
    if args.hypotheses is None and args.constant is None:
        for option in ("compare", "per_item", "bootstrap", "submission"):
            if getattr(args, option) is not None:
                raise UserError(f"{flag(option)}: needs HYPOTHESES.")
    if args.bootstrap is None:
        args.bootstrap = score_output.COMPARE_SAMPLES if args.compare else 0
    if args.bootstrap < 0 or (args.compare and args.bootstrap == 0):
        raise UserError(
            f"--bootstrap: must be a number of resamples above 0, but is {args.bootstrap}."
        )
    score_output.check_samples(args.bootstrap)
    if args.seed < 0:
        raise UserError(f"--seed: must be 0 or more, but is {args.seed}.")
    if args.card == "" and args.constant is not None:
        raise UserError("--card: needs a FILE with --constant.")
    if args.card == "":
        args.card = f"{args.hypotheses or args.reference_scores}.card.json"
    arguments.check_outputs(
        {option: getattr(args, option) for option in (*OUTPUTS, "card")},
        filter(None, (getattr(args, name) for name in INPUTS)),
    )


def _get_split_file(args: argparse.Namespace, name: str) -> Optional[str]:
    return existing_file(args.data, f"{args.split}.{name}.jsonl")


def _training_path(args: argparse.Namespace) -> Optional[str]:
    if args.training_text is not None:
        return args.training_text
    name = "train.txt" if PRESETS[args.preset].has_references else "train.wp_target"
    return existing_file(args.data, "text", name)


def _score(
    args: argparse.Namespace, metrics: list[str], result: dict[str, Any]
) -> tuple[list[Row], list[str]]:
    """Return the first system's scores, and the ids of the scored items.

    Fields about the texts of the systems are added to ``result``, the JSON result of the command.
    """
    references, systems = _read_systems(args, metrics)
    all_ids = list((references or systems[0]).texts)
    # systems are compared over the items that both have, so that each figure is over equal items
    ids = [key for key in all_ids if all(key in system.texts for system in systems)]
    if not ids:
        raise UserError(f"{args.hypotheses} and {args.compare}: have no item in common.")
    if args.submission:
        # before the metrics, which may take minutes or fail: the file does not need scores
        if args.preset == "vist":
            content = visual.make_submission(args.data, args.split, systems[0].texts)
        else:
            content = _coco_submission(systems[0])
        write_file(args.submission, content)
    tokenizer = args.tokenizer or PRESETS[args.preset].tokenizer
    split_words = load_tokenizer(tokenizer)

    # a separator is no word: it would count as a match in every metric of n-grams
    def tokenize(text: str) -> list[str]:
        return split_words(visual.without_separators(text))

    shared = _read_shared(args, metrics, ids, split_words)
    texts = [[system.texts[key] for key in ids] for system in systems]
    # a constant text has no file whose head could tell
    unk = [None if x.hypotheses.layout == "constant" else allows_unk(x.path) for x in systems]
    with elapsed_time("tokenize"):
        tokens = [list(map(tokenize, system_texts)) for system_texts in texts]
    has_parts = "sentences" in metrics
    runs: list[Any] = [None] * len(systems)
    training = _training_path(args)
    if "copying" in metrics and training is not None:
        # both systems in one search: the training text of WritingPrompts is read once, for minutes
        runs, shared["training_words"] = score_inputs.copied_runs(tokens, training)
    reference_texts = [] if references is None else [references.texts[key] for key in ids]
    with elapsed_time("tokenize references") as show:
        models = score_models.ModelMetrics(args, ids, show)
        reference_tokens = [list(map(tokenize, item_texts)) for item_texts in reference_texts]
        scored = [
            _score_by_metrics(
                TokenizedItems(
                    hypotheses=tokens[i],
                    references=reference_tokens,
                    tokenization=tokenizer,
                    texts=list(map(visual.without_separators, texts[i])),
                    reference_texts=reference_texts,
                    sentences=visual.split_stories(texts[i], split_words) if has_parts else None,
                    copied_runs=runs[i],
                    allows_unk=unk[i],
                    **shared,
                ),
                metrics,
                models,
                show,
            )
            for i in range(len(systems))
        ]
    if args.metrics is not None:
        _, figures = split_metrics(args.metrics, NAMES)
        scored = [[row for row in rows if row.name in figures] for rows in scored]
    for row in scored[0]:
        row.expected = len(all_ids)
    result["texts"] = [system.describe() for system in systems]
    if args.preset == "vist" and references is not None:
        counts = visual.describe_split(references, ids, args.data, args.hypotheses)
        result["visual_stories"] = counts
    if len(systems) == 2:
        result["comparison"] = score_output.compare(*scored, samples=args.bootstrap, seed=args.seed)
    if args.per_item:
        fields = [{"references": item_texts} for item_texts in reference_texts] or [{} for _ in ids]
        if runs[0] is not None:
            for i, (words, run) in enumerate(zip(tokens[0], runs[0])):
                fields[i].update(length=len(words), **run.to_dict())
        score_output.write_items(args.per_item, ids, texts[0], scored[0], fields)
    return scored[0], ids


def _score_by_metrics(
    items: TokenizedItems,
    metrics: list[str],
    models: score_models.ModelMetrics,
    show: Callable[[str], None],
) -> list[Row]:
    """Compute all metrics; before each one, call ``show`` with its name, to report progress."""
    rows: list[Row] = []
    for name in metrics:
        if name in score_models.FIGURES:
            rows += models.score(name, items.texts, items.reference_texts)
            continue
        show(name)
        rows += score_texts(items, [name])
    return rows


def _read_shared(
    args: argparse.Namespace,
    metrics: list[str],
    ids: list[str],
    split_words: Callable[[str], list[str]],
) -> dict[str, Any]:
    """Return, by name, the arguments of ``TokenizedItems`` that both compared systems share.

    Only arguments that the metrics need are read, for the items with the ids ``ids``.
    """
    shared: dict[str, Any] = {"meteor_task": args.meteor_task}
    if args.references_of != "item":
        shared["references_of"] = args.references_of
    if args.first_words is not None:
        shared["first_words"] = args.first_words
    training = _training_path(args)
    if "novelty" in metrics and training is not None:
        lines = [line for _, line in read_lines(training) if line.strip()]
        if not lines:
            raise UserError(f"{training}: must have training texts, but is empty.")
        shared["training_texts"] = [split_words(visual.without_separators(line)) for line in lines]
    has_stories = args.data is not None and story_text_path(args.data, args.split).is_file()
    if "sentences" in metrics and has_stories:
        # stories that people wrote, whose scores are shown for comparison
        written = [" ".join(words) for words in read_story_words(args.data, args.split)]
        shared["written_sentences"] = visual.split_stories(written, split_words)
    if "novel_ngrams" in metrics:
        shared["sources"] = score_inputs.read_sources(args.data, args.split, ids, split_words)
    return shared


def _read_systems(
    args: argparse.Namespace, metrics: list[str]
) -> tuple[Optional[score_inputs.References], list[score_inputs.JoinedTexts]]:
    """Read the references, and the texts of each system (two systems with ``--compare``).

    The references are None if the preset has none, or if none are given and no metric needs them.
    """
    paths = [path for path in (args.hypotheses, args.compare) if path]
    references = None
    has_none = args.references is None and args.data is None
    if has_none and metrics == ["clipscore"]:
        # scored by the ids in the file
        systems = [score_inputs.read_alone(path) for path in paths]
    elif PRESETS[args.preset].has_references:
        references = score_inputs.read_score_references(
            args.data, args.split, args.references, args.references_of
        )
        systems = [score_inputs.join_texts(path, references) for path in paths]
    else:
        systems = [
            score_inputs.read_without_references(path, args.data, args.split) for path in paths
        ]
    if args.constant is not None:
        # first: --compare is the other system, whose figures are subtracted
        systems.insert(0, constant_texts(args.constant, args.data, args.split, references))
    return references, systems


def _coco_submission(system: score_inputs.JoinedTexts) -> str:
    """Return a system's captions in the JSON format of COCO's evaluation server.

    Raise UserError if an image has several captions.
    """
    repeated = system.hypotheses.repeated
    if repeated:
        raise UserError(
            f"--submission: an image must have one caption, but {system.path} has several of "
            f"{len(repeated)}: {', '.join(repeated[: score_output.NAMED])}."
        )
    # the server has references of images that this data folder or file has not
    return coco_results({**system.texts, **system.without_references})


def _perplexities(args: argparse.Namespace) -> list[Row]:
    """Return the perplexity over all tokens, and the mean perplexity of the sentences.

    They are computed from the log-probabilities in the file ``--reference-scores``. Without this
    option, both values are missing, with a note.
    """
    if args.reference_scores is None:
        return perplexity_rows(None)
    texts = read_log_probabilities(args.reference_scores)
    if args.data is None:
        return perplexity_rows(texts)
    num_tokens = {line: text.num_tokens for line, text in texts.items()}
    expected = check_scores_for(args.reference_scores, num_tokens, args.data, args.split)
    if expected is None:
        # no binarised text to compare with, but each line of the split has a visual id
        expected = len(score_inputs.read_split_ids(args.data, args.split))
    if max(texts) >= expected:
        raise UserError(
            f"{args.reference_scores}: line {max(texts)} must be one of the {expected} lines of "
            f"{args.split} (counted from 0); it comes from another split or data folder."
        )
    return perplexity_rows(texts, expected)


def _make_card(args: argparse.Namespace, metrics: list[str]) -> dict[str, object]:
    files: dict[str, Optional[str]] = {
        "hypotheses": args.hypotheses,
        "compared": args.compare,
        "reference_scores": args.reference_scores,
        "dictionary": existing_file(args.data, "dict.txt")
        or existing_file(args.data, "dict.desc.txt"),
    }
    if args.hypotheses is not None or args.constant is not None:
        name = score_inputs.reference_name(args.split, args.references_of)
        files["references"] = args.references or existing_file(args.data, name)
        files["unknowns"] = _get_split_file(args, "unknowns")
        if "novel_ngrams" in metrics:
            files["transcripts"] = _get_split_file(args, "transcripts")
    if {"novelty", "copying"} & {*metrics}:
        files["training_text"] = _training_path(args)
    return result_card(
        command=shlex.join(["fairseq-mm", *sys.argv[1:]]),
        files=files,
        generated=args.hypotheses or args.reference_scores,
    )
