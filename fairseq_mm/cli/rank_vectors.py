"""``fairseq-mm rank`` of models that embed images and sentences: by the cosine of vectors."""

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from fairseq_mm.cli.rank_figures import figures_of, print_figures
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from fairseq_mm.retrieval.vector_ranking import RetrievalSummary, VectorRanks


class SplitVectors(NamedTuple):
    """
    Attributes:
        images: ``[I, K]`` float32.
        sentences: ``[N, K]`` float32.
        image_of_sentence: ``[N]`` row of its image.
        image_names: ``[I]`` lines of visual_ids.
        lines: ``[N]`` lines of the split, ascending.
    """

    images: "np.ndarray"
    sentences: "np.ndarray"
    image_of_sentence: "np.ndarray"
    image_names: list[str]
    lines: "np.ndarray"


def embed_split_in_order(dataset: Any, model: Any, device: str) -> SplitVectors:
    """Vectors of a split: images in the order of their first lines, sentences in that of the lines.

    Args:
        dataset: of the split, not shuffled.
        model: in evaluation mode.
        device: name of the device to compute on.

    Raises:
        UserError: if a vector is not finite.
    """
    import numpy as np
    import torch

    from fairseq_mm.tasks._ranking_validation import embed_split

    images, sentences, items = embed_split(dataset, model.to(device), torch.device(device))
    lines = dataset.lines[dataset.ordered_indices()]
    order = np.argsort(lines)
    return SplitVectors(
        images,
        sentences[order],
        items[order],
        list(dict.fromkeys(dataset.visual_ids[line] for line in dataset.lines)),
        lines[order],
    )


def rank_by_vectors(model: Any, dataset: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Ranks, prints and writes what ``ranks.json`` has, but for the card.

    Args:
        model: with ``embed_images`` and ``embed_sentences``.
        dataset: of the split.
        args: of the command.

    Raises:
        UserError: if an option is given that these models do not have.
    """
    from fairseq_mm.retrieval.vector_ranking import mean_summary, rank_folds, rank_vectors

    if args.shortlist:
        raise UserError(
            "--shortlist is of models that rank by likelihood: a model of vectors ranks them all."
        )
    split = embed_split_in_order(dataset, model, args.device)
    if args.max_images and args.max_images < len(split.images):
        is_kept = split.image_of_sentence < args.max_images
        split = SplitVectors(
            split.images[: args.max_images],
            split.sentences[is_kept],
            split.image_of_sentence[is_kept],
            split.image_names[: args.max_images],
            split.lines[is_kept],
        )
    vectors = (split.images, split.sentences, split.image_of_sentence)
    if args.folds == 1:
        found = [rank_vectors(*vectors, image_names=split.image_names)]
    else:
        found = rank_folds(*vectors, folds=args.folds)
    summaries = [ranks.summary() for ranks in found]
    summary = summaries[0] if args.folds == 1 else mean_summary(summaries)
    result = _print(summary, args.folds)
    _write_queries(found, split, os.path.join(args.output, "ranks.jsonl"))
    return result


def _print(summary: "RetrievalSummary", folds: int) -> dict[str, Any]:
    figures = {
        "image_retrieval": figures_of(summary.image_retrieval),
        "sentence_retrieval": figures_of(summary.sentence_retrieval),
    }
    print_figures(figures, summary.rsum)
    if folds > 1:
        print(f"means over {folds} folds of the images, in their order")
    return {"results": figures, "rsum": summary.rsum, "folds": folds}


def _write_queries(found: "list[VectorRanks]", split: SplitVectors, path: str) -> None:
    """JSON lines: of a sentence its line in the split, of an image its line of visual_ids."""
    import numpy as np

    from fairseq_mm.cli.score_output import write_file

    size = len(split.images) // len(found)
    # folds have the sentences of their images, in the order of the lines
    by_fold = np.argsort(split.image_of_sentence // size, kind="stable")
    ranks = np.concatenate([fold.image_ranks for fold in found])
    image_ranks = dict(zip(split.lines[by_fold].tolist(), ranks.tolist()))
    entries: list[dict[str, Any]] = [
        {"task": "image_retrieval", "query": line, "rank": image_ranks[line]}
        for line in split.lines.tolist()
    ]
    sentence_ranks = np.concatenate([fold.sentence_ranks for fold in found]).tolist()
    entries += [
        {"task": "sentence_retrieval", "query": name, "rank": rank}
        for name, rank in zip(split.image_names, sentence_ranks)
    ]
    write_file(path, "".join(json.dumps(entry) + "\n" for entry in entries))
    print(f"{os.path.dirname(path)}: wrote ranks.json, ranks.jsonl", file=sys.stderr)
