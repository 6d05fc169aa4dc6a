"""Runs ``fairseq-mm retrieve nearest`` by likelihood, for models of captions."""

import argparse
from typing import Any

import numpy as np

from fairseq_mm.cli.rank_images import best_candidates, caption_texts
from fairseq_mm.cli.split_texts import load_on_data
from fairseq_mm.data.collate import pad_features
from fairseq_mm.data.multimodal_dataset import encode_words
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.inference.embedder import get_tokenizer
from fairseq_mm.inference.readers import ImageReader
from fairseq_mm.retrieval.likelihood import build_likelihood, check_finite, log_marginal
from fairseq_mm.retrieval.ranking import sentence_blocks
from fairseq_mm.retrieval.split_to_rank import SplitToRank, sample_training_images

MARGINAL_IMAGES = 100


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
    checkpoint = checkpoints[0]
    if checkpoint.kind != "captions" or checkpoint.reads_structure or len(checkpoints) > 1:
        raise UserError(
            f"{checkpoint.path}: must be one checkpoint of a model of captions (m_rnn, mlbl_f) "
            "where there is no --store, which `fairseq-mm embed` makes of an embedding's vectors."
        )
    (model,), task = load_on_data(checkpoints, args)
    start = task.target_dictionary.eos()
    if args.text is not None:  # ranking images needs no P(sentence)
        split = SplitToRank(task.datasets[args.split])
        words = get_tokenizer(task.target_dictionary)(args.text)
        if not words:
            raise UserError(f"the text {args.text!r} must have a word, but has none.")
        text = [*encode_words(task.target_dictionary, " ".join(words)).tolist(), start]
        log_probs = build_likelihood(model, split.read_images, len(split), start=start)([text])
        check_finite(log_probs)
        (found,) = best_candidates(log_probs.cpu().numpy(), args.top, split.images)
    else:
        number = args.marginal_images or MARGINAL_IMAGES
        sampled = sample_training_images(args.data, number, args.seed)
        split = SplitToRank(task.datasets[args.split], sampled=sampled)
        # The first column of the scores is the query, the others are sampled training images.
        others = range(len(split.images), len(split))
        rows = [_read_query(args, split, checkpoint), *map(split.rows, others)]
        likelihood = build_likelihood(
            model, lambda first, end: pad_features(rows[first:end]), len(rows), start=start
        )
        scores = np.empty((1, len(split.sentences)))
        for block in sentence_blocks(split.sentences, len(rows)):
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


def _read_query(args: argparse.Namespace, split: SplitToRank, checkpoint: Checkpoint) -> np.ndarray:
    """Return the features of the query image (``--id`` or ``--image``), [rows, feature dimension].

    An image of ``--image`` is read with the extractor of ``checkpoint``.
    """
    if args.id is None:
        reader = ImageReader(checkpoint.build(args.device), weights=args.weights)
        return reader.read_all_features([args.image])[0]
    if args.id not in split.images:
        raise UserError(f"--id {args.id}: is no image of {args.split} of {args.data}.")
    return split.rows(split.images.index(args.id))
