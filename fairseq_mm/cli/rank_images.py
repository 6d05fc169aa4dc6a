"""Ranks images and sentences by likelihood or vectors, for ``rank`` and ``retrieve nearest``."""

import argparse
import csv
import io
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from tqdm.auto import tqdm

from fairseq_mm.cli.split_texts import build_card, load_on_data, name_output
from fairseq_mm.data.collate import pad_features
from fairseq_mm.data.elapsed_time import elapsed_time
from fairseq_mm.data.folder_lock import only_writer
from fairseq_mm.data.multimodal_dataset import encode_words
from fairseq_mm.data.output_file import write_file
from fairseq_mm.data.records import open_split
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import SEED
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.inference.embedder import get_tokenizer
from fairseq_mm.inference.image_processor import ImageReader
from fairseq_mm.metrics.ranks import (
    TrueRanks,
    chance_summary,
    curve_percentages,
    recall_curve,
    summarize_ranks,
)
from fairseq_mm.metrics.result_card import file_hash
from fairseq_mm.models._provenance import fingerprint, list_words
from fairseq_mm.report.figures import recall_chart
from fairseq_mm.retrieval import ranking
from fairseq_mm.retrieval.likelihood import build_likelihood, check_finite, log_marginal
from fairseq_mm.retrieval.nearest_vectors import nearest, unit_vectors
from fairseq_mm.retrieval.score_file import ScoreFile
from fairseq_mm.retrieval.vector_ranking import rank_vectors
from fairseq_mm.tasks._ranking_validation import embed_split

MARGINAL_IMAGES = 100
IMAGES, SENTENCES = "image_retrieval", "sentence_retrieval"
SHORTLIST = "sentence_retrieval_shortlist"
TITLES = {
    IMAGES: "images for a sentence",
    SENTENCES: "sentences for an image",
    SHORTLIST: "sentences for an image, shortlist",
}


class Retrieval(NamedTuple):
    """Retrieval results in one direction: images for sentences, or sentences for images."""

    ids: Sequence[Any]  # id of each query: line number of the sentence, or id of the image
    ranks: TrueRanks  # ranks of the correct candidates of each query
    num_true: np.ndarray  # number of correct candidates of each query
    # for each query, JSON records of the ``--top`` best candidates; None without ``--top``
    best: Optional[list[list[dict[str, Any]]]] = None


def rank_images(args: argparse.Namespace, checkpoints: Sequence[Checkpoint]) -> None:
    """Rank images for sentences and sentences for images; print and write the results.

    ``checkpoints`` are one model of captions, which ranks by likelihood, or image-sentence
    embeddings, whose cosines are averaged.
    """
    started = time.time()
    by_vectors = all(each.kind == "vectors" for each in checkpoints)
    if not by_vectors:
        _check_captioner(checkpoints)
    models, task = load_on_data(checkpoints, args)
    device = next(models[0].parameters()).device
    files = [each.path for each in checkpoints]
    output = args.output or name_output(files, args.split)
    inputs = {
        "checkpoint": files[0],
        **{f"checkpoint_{i}": path for i, path in enumerate(files[1:], 2)},
        "dictionary": os.path.join(args.data, "dict.txt"),
        "split": open_split(args.data, args.split).path,
    }
    names = ("marginal", "marginal_images", "shortlist", "max_images")
    card = build_card(args, inputs, names, device)
    # the number can change the last digits
    card["options"]["threads"] = torch.get_num_threads()
    card["features"] = {"path": task.features.path, **task.feature_attributes}
    card["dictionary_fingerprint"] = fingerprint(list_words(task.target_dictionary))
    # Two runs at once would write the same files of scores.
    with only_writer(output):
        if by_vectors:
            retrievals = _rank_by_vectors(models, task, args, device)
            card["scores"] = {"of": "inner products of vectors"}
        else:
            retrievals, card["scores"] = _rank_by_likelihood(
                models[0], task, args, files[0], output
            )
        card["seconds"] = round(time.time() - started, 1)
        _report(retrievals, output, args, card, has_curves=not by_vectors)


def _check_captioner(checkpoints: Sequence[Checkpoint]) -> Checkpoint:
    """Return the checkpoint; raise UserError unless it is one captioner that reads no tags."""
    first = checkpoints[0]
    if first.kind != "captions" or first.reads_structure or len(checkpoints) > 1:
        raise UserError(
            f"{first.path}: must be one model of captions that reads no tags (m_rnn, mlbl_f), or "
            "an embedding (vse_lstm, vse_gru, vse_bow), of which retrieve needs a --store."
        )
    return first


