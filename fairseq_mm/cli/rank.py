"""Ranks images for sentences and sentences for images.

fairseq-mm rank DATA --checkpoint checkpoints/checkpoint_best.pt --split valid

Models of captions rank by likelihood (Mao et al. 2015, section 5): images by P(sentence | image),
sentences by P(sentence | image) / P(sentence), where P(sentence) is the mean over sampled training
images. Models that embed both in one space (vse_lstm, vse_gru, vse_bow) rank by the cosine of
their vectors. Ties count against the model; Med r is rounded down. The output folder gets
ranks.json (figures, card) and ranks.jsonl (one query a line), of likelihoods also curves,
recall_curve.csv and .svg, and log_probs.npy [sentences, images]; an interrupted run continues when
started again.
"""

import argparse
import csv
import io
import json
import os
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any, Optional

from fairseq_mm.cli.likelihood_options import positive
from fairseq_mm.cli.rank_figures import TITLES, figures_of, print_figures
from fairseq_mm.cli.run_set_up import only_writer, register_quietly
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from fairseq_mm.metrics.ranks import TrueRanks
    from fairseq_mm.retrieval.score_file import ScoreFile
    from fairseq_mm.retrieval.split_to_rank import SplitToRank


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", help="data folder")
    parser.add_argument(
        "--checkpoint", required=True, help="checkpoint, or a folder with checkpoint_best.pt"
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
        type=positive,
        default=100,
        metavar="N",
        help="training images to sample (default: 100)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default: 1)")
    parser.add_argument(
        "--shortlist",
        type=positive,
        metavar="N",
        help="also rank only the sentences of the N images nearest to the query in feature space "
        "(the paper's section 9.2 has 100)",
    )
    parser.add_argument(
        "--max-images", type=positive, metavar="N", help="only the first N images of the split"
    )
    parser.add_argument(
        "--folds",
        type=positive,
        default=1,
        metavar="N",
        help="of vectors: rank within each of N equal parts of the images and take the means, as "
        "in the 5 x 1k of COCO (default: 1)",
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
        type=positive,
        metavar="N",
        help="words whose probabilities over the vocabulary are in memory at once "
        "(default: 1024 on a CPU, 65536 on a GPU)",
    )
    parser.add_argument("--threads", type=positive, metavar="N", help="of a CPU")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: a GPU where there is one)")
    parser.add_argument(
        "--output", metavar="DIR", help="folder to write (default: CHECKPOINT.rank-SPLIT)"
    )


def run(args: argparse.Namespace) -> None:
    register_quietly()
    import torch

    from fairseq_mm.inference.checkpoints import checkpoint_file
    from fairseq_mm.metrics.result_card import file_hash
    from fairseq_mm.retrieval import ranking
    from fairseq_mm.retrieval.score_file import ScoreFile
    from fairseq_mm.retrieval.split_to_rank import SplitToRank, sample_training_images

    started = time.time()
    if args.threads:
        torch.set_num_threads(args.threads)
    args.device = device_of(args.device)
    checkpoint = checkpoint_file(args.checkpoint)
    model, task = load_on_data(checkpoint, args)
    task.load_dataset(args.split, combine=False)
    output = args.output or f"{os.path.splitext(checkpoint)[0]}.rank-{args.split}"
    if hasattr(model, "embed_sentences"):
        args.output = output
        _rank_vectors(args, checkpoint, model, task, started)
        return
    if getattr(model, "reads_structure", False):
        raise UserError(
            f"{checkpoint}: reads the tags of a sentence, and has no likelihood without them: rank "
            "by a model of captions (m_rnn, mlbl_f) or of vectors (vse_lstm, vse_gru, vse_bow)."
        )
    if args.folds > 1:
        raise UserError("--folds is of models that rank by vectors: vse_lstm, vse_gru, vse_bow.")
    sampled = []
    if args.marginal == "sampled":
        sampled = sample_training_images(args.data, args.marginal_images, args.seed)
    split = SplitToRank(task.datasets[args.split], max_images=args.max_images, sampled=sampled)
    blocks = ranking.sentence_blocks(split.sentences, len(split))
    identity = {
        "checkpoint": str(file_hash(checkpoint).get("sha256"))[:12],
        **split.identity(),
        "precision": args.precision,
        "blocks": len(blocks),
    }
    with only_writer(output):
        file = ScoreFile(output, identity, len(split.sentences), len(split.images))
        if not file.is_finished:
            _fill(file, model.to(args.device), task, split, blocks, args)

    truth = split.image_of_sentence
    found = {
        "image_retrieval": ranking.rank_images(file.log_probs, truth),
        "sentence_retrieval": ranking.rank_sentences(file.log_probs, file.log_marginals, truth),
    }
    if args.shortlist:
        nearest = ranking.nearest_images(split.mean_features(), args.shortlist)
        found["sentence_retrieval_shortlist"] = ranking.rank_sentences(
            file.log_probs, file.log_marginals, truth, nearest
        )
    card = _card_of(args, checkpoint, task, identity)
    card["seconds"] = round(time.time() - started, 1)
    _report(found, split, output, args, card)


