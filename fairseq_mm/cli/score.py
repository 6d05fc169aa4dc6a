"""Scores generated text against references.

fairseq-mm score generate-valid.txt --data data-bin/flickr8k --split valid
fairseq-mm score generate-valid.txt --data data-bin/flickr8k --preset m_rnn \\
    --reference-scores scored-valid.txt
fairseq-mm score captions.jsonl --references valid.references.jsonl --metrics bleu,cider
fairseq-mm score results.json --references captions_val2014.json --json scores.json
fairseq-mm score a.txt --data data-bin/flickr8k --compare b.txt
fairseq-mm score stories.jsonl --data data-bin/wp --preset wp --per-item copied.jsonl

HYPOTHESES is fairseq-generate's output (joined with the references through SPLIT.visual_ids), a
JSONL file of {"id", "hypothesis"}, a plain text file (line i is item i of the references), or a
COCO results file. References are DATA/SPLIT.references.jsonl, such a file, or (.json) a COCO
annotation file. Texts without references, references without a text, and texts that are there
twice are named on stderr; the rest is scored, and every figure says out of how many.

Presets: `coco` is coco-caption's protocol (PTB tokens, lower-cased, without punctuation);
`m_rnn` is that of Mao et al. 2015: text split and lower-cased as in their code, punctuation kept,
BLEU of section 9.3, and perplexity, end sign included, from --reference-scores, the output of

    fairseq-generate DATA --score-reference ...   (over all captions, not one per item)

`wp` (Fan et al. 2018) measures stories without references: how varied they are, and copied_words,
the longest contiguous run of words that a story shares with a story of DATA/text/train.wp_target,
on average (section 7.1, where "longest common subsequence" can only mean that). HYPOTHESES is the
output of fairseq-mm tell or retrieve, or any of the layouts above.

`vist` scores stories of five pictures, one for each photo sequence, <sent> between its sentences:
meteor_vist is the challenge's protocol (EvalVIST: METEOR 1.5 with the task hter, the whole story as
one segment without normalisation, the best of its references, mean over sequences),
meteor_vist_rank the same with the default task, whose figures are about half as large: never
compare the two. The other rows are coco-caption's, over whole stories, and how much sentences
repeat (repeated_*: against earlier sentences of the same story). The card says how many of the
split's sequences were scored, and how many of its photographs have features.
"""

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Callable, NamedTuple, Optional

from fairseq_mm.errors import UserError
from fairseq_mm.metrics.meteor import TASKS

if TYPE_CHECKING:
    from fairseq_mm.metrics.text_scores import Row


class Preset(NamedTuple):
    """A paper's protocol: how texts are split, and what is computed."""

    tokenizer: str
    metrics: tuple[str, ...]