def _rank_by_likelihood(
    model: Any, task: Any, args: argparse.Namespace, checkpoint: str, output: str
) -> tuple[dict[str, Retrieval], dict[str, Any]]:
    """Rank by likelihood. Return a dict from the direction, such as ``image_retrieval``, to its
    results, and the settings on which the likelihoods depend."""
    sampled, mean_image = [], None
    if args.marginal == "sampled":
        sampled = ranking.sample_training_images(args.data, args.marginal_images, args.seed)
    elif args.marginal == "mean_image":
        mean_image = ranking.mean_training_image(args.data, task.features)
    split = ranking.SplitToRank(
        task.datasets[args.split],
        max_images=args.max_images,
        sampled=sampled,
        mean_image=mean_image,
    )
    blocks = ranking.sentence_blocks(split.sentences, len(split))
    # Scores of an earlier run are reused only if all entries are equal. In another division into
    # blocks, scores may differ in the last digits.
    settings = {
        "checkpoint": str(file_hash(checkpoint).get("sha256"))[:12],
        **split.identity(),
        "precision": args.precision,
        "blocks": len(blocks),
    }
    file = ScoreFile(output, settings, len(split.sentences), len(split.images))
    if not file.has(np.arange(len(split.sentences))):
        likelihood = build_likelihood(
            model,
            split.read_images,
            len(split),
            start=task.target_dictionary.eos(),
            precision=args.precision,
            block_rows=1024 if next(model.parameters()).device.type == "cpu" else 65536,
        )
        with tqdm(
            total=len(split.sentences), unit="sentence", desc=f"{len(split)} images", disable=None
        ) as progress:
            ranking.fill_scores(file, likelihood, split.sentences, blocks, on_block=progress.update)
    file.finish()
    print(f"{output}: log_probs.npy {list(file.log_probs.shape)}", file=sys.stderr)

    owner, log_probs = split.image_of_sentence, file.log_probs
    normalised = (log_probs, file.log_marginals, owner)
    if mean_image is not None:
        # Kiros et al. 2014b divide perplexities, whose logarithms are means over words.
        lengths = np.array([len(sentence) for sentence in split.sentences])
        normalised = (log_probs / lengths[:, None], file.log_marginals / lengths, owner)
    best_images, best_sentences = None, None
    if args.top:
        texts = caption_texts(args, split.lines)
        scores = normalised[0] - normalised[1][:, None]
        best_images = best_candidates(log_probs, args.top, split.images)
        best_sentences = best_candidates(scores.T, args.top, split.lines, texts)
    with elapsed_time("rank"):
        # P(sentence) is the same for all images, so that ranking images does not need it.
        by_image = ranking.rank_images(log_probs, owner)
        by_sentence = ranking.rank_sentences(*normalised)
        counts = np.bincount(owner)
        retrievals = {
            IMAGES: Retrieval(split.lines, by_image, np.ones_like(owner), best_images),
            SENTENCES: Retrieval(split.images, by_sentence, counts, best_sentences),
        }
        if args.shortlist:
            places = range(len(split.images))
            means = np.stack([split.rows(place).mean(0, dtype=np.float32) for place in places])
            allowed = ranking.nearest_images(means, args.shortlist)
            listed = ranking.rank_sentences(*normalised, allowed)
            retrievals[SHORTLIST] = Retrieval(split.images, listed, counts)
    return retrievals, settings


def caption_texts(args: argparse.Namespace, lines: Sequence[int]) -> list[str]:
    """Return the published captions of some lines (counted from 0) of the split."""
    texts = open_split(args.data, args.split).texts
    return [texts[line] for line in lines]


def best_candidates(
    scores: np.ndarray, top: int, ids: Sequence[Any], texts: Optional[Sequence[str]] = None
) -> list[list[dict[str, Any]]]:
    """Return, for each query, JSON records (id, score, text) of the ``top`` best candidates.

    Args:
        scores: [queries, candidates] scores, higher for better candidates.
        top: Number of candidates in the result.
        ids: Id of each candidate.
        texts: Text of each candidate; None for records without text.
    """
    records = []
    for row in scores:
        places = np.argsort(-row, kind="stable")[:top]
        records.append(_build_records(places, row[places], ids, texts))
    return records


