"""Ranks images for sentences and sentences for images by likelihood (Mao et al. 2015, section 5).

fairseq-mm rank DATA --path checkpoints/checkpoint_best.pt --split valid

Images are ranked by P(sentence | image), sentences by P(sentence | image) / P(sentence), where
P(sentence) is the mean over sampled training images. Ties count against the model; Med r is
rounded down. The output folder gets ranks.json (figures, curves, card), ranks.jsonl (one query a
line), recall_curve.csv and .svg, and log_probs.npy [sentences, images]. An interrupted run
continues when started again.
"""

import argparse
import csv
import hashlib
import io
import json
import logging
import os
import shlex
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any, Optional

from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from fairseq_mm.metrics.ranks import TrueRanks

# name in ranks.json -> title in the table
TITLES = {
    "image_retrieval": "images for a sentence",
    "sentence_retrieval": "sentences for an image",
    "sentence_retrieval_shortlist": "sentences for an image, shortlist",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", help="data folder")
    parser.add_argument(
        "--path", required=True, help="checkpoint, or a folder with checkpoint_best.pt"
    )
    parser.add_argument("--split", default="valid", help="what is ranked (default: valid)")
    parser.add_argument("--features", help="feature store (default: features.h5 in DATA)")
    parser.add_argument(
        "--marginal",
        choices=("sampled", "none"),
        default="sampled",
        help="divide by the mean probability over sampled training images, or not at all "
        "(default: sampled)",
    )
    parser.add_argument(
        "--marginal-images",
        type=_positive,
        default=100,
        metavar="N",
        help="training images to sample (default: 100)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default: 1)")
    parser.add_argument(
        "--shortlist",
        type=_positive,
        metavar="N",
        help="also rank only the sentences of the N images nearest to the query in feature space "
        "(the paper's section 9.2 has 100)",
    )
    parser.add_argument(
        "--max-images", type=_positive, metavar="N", help="only the first N images of the split"
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of the output products; bfloat16 is several times faster where the processor has it "
        "(default: float32)",
    )
    parser.add_argument(
        "--block-rows",
        type=_positive,
        metavar="N",
        help="words whose probabilities over the vocabulary are in memory at once "
        "(default: 1024 on a CPU, 65536 on a GPU)",
    )
    parser.add_argument("--threads", type=_positive, metavar="N", help="of a CPU")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: a GPU where there is one)")
    parser.add_argument(
        "--output", metavar="DIR", help="folder to write (default: CHECKPOINT.rank-SPLIT)"
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number of 1 or more, but is {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> None:
    # fairseq and its dependencies log and warn while they are imported
    logging.basicConfig(level=logging.WARNING)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    import fairseq_mm

    fairseq_mm.register()
    import numpy as np
    import torch
    from tqdm import tqdm

    from fairseq_mm.captioner import checkpoint_file
    from fairseq_mm.cli.score_output import write_file
    from fairseq_mm.data.visual_ids import read_visual_ids
    from fairseq_mm.metrics import ranks
    from fairseq_mm.metrics.result_card import file_hash, result_card
    from fairseq_mm.retrieval import ranking
    from fairseq_mm.retrieval.likelihood import build_likelihood
    from fairseq_mm.retrieval.recall_chart import recall_chart
    from fairseq_mm.retrieval.score_file import ScoreFile

    started = time.time()
    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device(_device(args.device))
    checkpoint = checkpoint_file(args.path)
    model, task = _load(checkpoint, args)
    model.to(device)

    task.load_dataset(args.split, combine=False)
    dataset = task.datasets[args.split]
    images = list(dict.fromkeys(dataset.visual_ids))[: args.max_images]
    place_of = {image: place for place, image in enumerate(images)}
    lines = [line for line, image in enumerate(dataset.visual_ids) if image in place_of]
    image_of_sentence = np.array([place_of[dataset.visual_ids[line]] for line in lines])
    sentences = [tuple(dataset.target[line].tolist()) for line in lines]
    sampled = []
    if args.marginal == "sampled":
        path = os.path.join(args.data, "train.visual_ids")
        training = list(dict.fromkeys(read_visual_ids(path)))
        if len(training) < args.marginal_images:
            raise UserError(
                f"--marginal-images {args.marginal_images} asks for more images than the "
                f"{len(training)} of {path}."
            )
        chosen = np.random.default_rng(args.seed).choice(
            len(training), args.marginal_images, replace=False
        )
        sampled = [training[i] for i in chosen]
    features = _Features(task.features, [*images, *sampled])

    sha256 = str(file_hash(checkpoint).get("sha256"))
    identity = {
        "checkpoint": sha256[:12],
        "sentences": _digest(np.concatenate([[len(s), *s] for s in sentences])),
        "images": features.digest(0, len(images)),
        "images_of_sentences": _digest(image_of_sentence),
        "marginal_images": len(sampled),
        "sampled_images": features.digest(len(images), len(images) + len(sampled)),
        "precision": args.precision,
    }
    output = args.output or f"{os.path.splitext(checkpoint)[0]}.rank-{args.split}"
    blocks = ranking.sentence_blocks(sentences, len(images) + len(sampled))
    file = ScoreFile(output, identity, len(sentences), len(images))
    if not file.is_finished:
        likelihood = build_likelihood(
            model,
            features.read,
            len(images) + len(sampled),
            start=task.target_dictionary.eos(),
            precision=args.precision,
            block_rows=args.block_rows or (1024 if device.type == "cpu" else 65536),
        )
        done = sum(len(blocks[block]) for block in file.finished_blocks)
        with tqdm(
            total=len(sentences), initial=done, unit="sentence", desc=f"{len(images)} images"
        ) as progress:
            ranking.fill_scores(
                file, likelihood, sentences, blocks, len(images), on_block=progress.update
            )

    found = {
        "image_retrieval": ranking.rank_images(file.log_probs, image_of_sentence),
        "sentence_retrieval": ranking.rank_sentences(
            file.log_probs, file.log_marginals, image_of_sentence
        ),
    }
    if args.shortlist:
        found["sentence_retrieval_shortlist"] = ranking.rank_sentences(
            file.log_probs,
            file.log_marginals,
            image_of_sentence,
            ranking.nearest_images(features.means(len(images)), args.shortlist),
        )
    percentages = ranks.curve_percentages()
    curves = {name: ranks.recall_curve(r, percentages) for name, r in found.items()}
    figures = {name: _figures(ranks.summarize_ranks(r)) for name, r in found.items()}
    full = ("image_retrieval", "sentence_retrieval")
    rsum = sum(value for name in full for value in figures[name]["recall_at"].values())
    card = result_card(
        command=shlex.join(["fairseq-mm", *sys.argv[1:]]),
        files={
            "checkpoint": checkpoint,
            "dictionary": os.path.join(args.data, "dict.txt"),
            "text": os.path.join(args.data, f"{args.split}.bin"),
            "visual_ids": os.path.join(args.data, f"{args.split}.visual_ids"),
        },
        generated=os.devnull,
    )
    card["identity"] = identity
    card["options"] = {
        "split": args.split,
        "marginal": args.marginal,
        "seed": args.seed,
        "shortlist": args.shortlist,
        "max_images": args.max_images,
        "precision": args.precision,
        "device": str(device),
        "threads": torch.get_num_threads(),
    }
    card["features"] = {"path": task.features.path, **task.feature_attributes}
    card["dictionary_fingerprint"] = _fingerprint(task)
    card["seconds"] = round(time.time() - started, 1)
    result = {
        "results": figures,
        "rsum": rsum,
        "curves": {
            "percentage": percentages.tolist(),
            **{name: curve.tolist() for name, curve in curves.items()},
        },
        "card": card,
    }
    _print_table(figures, rsum)
    write_file(os.path.join(output, "ranks.json"), json.dumps(result, indent=2) + "\n")
    queries = {name: lines if name == "image_retrieval" else images for name in found}
    write_file(os.path.join(output, "ranks.jsonl"), _per_query(found, queries))
    write_file(os.path.join(output, "recall_curve.csv"), _csv(percentages, curves))
    title = f"{os.path.basename(args.data.rstrip(os.sep))}, {args.split}: {len(images)} images"
    named = {TITLES[name]: curve for name, curve in curves.items()}
    write_file(os.path.join(output, "recall_curve.svg"), recall_chart(title, percentages, named))
    print(
        f"{output}: ranks.json, ranks.jsonl, recall_curve.csv, recall_curve.svg, log_probs.npy "
        f"{list(file.log_probs.shape)}",
        file=sys.stderr,
    )


class _Features:
    """Features of images in their order, read when asked for.

    Args:
        store: feature stores.
        images: lines of visual_ids.
    """

    def __init__(self, store: Any, images: list[str]) -> None:
        self.store = store
        self.images = images

    def rows(self, place: int) -> "np.ndarray":
        """``[N, D]``."""
        import numpy as np

        return np.concatenate([self.store.read(key) for key in self.images[place].split("\t")])

    def read(self, start: int, end: int) -> tuple[Any, Any]:
        """Features ``[B, N, D]`` and their padding mask."""
        from fairseq_mm.data.collate import pad_features

        return pad_features([self.rows(place) for place in range(start, end)])

    def means(self, count: int) -> "np.ndarray":
        """``[count, D]`` mean of the rows of each of the first images."""
        import numpy as np

        return np.stack([self.rows(i).mean(0, dtype=np.float32) for i in range(count)])

    def digest(self, start: int, end: int) -> str:
        digest = hashlib.sha256()
        for place in range(start, end):
            rows = self.rows(place)
            digest.update(repr((rows.shape, str(rows.dtype))).encode() + rows.tobytes())
        return digest.hexdigest()[:12]


def _digest(array: "np.ndarray") -> str:
    return hashlib.sha256(array.astype("<i8").tobytes()).hexdigest()[:12]


def _device(name: Optional[str]) -> str:
    import torch

    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {name}: {str(error).splitlines()[0]}") from None
    return name


def _load(checkpoint: str, args: argparse.Namespace) -> tuple[Any, Any]:
    """The model, in evaluation mode and float32, and its task on the data folder."""
    from fairseq import checkpoint_utils

    from fairseq_mm.captioner import load_checkpoint

    name = load_checkpoint(checkpoint)["cfg"]["task"]["_name"]
    if name != "multimodal_captioning":
        raise UserError(
            f"{checkpoint}: must be a checkpoint of --task multimodal_captioning, but is one of "
            f"{name} instead."
        )
    overrides = {
        "data": args.data,
        "features": args.features,
        "eval_gen": False,
        "one_per_item": False,
    }
    try:
        models, _, task = checkpoint_utils.load_model_ensemble_and_task(
            [checkpoint], arg_overrides=overrides
        )
    except RuntimeError as error:
        raise UserError(f"{checkpoint}: its weights do not fit: {error}") from None
    return models[0].eval().float(), task


def _fingerprint(task: Any) -> str:
    from fairseq_mm.models._provenance import fingerprint, words_of

    return fingerprint(words_of(task.target_dictionary))


def _figures(summary: Any) -> dict[str, Any]:
    return {
        "recall_at": {str(k): value for k, value in summary.recall_at.items()},
        "median_rank": summary.median_rank,
        "mean_rank": summary.mean_rank,
        "queries": summary.queries,
        "candidates": summary.candidates,
    }


def _print_table(figures: dict[str, dict[str, Any]], rsum: float) -> None:
    width = max(len(TITLES[name]) for name in figures)
    print(f"{'':{width}}    R@1    R@5   R@10   Med r  mean r  queries  candidates")
    for name, entry in figures.items():
        recall = " ".join(f"{value:6.1f}" for value in entry["recall_at"].values())
        print(
            f"{TITLES[name]:{width}} {recall} {entry['median_rank']:7} {entry['mean_rank']:7.1f} "
            f"{entry['queries']:8} {entry['candidates']:11.1f}"
        )
    print(f"rsum {rsum:.1f}")


def _per_query(found: "dict[str, TrueRanks]", queries: dict[str, list[Any]]) -> str:
    """JSON lines: of a sentence its line in the split, of an image its line of visual_ids."""
    lines = []
    for name, ranks in found.items():
        for query, rank in zip(queries[name], ranks.first.tolist()):
            lines.append(json.dumps({"task": name, "query": query, "rank": rank}) + "\n")
    return "".join(lines)


def _csv(percentages: "np.ndarray", curves: "dict[str, np.ndarray]") -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["percentage", *curves])
    for row in zip(percentages, *curves.values()):
        writer.writerow([f"{value:.6g}" for value in row])
    return text.getvalue()