PRESETS = {
    "coco": Preset("ptb", ("bleu", "meteor", "rouge_l", "cider", "diversity", "novelty")),
    "m_rnn": Preset("m_rnn", ("bleu", "perplexity", "diversity", "novelty")),
    "vist": Preset(
        "ptb",
        ("meteor_vist", "meteor", "bleu", "rouge_l", "cider", "diversity", "sentences"),
    ),
    "wp": Preset("none", ("diversity", "copying")),
}
METRICS = (
    *("bleu", "meteor", "meteor_vist", "rouge_l", "cider", "perplexity"),
    *("diversity", "sentences", "novelty", "copying"),
)
REFERENCES_OF = ("item", "album")
TOKENIZERS = ("ptb", "m_rnn", "wp", "none")
COMPARE_SAMPLES = 1000
NAMED = 5  # lines in a message


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("hypotheses", nargs="?", metavar="HYPOTHESES", help="generated texts")
    parser.add_argument("--data", metavar="DIR", help="the data folder")
    parser.add_argument("--split", default="valid", help="split of it (default: valid)")
    parser.add_argument(
        "--references", metavar="FILE", help="references.jsonl, or a COCO annotation .json"
    )
    parser.add_argument(
        "--references-of",
        choices=REFERENCES_OF,
        default="item",
        help="album: all stories of the album, from DATA/SPLIT.album_references.jsonl "
        "(default: item)",
    )
    parser.add_argument("--preset", choices=PRESETS, default="coco", help="(default: coco)")
    parser.add_argument(
        "--metrics", metavar="NAMES", help=f"instead of the preset's: {','.join(METRICS)}"
    )
    parser.add_argument(
        "--tokenizer",
        choices=TOKENIZERS,
        help="instead of the preset's; wp: as WritingPrompts is split; none: words are what spaces "
        "separate",
    )
    parser.add_argument(
        "--training-text",
        metavar="FILE",
        help="one text a line, for novelty (default: DATA/text/train.txt) and copying (default: "
        "DATA/text/train.wp_target)",
    )
    parser.add_argument(
        "--reference-scores",
        metavar="FILE",
        help="output of fairseq-generate --score-reference, for perplexity",
    )
    parser.add_argument(
        "--meteor-task", choices=TASKS, default="rank", help="the jar's -t (default: rank)"
    )
    parser.add_argument(
        "--no-meteor-norm", action="store_true", help="run the jar without its -norm"
    )
    parser.add_argument("--compare", metavar="FILE", help="another system's texts, paired by item")
    parser.add_argument(
        "--bootstrap",
        type=int,
        metavar="N",
        help=f"resamples for 95%% intervals (default: 0; with --compare {COMPARE_SAMPLES})",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the resampling (default: 1)")
    parser.add_argument("--per-item", metavar="FILE", help="write items' scores as JSONL, by id")
    parser.add_argument(
        "--submission", metavar="FILE", help="write stories as the VIST challenge takes them"
    )
    parser.add_argument("--json", metavar="FILE", help="write figures and card as JSON")
    parser.add_argument(
        "--card",
        nargs="?",
        const="",
        metavar="FILE",
        help="write the card: command, hashes, decode settings, versions "
        "(default name: HYPOTHESES.card.json)",
    )


def run(args: argparse.Namespace) -> None:
    from fairseq_mm.cli.score_output import entry_of, print_result, write_file

    metrics = _metrics_of(args)
    card_path = args.card
    if card_path == "":
        card_path = f"{args.hypotheses or args.reference_scores}.card.json"
    _check_paths(args, card_path)
    result: dict[str, object] = {"preset": args.preset}
    rows: list[Row] = []
    if args.hypotheses is not None:
        scored = [name for name in metrics if name != "perplexity"]
        rows = (_score_stories if args.preset == "wp" else _score_texts)(args, scored, result)
    if "perplexity" in metrics:
        rows += _perplexity_rows(args)
    samples = _samples_of(args)
    result["scores"] = [entry_of(row, samples=samples, seed=args.seed) for row in rows]
    print_result(result)
    if args.json or card_path:
        card = _card_of(args, metrics)
        card["signatures"] = {row.name: row.signature for row in rows}
        if "picture_stories" in result:
            card["picture_stories"] = result["picture_stories"]
        if card_path:
            write_file(card_path, json.dumps(card, indent=2, ensure_ascii=False) + "\n")
        if args.json:
            text = json.dumps({**result, "card": card}, indent=2, ensure_ascii=False)
            write_file(args.json, text + "\n")
    if all(row.value is None for row in rows):
        raise UserError(f"no figure could be computed; {rows[0].name}: {rows[0].note}")


def _metrics_of(args: argparse.Namespace) -> list[str]:
    metrics = list(PRESETS[args.preset].metrics)
    if args.metrics is not None:
        metrics = [name.strip() for name in args.metrics.split(",") if name.strip()]
        for name in metrics:
            if name not in METRICS:
                raise UserError(f"--metrics: must be of {', '.join(METRICS)}, but has {name!r}.")
        if not metrics:
            raise UserError("--metrics: must name a metric, but is empty.")
    if args.preset == "wp":
        from fairseq_mm.cli.score_stories import check_arguments

        check_arguments(args, metrics)
    elif "copying" in metrics:
        raise UserError("--metrics copying: needs --preset wp.")
    is_item = args.references_of == "item"
    if not is_item and (args.references or args.data is None or args.preset == "wp"):
        raise UserError(
            f"--references-of {args.references_of}: needs --data, no --references, and a preset "
            "with references."
        )
    if args.submission and (args.preset != "vist" or args.data is None):
        raise UserError("--submission: needs --preset vist and --data.")
    if args.hypotheses is None:
        if args.reference_scores is None:
            raise UserError("give HYPOTHESES, or --reference-scores for perplexity alone.")
        for option in ("compare", "per_item", "bootstrap", "submission"):
            if getattr(args, option) is not None:
                raise UserError(f"--{option.replace('_', '-')}: needs HYPOTHESES.")
        return ["perplexity"]
    if args.reference_scores is not None and "perplexity" not in metrics:
        metrics.append("perplexity")
    return metrics


def _samples_of(args: argparse.Namespace) -> int:
    samples = args.bootstrap
    if samples is None:
        samples = COMPARE_SAMPLES if args.compare else 0
    if samples < 0 or (args.compare and samples == 0):
        raise UserError(f"--bootstrap: must be a number of resamples above 0, but is {samples}.")
    return samples


def _check_paths(args: argparse.Namespace, card_path: Optional[str]) -> None:
    _samples_of(args)
    if args.seed < 0:
        raise UserError(f"--seed: must be 0 or more, but is {args.seed}.")
    inputs = [args.hypotheses, args.compare, args.references, args.reference_scores]
    read = {os.path.realpath(path) for path in [*inputs, args.training_text] if path}
    written: set[str] = set()
    outputs = ("json", "per_item", "submission")
    for option, path in ((name, getattr(args, name)) for name in outputs):
        if path and os.path.realpath(path) in read:
            option = option.replace("_", "-")
            raise UserError(f"--{option} {path}: would overwrite a file that is read.")
    for path in filter(None, (*(getattr(args, name) for name in outputs), card_path)):
        if os.path.realpath(path) in written:
            raise UserError(
                f"{path}: --json, --per-item, --submission and --card must be different files."
            )
        written.add(os.path.realpath(path))
        if not Path(path).absolute().parent.is_dir():
            raise UserError(f"{path}: its folder does not exist.")


def _tokenizer_of(name: str) -> Callable[[str], list[str]]:
    if name == "ptb":
        from fairseq_mm.metrics.ptb_tokenizer import ptb_tokenize

        return ptb_tokenize
    if name == "m_rnn":
        from fairseq_mm.data.caption_text import CaptionTokenizer

        split = CaptionTokenizer("m_rnn")
        # one token, as it was when it was generated
        return lambda text: split(text.replace("<unk>", "unk"))
    if name == "wp":
        from fairseq_mm.data.story_text import tokenize_story_text

        return tokenize_story_text
    return str.split


def _training_path(args: argparse.Namespace) -> Optional[str]:
    if args.training_text is not None:
        return str(args.training_text)
    return _existing(args.data, "text", "train.wp_target" if args.preset == "wp" else "train.txt")


def _existing(folder: Optional[str], *names: str) -> Optional[str]:
    path = None if folder is None else Path(folder, *names)
    return str(path) if path is not None and path.is_file() else None


def _score_texts(
    args: argparse.Namespace, metrics: list[str], result: dict[str, object]
) -> "list[Row]":
    """Rows of the texts' metrics; adds counts, problems and the comparison to ``result``."""
    from fairseq_mm.cli.score_inputs import join_texts, read_score_references, read_training_texts
    from fairseq_mm.cli.score_output import compare, describe, per_item_lines, write_file
    from fairseq_mm.cli.score_picture_stories import (
        about_split,
        sentences_of,
        submission,
        without_separators,
        written_sentences,
    )
    from fairseq_mm.metrics.text_scores import TokenizedItems, score_texts

    references = read_score_references(args.data, args.split, args.references, args.references_of)
    systems = [join_texts(path, references) for path in (args.hypotheses, args.compare) if path]
    ids = [key for key in references.texts if all(key in system.texts for system in systems)]
    if not ids:
        raise UserError(f"{args.hypotheses} and {args.compare}: have no item in common.")
    if args.submission:
        write_file(args.submission, submission(args.data, args.split, systems[0].texts))
    tokenizer = args.tokenizer or PRESETS[args.preset].tokenizer
    split_words = _tokenizer_of(tokenizer)

    def tokenize(text: str) -> list[str]:
        return split_words(without_separators(text))

    training = _training_path(args) if "novelty" in metrics else None
    training_texts = (
        None if training is None else list(map(tokenize, read_training_texts(training)))
    )
    reference_texts = [references.texts[key] for key in ids]
    tokenized = [list(map(tokenize, texts)) for texts in reference_texts]
    written = None
    if "sentences" in metrics:
        written = written_sentences(args.data, args.split, split_words)
    scored: list[list[Row]] = []
    for system in systems:
        texts = [system.texts[key] for key in ids]
        items = TokenizedItems(
            hypotheses=list(map(tokenize, texts)),
            references=tokenized,
            tokenization=tokenizer,
            training_texts=training_texts,
            meteor_task=args.meteor_task,
            meteor_normalize=not args.no_meteor_norm,
            texts=list(map(without_separators, texts)),
            reference_texts=reference_texts,
            references_of=None if args.references_of == "item" else args.references_of,
            sentences=sentences_of(texts, split_words) if "sentences" in metrics else None,
            written_sentences=written,
        )
        scored.append(score_texts(items, metrics))
    for row in scored[0]:
        row.expected = len(references.texts)
    result["texts"] = [describe(system) for system in systems]
    if args.preset == "vist":
        result["picture_stories"] = about_split(references, ids, args.data, args.hypotheses)
    if len(systems) == 2:
        result["comparison"] = compare(*scored, samples=_samples_of(args), seed=args.seed)
    if args.per_item:
        write_file(args.per_item, per_item_lines(ids, systems[0], references, scored[0]))
    return scored[0]


def _score_stories(
    args: argparse.Namespace, metrics: list[str], result: dict[str, object]
) -> "list[Row]":
    from fairseq_mm.cli.score_stories import score_stories

    tokenizer = args.tokenizer or PRESETS[args.preset].tokenizer
    return score_stories(
        args,
        metrics,
        result,
        tokenizer=tokenizer,
        tokenize=_tokenizer_of(tokenizer),
        training=_training_path(args),
        samples=_samples_of(args),
    )


def _perplexity_rows(args: argparse.Namespace) -> "list[Row]":
    from fairseq_mm.data.visual_ids import read_visual_ids
    from fairseq_mm.metrics.perplexity import (
        corpus_perplexity,
        mean_sentence_perplexity,
        read_log_probabilities,
    )
    from fairseq_mm.metrics.signature import signature
    from fairseq_mm.metrics.text_scores import Row

    properties = {"eq": 5, "unit": "dictionary-token", "eos": "counted"}
    kinds = (("perplexity", "tokens", corpus_perplexity),)
    kinds += (("perplexity_sentence", "sentences", mean_sentence_perplexity),)
    if args.reference_scores is None:
        return [
            Row(
                name, None, signature("ppl", mean=mean, **properties), 0, "needs --reference-scores"
            )
            for name, mean, _ in kinds
        ]
    texts = read_log_probabilities(args.reference_scores)
    expected, note = None, ""
    if args.data is not None:
        expected = len(read_visual_ids(str(Path(args.data) / f"{args.split}.visual_ids")))
        beyond = [number for number in texts if number >= expected]
        if beyond:
            raise UserError(
                f"{args.reference_scores}: line {max(beyond)} must be one of the {expected} lines "
                f"of {args.split} (counted from 0); it comes from another split or data folder."
            )
        missing = [number for number in range(expected) if number not in texts]
        if missing:
            note = f"{len(missing)} of {expected} lines not scored, such as {missing[:NAMED]}"
    return [
        Row(
            name,
            perplexity(texts.values()),
            signature("ppl", mean=mean, **properties),
            len(texts),
            note,
            expected=expected,
        )
        for name, mean, perplexity in kinds
    ]


def _card_of(args: argparse.Namespace, metrics: list[str]) -> dict[str, object]:
    from fairseq_mm.cli.score_inputs import reference_name
    from fairseq_mm.metrics.result_card import result_card

    name = reference_name(args.split, args.references_of)
    references = args.references or _existing(args.data, name)
    return result_card(
        command=shlex.join(["fairseq-mm", *sys.argv[1:]]),
        files={
            "hypotheses": args.hypotheses,
            "compared": args.compare,
            "references": references if args.hypotheses is not None else None,
            "reference_scores": args.reference_scores,
            "training_text": _training_path(args) if {"novelty", "copying"} & {*metrics} else None,
            "dictionary": _existing(args.data, "dict.txt"),
        },
        generated=args.hypotheses or args.reference_scores,
    )