def _build_records(
    places: np.ndarray, scores: np.ndarray, ids: Sequence[Any], texts: Optional[Sequence[str]]
) -> list[dict[str, Any]]:
    return [
        {"id": ids[i], "score": round(score, 4), **({} if texts is None else {"text": texts[i]})}
        for i, score in zip(places.tolist(), scores.tolist())
    ]


def _rank_by_vectors(
    models: Sequence[Any], task: Any, args: argparse.Namespace, device: torch.device
) -> dict[str, Retrieval]:
    dataset = task.datasets[args.split]
    with elapsed_time("embed images and sentences"):
        splits = [embed_split(dataset, model, device) for model in models]
    images, sentences, owner = splits[0]
    if len(splits) > 1:  # products of joined unit vectors are sums of cosines
        images = np.hstack([unit_vectors(x, "image") for x, _, _ in splits])
        sentences = np.hstack([unit_vectors(x, "sentence") for _, x, _ in splits])
    # embed_split sorts sentences by length; here they are in the order of their lines, and images
    # in the order of their first lines.
    lines = dataset.lines[dataset.ordered_indices()]
    order = np.argsort(lines)
    sentences, owner, lines = sentences[order], owner[order], lines[order]
    names = list(dict.fromkeys(dataset.visual_ids[line] for line in dataset.lines))
    is_kept = owner < (args.max_images or len(images))
    # --max-images counts images in the order of their first lines, which is the order here.
    images, names = images[: args.max_images], names[: args.max_images]
    sentences, owner, lines = sentences[is_kept], owner[is_kept], lines[is_kept].tolist()
    with elapsed_time("rank"):
        ranks = rank_vectors(images, sentences, owner)

    best_images, best_sentences = None, None
    if args.top:
        units = unit_vectors(sentences, "sentence"), unit_vectors(images, "image")
        texts = caption_texts(args, lines)
        found = nearest(*units, min(args.top, len(images)))
        best_images = [_build_records(*row, names, None) for row in zip(*found)]
        found = nearest(*units[::-1], min(args.top, len(sentences)))
        best_sentences = [_build_records(*row, lines, texts) for row in zip(*found)]
    I, N = len(images), len(sentences)  # noqa: E741
    by_image = TrueRanks(np.arange(N), ranks.image_ranks, np.full(N, I))
    by_sentence = TrueRanks(np.arange(I), ranks.sentence_ranks, np.full(I, N))
    return {
        IMAGES: Retrieval(lines, by_image, np.ones_like(owner), best_images),
        SENTENCES: Retrieval(names, by_sentence, np.bincount(owner), best_sentences),
    }


def _report(
    retrievals: Mapping[str, Retrieval],
    output: str,
    args: argparse.Namespace,
    card: Mapping[str, Any],
    *,
    has_curves: bool,
) -> None:
    """Print the table of results, and write the files of the output folder.

    Args:
        retrievals: Results by direction.
        card: Record of the run (command, options, hashes of files, versions).
        has_curves: True to write the recall curves, which need the ranks of all true candidates.
    """
    figures, chance, curves, lines = {}, {}, {}, []
    for name, (ids, ranks, num_true, best) in retrievals.items():
        figures[name] = asdict(summarize_ranks(ranks))
        chance[name] = asdict(chance_summary(num_true, ranks.num_candidates))
        if has_curves:
            curves[name] = recall_curve(ranks)
        for number, (query, rank) in enumerate(zip(ids, ranks.first.tolist())):
            entry = {"task": name, "id": query, "rank": rank}
            if best is not None:
                entry["top"] = best[number]
            lines.append(json.dumps(entry, ensure_ascii=False) + "\n")
    # rsum is defined by VSE++'s code: the recalls of both directions, without a shortlist.
    rsum = sum(sum(figures[name]["recall_at"].values()) for name in (IMAGES, SENTENCES))
    _print(figures, chance, rsum)
    whole: dict[str, Any] = {"results": figures, "chance": chance, "rsum": rsum}
    files = {"ranks.jsonl": "".join(lines)}
    if has_curves:
        percentages = curve_percentages()
        points = {name: curve.tolist() for name, curve in curves.items()}
        whole["curves"] = {"percentage": percentages.tolist(), **points}
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["percentage", *curves])
        writer.writerows([f"{x:.6g}" for x in row] for row in zip(percentages, *curves.values()))
        files["recall_curve.csv"] = table.getvalue()
        data = os.path.basename(args.data.rstrip(os.sep))
        title = f"{data}, {args.split}: {len(retrievals[SENTENCES].ids)} images"
        named = {TITLES[name]: curve for name, curve in curves.items()}
        files["recall_curve.svg"] = recall_chart(title, percentages, named)
    files = {"ranks.json": json.dumps({**whole, "card": card}, indent=2) + "\n", **files}
    for name, text in files.items():
        write_file(os.path.join(output, name), text)
    print(f"{output}: wrote {', '.join(files)}", file=sys.stderr)


