"""Scores generated text against references.

fairseq-mm score generate-valid.txt --data data-bin/flickr8k --split valid
fairseq-mm score generate-valid.txt --data data-bin/flickr8k --preset m_rnn \\
    --reference-scores scored-valid.txt
fairseq-mm score captions.jsonl --references valid.references.jsonl --metrics bleu,cider
fairseq-mm score results.json --references captions_val2014.json --json scores.json
fairseq-mm score a.txt --data data-bin/flickr8k --compare b.txt
fairseq-mm score summaries.txt --references test.tgt --preset how2
fairseq-mm score stories.jsonl --data data-bin/wp --preset wp --per-item copied.jsonl

HYPOTHESES is fairseq-generate's output (joined with the references through SPLIT.visual_ids), a
JSONL file of {"id", "hypothesis"} or {"id", "caption"}, a plain text file (line i is item i of the
references, or id, tab, text: what fairseq-mm caption prints), or a COCO results file. References
are DATA/SPLIT.references.jsonl, such a file, a COCO annotation file (.json), or a plain text file,
one reference a line (items are then numbered from 0). Texts without references, references without
a text, and texts that are there twice are named on stderr; the rest is scored, and every figure
says out of how many.

Presets: `coco` is coco-caption's protocol (PTB tokens, lower-cased, without punctuation);
`m_rnn` is that of Mao et al. 2015: text split and lower-cased as in their code, punctuation kept,
BLEU of section 9.3, and perplexity, end sign included, from --reference-scores, the output of the
following command over all captions, not one per item:

    fairseq-generate DATA --task multimodal_captioning --score-reference --all-lines ...

`how2` scores summaries of videos as Yu et al. 2021 (Tables 1 and 2): words are what spaces
separate, ROUGE-1, -2 and -L are means of F1 with beta 1 (coco's rouge_l has 1.2), BLEU, METEOR
and CIDEr-D are coco's, and Content F1 is made of METEOR's alignment without its normalisation. With
DATA/SPLIT.transcripts.jsonl novel1 to novel4 say which share of the n-grams is not in the
transcript, and of the references' own. Numbered unknowns (<unk-0>) are replaced by the words that
DATA/SPLIT.unknowns.jsonl has for them. fairseq-mm gain makes of such scores the video's share.

`wp` (Fan et al. 2018) measures stories without references: how varied they are, and copied_words,
the longest contiguous run of words that a story shares with a story of DATA/text/train.wp_target,
on average (section 7.1, where "longest common subsequence" can only mean that). HYPOTHESES is the
output of fairseq-mm tell or retrieve, or any of the layouts above.

`vist` scores stories of five images, one for each photo sequence, <sent> between its sentences:
meteor_vist is the challenge's protocol (EvalVIST: METEOR 1.5 with the task hter, the whole story as
one segment without normalisation, the best of its references, mean over sequences),
meteor_vist_rank the same with the default task, whose figures are about half as large: never
compare the two. The other rows are coco-caption's, over whole stories, and how much sentences
repeat (repeated_*: against earlier sentences of the same story). The card says how many of the
split's sequences were scored, and how many of its images have features.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from fairseq_mm.cli.score_arguments import add_arguments, check_paths, metrics_of, samples_of
from fairseq_mm.cli.score_protocols import PRESETS, tokenizer_of
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.metrics.score_rows import Row

__all__ = ["add_arguments", "run"]


def run(args: argparse.Namespace) -> None:
    from fairseq_mm.cli.score_output import entry_of, print_result, write_file

    metrics = metrics_of(args)
    card_path = args.card
    if card_path == "":
        card_path = f"{args.hypotheses or args.reference_scores}.card.json"
    check_paths(args, card_path)
    result: dict[str, object] = {"preset": args.preset}
    rows: list[Row] = []
    if args.hypotheses is not None:
        scored = [name for name in metrics if name != "perplexity"]
        rows = (_score_stories if args.preset == "wp" else _score_texts)(args, scored, result)
    if "perplexity" in metrics:
        from fairseq_mm.cli.score_perplexity import perplexity_rows

        rows += perplexity_rows(args)
    samples = samples_of(args)
    result["scores"] = [entry_of(row, samples=samples, seed=args.seed) for row in rows]
    print_result(result)
    if args.json or card_path:
        card = _card_of(args, metrics)
        card["signatures"] = {row.name: row.signature for row in rows}
        if "visual_stories" in result:
            card["visual_stories"] = result["visual_stories"]
        if card_path:
            write_file(card_path, json.dumps(card, indent=2, ensure_ascii=False) + "\n")
        if args.json:
            text = json.dumps({**result, "card": card}, indent=2, ensure_ascii=False)
            write_file(args.json, text + "\n")
    if all(row.value is None for row in rows):
        raise UserError(f"no figure could be computed; {rows[0].name}: {rows[0].note}")


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
    from fairseq_mm.cli.score_summaries import read_sources
    from fairseq_mm.cli.score_visual_stories import (
        about_split,
        sentences_of,
        submission,
        without_separators,
        written_sentences,
    )
    from fairseq_mm.metrics.result_card import allows_unk
    from fairseq_mm.metrics.score_rows import TokenizedItems
    from fairseq_mm.metrics.text_scores import score_texts

    references = read_score_references(args.data, args.split, args.references, args.references_of)
    systems = [join_texts(path, references) for path in (args.hypotheses, args.compare) if path]
    ids = [key for key in references.texts if all(key in system.texts for system in systems)]
    if not ids:
        raise UserError(f"{args.hypotheses} and {args.compare}: have no item in common.")
    if args.submission:
        write_file(args.submission, submission(args.data, args.split, systems[0].texts))
    tokenizer = args.tokenizer or PRESETS[args.preset].tokenizer
    split_words = tokenizer_of(tokenizer)

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
    sources = None
    if "novel_ngrams" in metrics:
        sources = read_sources(args.data, args.split, ids, split_words)
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
            sources=sources,
            allows_unk=allows_unk(system.path),
        )
        scored.append(score_texts(items, metrics))
    for row in scored[0]:
        row.expected = len(references.texts)
    result["texts"] = [describe(system) for system in systems]
    if args.preset == "vist":
        result["visual_stories"] = about_split(references, ids, args.data, args.hypotheses)
    if len(systems) == 2:
        result["comparison"] = compare(*scored, samples=samples_of(args), seed=args.seed)
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
        tokenize=tokenizer_of(tokenizer),
        training=_training_path(args),
        samples=samples_of(args),
    )


def _card_of(args: argparse.Namespace, metrics: list[str]) -> dict[str, object]:
    from fairseq_mm.cli.score_inputs import reference_name
    from fairseq_mm.cli.score_summaries import transcripts_path, unknowns_path
    from fairseq_mm.metrics.result_card import result_card

    name = reference_name(args.split, args.references_of)
    references = args.references or _existing(args.data, name)
    transcripts = unknowns = None
    if args.hypotheses is not None:
        unknowns = unknowns_path(args.data, args.split)
        if "novel_ngrams" in metrics:
            transcripts = transcripts_path(args.data, args.split)
    return result_card(
        command=shlex.join(["fairseq-mm", *sys.argv[1:]]),
        files={
            "hypotheses": args.hypotheses,
            "compared": args.compare,
            "references": references if args.hypotheses is not None else None,
            "reference_scores": args.reference_scores,
            "training_text": _training_path(args) if {"novelty", "copying"} & {*metrics} else None,
            "transcripts": transcripts and str(transcripts),
            "unknowns": unknowns and str(unknowns),
            "dictionary": _existing(args.data, "dict.txt") or _existing(args.data, "dict.desc.txt"),
        },
        generated=args.hypotheses or args.reference_scores,
    )
