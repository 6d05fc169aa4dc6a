"""Ranks images and sentences for ``fairseq-mm rank``, by likelihood or by vectors."""

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

from fairseq_mm.cli.likelihood import build_card, load_on_data
from fairseq_mm.cli.rank_stories import name_output
from fairseq_mm.cli.run_set_up import only_writer
from fairseq_mm.data.elapsed_time import elapsed_time
from fairseq_mm.data.output_file import write_file
from fairseq_mm.data.split_files import read_published_captions
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import Checkpoint, usable_device
from fairseq_mm.metrics.ranks import (
    RankSummary,
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
from fairseq_mm.retrieval.likelihood import build_likelihood
from fairseq_mm.retrieval.nearest_vectors import nearest, unit_vectors
from fairseq_mm.retrieval.score_file import ScoreFile
from fairseq_mm.retrieval.split_to_rank import (
    SplitToRank,
    mean_training_image,
    sample_training_images,
)
from fairseq_mm.retrieval.vector_ranking import rank_vectors
from fairseq_mm.tasks._ranking_validation import embed_split

TITLES = {
    "image_retrieval": "images for a sentence",
    "sentence_retrieval": "sentences for an image",
    "sentence_retrieval_shortlist": "sentences for an image, shortlist",
}


class Retrieval(NamedTuple):
    """Results of retrieval in one direction: images for sentences, or sentences for images.

    Attributes:
        summary: Recall, median rank and mean rank of the model.
        chance: Recall, median rank and mean rank of a random order.
        ids: Id of each query: line number of the sentence, or id of the image.
        ranks: For each query, the rank of its highest-ranked correct candidate.
        best: For each query, JSON records of the ``--top`` best candidates; None without ``--top``.
        curve: Recall at each percentage of retrieved candidates; None if no curve is drawn.
    """

    summary: RankSummary
    chance: RankSummary
    ids: Sequence[Any]
    ranks: list[int]
    best: Optional[list[list[dict[str, Any]]]] = None
    curve: Optional[np.ndarray] = None


def rank_images(args: argparse.Namespace, checkpoints: Sequence[Checkpoint], kind: str) -> None:
    """Rank images for sentences and sentences for images; print and write the results.

    Args:
        args: Parsed command line.
        checkpoints: One opened checkpoint, or several image-sentence embeddings, whose cosines are
            averaged.
        kind: Kind of the checkpoint: ``captions`` ranks by likelihood, ``vectors`` by cosine.
    """
    started = time.time()
    checkpoint = checkpoints[0].path
    others = [each.path for each in checkpoints if each.kind != "vectors"]
    if others and len(checkpoints) > 1:
        raise UserError(
            f"{others[0]}: must be an embedding (vse_lstm, vse_gru, vse_bow), because an ensemble "
            "ranks images by cosines, but is no embedding; give one checkpoint."
        )
    if checkpoints[0].reads_structure:
        raise UserError(
            f"{checkpoint}: reads the tags of a sentence, and has no likelihood without them: rank "
            "by a model of captions (m_rnn, mlbl_f) or of vectors (vse_lstm, vse_gru, vse_bow)."
        )
    device = usable_device(args.device)
    models, task = load_on_data(checkpoints, args)
    task.load_dataset(args.split, combine=False)
    files = [each.path for each in checkpoints]
    output = args.output or name_output(files, args.split)
    card = _build_card(args, files, task, device)
    # Two runs at once would write the same files of scores.
    with only_writer(output):
        if kind == "vectors":
            retrievals = _rank_by_vectors(models, task, args, device)
            result: dict[str, Any] = {}
            card["scores"] = {"of": "inner products of vectors"}
        else:
            retrievals, card["scores"] = _rank_by_likelihood(
                models[0], task, args, device, checkpoint, output
            )
            curves = {name: each.curve.tolist() for name, each in retrievals.items()}  # type: ignore[union-attr]
            result = {"curves": {"percentage": curve_percentages().tolist(), **curves}}
        card["seconds"] = round(time.time() - started, 1)
        _report(retrievals, result, output, args, card)


def _build_card(
    args: argparse.Namespace, checkpoints: Sequence[str], task: Any, device: torch.device
) -> dict[str, Any]:
    files = {
        "checkpoint": checkpoints[0],
        **{f"checkpoint_{i}": path for i, path in enumerate(checkpoints[1:], 2)},
        "dictionary": os.path.join(args.data, "dict.txt"),
        "text": os.path.join(args.data, f"{args.split}.bin"),
        "visual_ids": os.path.join(args.data, f"{args.split}.visual_ids"),
    }
    names = ("marginal", "marginal_images", "shortlist", "max_images")
    card = build_card(args, files, names, device)
    # PyTorch chooses the number if --threads is not given; it can change the last digits.
    card["options"]["threads"] = torch.get_num_threads()
    card["features"] = {"path": task.features.path, **task.feature_attributes}
    card["dictionary_fingerprint"] = fingerprint(list_words(task.target_dictionary))
    return card


def _rank_by_likelihood(
    model: Any,
    task: Any,
    args: argparse.Namespace,
    device: torch.device,
    checkpoint: str,
    output: str,
) -> tuple[dict[str, Retrieval], dict[str, Any]]:
    """Rank the images and sentences of the split that ``task`` has loaded, by likelihood.

    Returns:
        retrievals: Dict from a direction, such as ``image_retrieval``, to its results.
        identity: Settings on which the likelihoods depend.
    """
    sampled, mean_image = [], None
    if args.marginal == "sampled":
        sampled = sample_training_images(args.data, args.marginal_images, args.seed)
    elif args.marginal == "mean_image":
        mean_image = mean_training_image(args.data, task.features)
    split = SplitToRank(
        task.datasets[args.split],
        max_images=args.max_images,
        sampled=sampled,
        mean_image=mean_image,
    )
    blocks = ranking.sentence_blocks(split.sentences, len(split))
    # Scores of an earlier run are reused only if all entries are equal. Blocks are included,
    # because finished scores are recorded by block.
    identity = {
        "checkpoint": str(file_hash(checkpoint).get("sha256"))[:12],
        **split.identity(),
        "precision": args.precision,
        "blocks": len(blocks),
    }
    file = ScoreFile(output, identity, len(split.sentences), len(split.images))
    if not file.is_finished:
        _fill(file, model.to(device), task, split, blocks, args)
    print(f"{output}: log_probs.npy {list(file.log_probs.shape)}", file=sys.stderr)

    truth = split.image_of_sentence
    normalised = (file.log_probs, file.log_marginals, truth)
    if mean_image is not None:
        # Kiros et al. 2014b divide perplexities, whose logarithms are means over words.
        lengths = np.array([len(sentence) for sentence in split.sentences])
        normalised = (file.log_probs / lengths[:, None], file.log_marginals / lengths, truth)
    with elapsed_time("rank"):
        ranks_by_task = _rank_both_ways(normalised, file.log_probs, split, args.shortlist)
    best: dict[str, Any] = {}
    if args.top:
        texts = caption_texts(task, args.split, split.lines)
        scores = normalised[0] - normalised[1][:, None]
        best["image_retrieval"] = best_candidates(file.log_probs, args.top, split.images)
        best["sentence_retrieval"] = best_candidates(scores.T, args.top, split.lines, texts)
    retrievals = {
        name: Retrieval(
            summarize_ranks(ranks),
            chance_summary(np.bincount(ranks.query), ranks.num_candidates),
            split.lines if name == "image_retrieval" else split.images,
            ranks.first.tolist(),
            best.get(name),
            recall_curve(ranks),
        )
        for name, ranks in ranks_by_task.items()
    }
    return retrievals, identity


def _rank_both_ways(
    normalised: tuple[np.ndarray, np.ndarray, np.ndarray],
    log_probs: np.ndarray,
    split: SplitToRank,
    shortlist: Optional[int],
) -> dict[str, Any]:
    """Rank images for sentences and sentences for images; return the ranks by direction.

    Args:
        normalised: First three arguments of :func:`.ranking.rank_sentences`.
        log_probs: [sentences, images] log P(sentence | image) by which images are ranked.
        split: Images and sentences.
        shortlist: Number of nearest images for a second ranking of sentences, in which only the
            sentences of these images are candidates; None for no second ranking.
    """
    # P(sentence) is the same for all images, so that ranking images does not need it.
    ranks = {
        "image_retrieval": ranking.rank_images(log_probs, normalised[2]),
        "sentence_retrieval": ranking.rank_sentences(*normalised),
    }
    if shortlist:
        allowed = ranking.nearest_images(split.mean_features(), shortlist)
        ranks["sentence_retrieval_shortlist"] = ranking.rank_sentences(*normalised, allowed)
    return ranks


def _fill(
    file: ScoreFile,
    model: Any,
    task: Any,
    split: SplitToRank,
    blocks: list[np.ndarray],
    args: argparse.Namespace,
) -> None:
    """Compute log P(sentence | image) where ``file`` lacks it, and write it to the file.

    ``blocks`` has the indices of the sentences that are scored together. The scores of a block are
    either complete in the file or missing.
    """
    device = next(model.parameters()).device
    likelihood = build_likelihood(
        model,
        split.read_images,
        len(split),
        start=task.target_dictionary.eos(),
        precision=args.precision,
        block_rows=1024 if device.type == "cpu" else 65536,
    )
    with tqdm(
        total=len(split.sentences),
        initial=sum(len(blocks[block]) for block in file.finished_blocks),
        unit="sentence",
        desc=f"{len(split)} images",
        disable=None,  # on a terminal only
    ) as progress:
        ranking.fill_scores(
            file,
            likelihood,
            split.sentences,
            blocks,
            len(split.images),
            on_block=progress.update,
        )


def caption_texts(task: Any, split: str, lines: Sequence[int]) -> list[str]:
    """Return the captions of lines of a split as they were published, before tokenization.

    If the data folder has no published captions, the captions are decoded from the binarized text,
    in which unknown words are ``<unk>``.

    Args:
        task: Task that has loaded the split.
        split: Name of the split.
        lines: Line numbers, counted from 0.
    """
    captions = read_published_captions(task.cfg.data, split)
    if captions is not None:
        return [captions[line] for line in lines]
    targets = task.datasets[split].target
    return [task.target_dictionary.string(targets[line]) for line in lines]


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
        places = np.argsort(-row, kind="stable")[:top].tolist()
        records.append(_build_records(places, row[places].tolist(), ids, texts))
    return records


def _build_records(
    places: Sequence[int],
    scores: Sequence[float],
    ids: Sequence[Any],
    texts: Optional[Sequence[str]],
) -> list[dict[str, Any]]:
    return [
        {"id": ids[i], "score": round(score, 4), **({} if texts is None else {"text": texts[i]})}
        for i, score in zip(places, scores)
    ]


class SplitVectors(NamedTuple):
    """Vectors of the I images and N sentences of a split, of dimension K.

    Attributes:
        images: [I, K] float32 vectors of the images.
        sentences: [N, K] float32 vectors of the sentences.
        image_of_sentence: [N] for each sentence, the index in ``images`` of its image.
        image_names: [I] ids of the images.
        lines: [N] line number of each sentence in the split, ascending.
    """

    images: np.ndarray
    sentences: np.ndarray
    image_of_sentence: np.ndarray
    image_names: list[str]
    lines: np.ndarray


def embed_split_in_order(dataset: Any, model: Any, device: Any) -> SplitVectors:
    """Embed the images and sentences of a split, and return their vectors.

    The sentences are in the order of their lines, the images in the order of their first lines.
    """
    images, sentences, items = embed_split(dataset, model.to(device), torch.device(device))
    # embed_split returns sentences in this order, which is sorted by length.
    lines = dataset.lines[dataset.ordered_indices()]
    order = np.argsort(lines)
    return SplitVectors(
        images,
        sentences[order],
        items[order],
        list(dict.fromkeys(dataset.visual_ids[line] for line in dataset.lines)),
        lines[order],
    )


def _join(splits: Sequence[SplitVectors]) -> SplitVectors:
    """Join the unit vectors of several embeddings; products of the results are mean cosines."""
    images = [unit_vectors(split.images, "image") for split in splits]
    sentences = [unit_vectors(split.sentences, "sentence") for split in splits]
    return splits[0]._replace(images=np.hstack(images), sentences=np.hstack(sentences))


def _rank_by_vectors(
    models: Sequence[Any], task: Any, args: argparse.Namespace, device: torch.device
) -> dict[str, Retrieval]:
    dataset = task.datasets[args.split]
    with elapsed_time("embed images and sentences"):
        split, *others = (embed_split_in_order(dataset, model, device) for model in models)
    if others:
        split = _join([split, *others])
    images, owner, names = split.images, split.image_of_sentence, split.image_names
    is_kept = owner < (args.max_images or len(images))
    # --max-images counts images in the order of their first lines, which is the order here.
    images, names = images[: args.max_images], names[: args.max_images]
    sentences, owner, lines = split.sentences[is_kept], owner[is_kept], split.lines[is_kept]
    with elapsed_time("rank"):
        ranks = rank_vectors(images, sentences, owner)
    I, N = len(images), len(sentences)  # noqa: E741

    def find_best(
        queries: np.ndarray, candidates: np.ndarray, ids: Sequence[Any], texts: Any = None
    ) -> list[list[dict[str, Any]]]:
        places, cosines = nearest(queries, candidates, min(args.top, len(candidates)))
        rows = zip(places.tolist(), cosines.tolist())
        return [_build_records(*row, ids, texts) for row in rows]

    best_images, best_sentences = None, None
    if args.top:
        texts = caption_texts(task, args.split, lines.tolist())
        units = unit_vectors(sentences, "sentence"), unit_vectors(images, "image")
        best_images = find_best(units[0], units[1], names)
        best_sentences = find_best(units[1], units[0], lines.tolist(), texts)
    return {
        "image_retrieval": Retrieval(
            summarize_ranks(TrueRanks(np.arange(N), ranks.image_ranks, np.full(N, I))),
            chance_summary(np.ones_like(owner), np.full(N, I)),
            lines.tolist(),
            ranks.image_ranks.tolist(),
            best_images,
        ),
        "sentence_retrieval": Retrieval(
            summarize_ranks(TrueRanks(np.arange(I), ranks.sentence_ranks, np.full(I, N))),
            chance_summary(np.bincount(owner), np.full(I, N)),
            names,
            ranks.sentence_ranks.tolist(),
            best_sentences,
        ),
    }


def _report(
    retrievals: Mapping[str, Retrieval],
    result: Mapping[str, Any],
    output: str,
    args: argparse.Namespace,
    card: dict[str, Any],
) -> None:
    """Print the table of results, and write the files of the output folder.

    ``retrievals`` has the results by direction, ``result`` further fields of ranks.json, and
    ``card`` the record of the run (command, options, hashes of files, versions).
    """
    figures = {name: asdict(task.summary) for name, task in retrievals.items()}
    chance = {name: asdict(task.chance) for name, task in retrievals.items()}
    # rsum is defined by VSE++'s code: the recalls of both directions, without a shortlist.
    rsum = sum(
        value
        for name in ("image_retrieval", "sentence_retrieval")
        for value in figures[name]["recall_at"].values()
    )
    _print(figures, chance, rsum)
    whole = {"results": figures, "chance": chance, "rsum": rsum, **result, "card": card}
    lines = []
    for name, task in retrievals.items():
        for number, (query, rank) in enumerate(zip(task.ids, task.ranks)):
            entry = {"task": name, "id": query, "rank": rank}
            if task.best is not None:
                entry["top"] = task.best[number]
            lines.append(json.dumps(entry, ensure_ascii=False) + "\n")
    files = {"ranks.json": json.dumps(whole, indent=2) + "\n", "ranks.jsonl": "".join(lines)}
    if "curves" in result:
        files.update(_curve_files(retrievals, args))
    for name, text in files.items():
        write_file(os.path.join(output, name), text)
    print(f"{output}: wrote {', '.join(files)}", file=sys.stderr)


def _print(
    figures: Mapping[str, dict[str, Any]], chance: Mapping[str, dict[str, Any]], rsum: float
) -> None:
    """Print a table of the model's results (``figures``) and of a random order (``chance``).

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


def _curve_files(retrievals: Mapping[str, Retrieval], args: argparse.Namespace) -> dict[str, str]:
    percentages = curve_percentages()
    curves = {name: task.curve for name, task in retrievals.items() if task.curve is not None}
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["percentage", *curves])
    for row in zip(percentages, *curves.values()):
        writer.writerow([f"{value:.6g}" for value in row])
    files = {"recall_curve.csv": table.getvalue()}
    data = os.path.basename(args.data.rstrip(os.sep))
    title = f"{data}, {args.split}: {len(retrievals['sentence_retrieval'].ids)} images"
    try:
        named = {TITLES[name]: curve for name, curve in curves.items()}
        files["recall_curve.svg"] = recall_chart(title, percentages, named)
    except UserError as error:  # a missing chart must not discard hours of scoring
        print(f"no recall_curve.svg: {error}", file=sys.stderr)
    return files