def _print(
    figures: Mapping[str, dict[str, Any]], chance: Mapping[str, dict[str, Any]], rsum: float
) -> None:
    """Print a table of the results of the model (``figures``) and of a random order (``chance``).

    Both are dicts by direction. ``rsum`` is the sum of the recalls of both directions, in percent.
    """
    width = max(len(TITLES[name]) for name in figures)
    print(f"{'':{width}}    R@1    R@5   R@10   Med r  mean r  queries  candidates")
    for name in figures:
        for title, entry in ((TITLES[name], figures[name]), ("  at chance", chance[name])):
            recall = " ".join(f"{value:6.1f}" for value in entry["recall_at"].values())
            print(
                f"{title:{width}} {recall} {entry['median_rank']:7.4g} "
                f"{entry['mean_rank']:7.1f} {entry['queries']:8} {entry['candidates']:11.6g}"
            )
    print(f"rsum {rsum:.1f}")


def nearest_by_likelihood(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Search the split ``args.split`` by likelihood; return JSON records, best first.

    A sentence as query finds images; an image as query finds sentences.
    """
    if not (args.checkpoint and args.data):
        raise UserError(
            "give --store, vectors to search, or --checkpoint and --data, to search the images "
            "and sentences of a data folder by the likelihood of a model of captions."
        )
    checkpoints = Checkpoint.open_all(args.checkpoint)
    checkpoint = _check_captioner(checkpoints)
    (model,), task = load_on_data(checkpoints, args)
    start = task.target_dictionary.eos()
    if args.text is not None:  # ranking images needs no P(sentence)
        split = ranking.SplitToRank(task.datasets[args.split])
        words = get_tokenizer(task.target_dictionary)(args.text)
        text = [*encode_words(task.target_dictionary, " ".join(words)).tolist(), start]
        log_probs = build_likelihood(model, split.read_images, len(split), start=start)([text])
        check_finite(log_probs)
        (found,) = best_candidates(log_probs.cpu().numpy(), args.top, split.images)
    else:
        number = args.marginal_images or MARGINAL_IMAGES
        sampled = ranking.sample_training_images(args.data, number, SEED)
        split = ranking.SplitToRank(task.datasets[args.split], sampled=sampled)
        # The first column of the scores is the query, the others are sampled training images.
        others = range(len(split.images), len(split))
        if args.id is None:
            reader = ImageReader(checkpoint.build(args.device), weights=args.weights)
            query = reader.read_all_features([args.image])[0]
        elif args.id in split.images:
            query = split.rows(split.images.index(args.id))
        else:
            raise UserError(f"--id {args.id}: is no image of {args.split} of {args.data}.")
        rows = [query, *map(split.rows, others)]
        likelihood = build_likelihood(
            model, lambda first, end: pad_features(rows[first:end]), len(rows), start=start
        )
        scores = np.empty((1, len(split.sentences)))
        for block in ranking.sentence_blocks(split.sentences, len(rows)):
            log_probs = likelihood([split.sentences[i] for i in block])
            check_finite(log_probs)
            given_image = log_probs.cpu().numpy()
            # log P(s | query) - log P(s) (equation 7)
            scores[0, block] = given_image[:, 0] - log_marginal(given_image[:, 1:])
        ids = [f"{args.split}:{line}" for line in split.lines]
        texts = caption_texts(args, split.lines)
        (found,) = best_candidates(scores, args.top, ids, texts)
    # --jsonl writes the fields in this order.
    return [
        {"id": item["id"], "score": item["score"], "rank": rank, "text": item.get("text")}
        for rank, item in enumerate(found, start=1)
    ]