def _rank_vectors(
    args: argparse.Namespace, checkpoint: str, model: Any, task: Any, started: float
) -> None:
    from fairseq_mm.cli.rank_vectors import rank_by_vectors
    from fairseq_mm.cli.score_output import write_file

    with only_writer(args.output):
        result = rank_by_vectors(model, task.datasets[args.split], args)
        card = _card_of(args, checkpoint, task, {"of": "inner products of vectors"})
        card["options"] = {name: getattr(args, name) for name in ("split", "max_images", "folds")}
        card["seconds"] = round(time.time() - started, 1)
        text = json.dumps({**result, "card": card}, indent=2)
        write_file(os.path.join(args.output, "ranks.json"), text + "\n")


def _fill(
    file: "ScoreFile",
    model: Any,
    task: Any,
    split: "SplitToRank",
    blocks: "list[np.ndarray]",
    args: argparse.Namespace,
) -> None:
    """Computes what the file does not have."""
    from tqdm import tqdm

    from fairseq_mm.retrieval.likelihood import build_likelihood
    from fairseq_mm.retrieval.ranking import fill_scores

    likelihood = build_likelihood(
        model,
        split.read_images,
        len(split),
        start=task.target_dictionary.eos(),
        precision=args.precision,
        block_rows=args.block_rows or (1024 if args.device == "cpu" else 65536),
    )
    with tqdm(
        total=len(split.sentences),
        initial=sum(len(blocks[block]) for block in file.finished_blocks),
        unit="sentence",
        desc=f"{len(split)} images",
        disable=None,  # on a terminal only
    ) as progress:
        fill_scores(
            file,
            likelihood,
            split.sentences,
            blocks,
            len(split.images),
            on_block=progress.update,
        )


def device_of(name: Optional[str]) -> str:
    """The device to compute on: a GPU where there is one and none is named."""
    import torch

    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {name}: {str(error).splitlines()[0]}") from None
    return name


def load_on_data(checkpoint: str, args: argparse.Namespace) -> tuple[Any, Any]:
    """The model, in evaluation mode and float32, and its task on the data folder."""
    from fairseq import checkpoint_utils

    from fairseq_mm.inference.checkpoints import load_checkpoint, provenance_of

    state = load_checkpoint(checkpoint)
    name = state["cfg"]["task"]["_name"]
    if name != "multimodal_captioning":
        raise UserError(
            f"{checkpoint}: must be a checkpoint of --task multimodal_captioning, but is one of "
            f"{name} instead."
        )
    provenance_of(state, checkpoint)
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


def _card_of(
    args: argparse.Namespace, checkpoint: str, task: Any, identity: dict[str, Any]
) -> dict[str, Any]:
    import torch

    from fairseq_mm.metrics.result_card import result_card
    from fairseq_mm.models._provenance import fingerprint, words_of

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
    names = ("split", "marginal", "marginal_images", "seed", "shortlist", "max_images")
    card["options"] = {name: getattr(args, name) for name in (*names, "precision", "device")}
    card["options"]["threads"] = torch.get_num_threads()
    card["scores"] = identity
    card["features"] = {"path": task.features.path, **task.feature_attributes}
    card["dictionary_fingerprint"] = fingerprint(words_of(task.target_dictionary))
    return card


def _report(
    found: "dict[str, TrueRanks]",
    split: "SplitToRank",
    output: str,
    args: argparse.Namespace,
    card: dict[str, Any],
) -> None:
    """Table to stdout, files to the output folder."""
    from fairseq_mm.cli.score_output import write_file
    from fairseq_mm.metrics import ranks
    from fairseq_mm.report.recall_chart import recall_chart

    percentages = ranks.curve_percentages()
    curves = {name: ranks.recall_curve(r, percentages) for name, r in found.items()}
    figures = {name: figures_of(ranks.summarize_ranks(r)) for name, r in found.items()}
    rsum = sum(
        value
        for name in ("image_retrieval", "sentence_retrieval")
        for value in figures[name]["recall_at"].values()
    )
    print_figures(figures, rsum)
    result = {
        "results": figures,
        "rsum": rsum,
        "curves": {
            "percentage": percentages.tolist(),
            **{name: curve.tolist() for name, curve in curves.items()},
        },
        "card": card,
    }
    title = (
        f"{os.path.basename(args.data.rstrip(os.sep))}, {args.split}: {len(split.images)} images"
    )
    named = {TITLES[name]: curve for name, curve in curves.items()}
    files = {
        "ranks.json": json.dumps(result, indent=2) + "\n",
        "ranks.jsonl": _per_query(found, split),
        "recall_curve.csv": _csv(percentages, curves),
    }
    try:
        files["recall_curve.svg"] = recall_chart(title, percentages, named)
    except UserError as error:  # the figures are worth more than their drawing
        print(f"no recall_curve.svg: {error}", file=sys.stderr)
    for name, text in files.items():
        write_file(os.path.join(output, name), text)
    shape = [len(split.sentences), len(split.images)]
    print(f"{output}: wrote {', '.join(files)}, log_probs.npy {shape}", file=sys.stderr)


def _per_query(found: "dict[str, TrueRanks]", split: "SplitToRank") -> str:
    """JSON lines: of a sentence its line in the split, of an image its line of visual_ids."""
    lines = []
    for name, ranks in found.items():
        queries = split.lines if name == "image_retrieval" else split.images
        for query, rank in zip(queries, ranks.first.tolist()):
            lines.append(json.dumps({"task": name, "query": query, "rank": rank}) + "\n")
    return "".join(lines)


def _csv(percentages: "np.ndarray", curves: "dict[str, np.ndarray]") -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["percentage", *curves])
    for row in zip(percentages, *curves.values()):
        writer.writerow([f"{value:.6g}" for value in row])
    return text.getvalue()
