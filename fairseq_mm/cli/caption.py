"""Images to captions, by a trained model.

  fairseq-mm caption photo.jpg --model checkpoints/m_rnn
  fairseq-mm caption photos/ holiday.tar --model checkpoint_best.pt --weights mobilenet_v2.pt
  fairseq-mm caption photo.jpg --model checkpoints/m_rnn --prefix "a man" --nearest data/flickr8k
  fairseq-mm caption data-bin/flickr8k --split valid --model checkpoints/m_rnn --jsonl > all.jsonl
  fairseq-mm caption --features features.h5 --model checkpoints/m_rnn --jsonl > captions.jsonl

Prints a line an image, path, tab, caption, in the order of the inputs. The extractor is the one
that the model was trained with; its weights file is looked for beside the checkpoint, and known by
its content. An image that cannot be read is named on stderr, the others are captioned all the
same, and the exit status is 2.

With --split the images of a split of a data folder are captioned from its feature store, each once,
in the order of the split, under their ids. The captions are those of fairseq-generate: no <unk>
unless --allow-unk is given, and with --sampling the draws of an image depend on --seed and its
number alone, which is its first line in the split, or its place among the inputs.

--nearest adds the training caption that resembles each caption most, by CIDEr-D (0 to 10) of the
caption against that one alone.

A model that was trained on vectors of an embedding (fairseq-mm embed) needs that embedding, which
reads the images; one of structures (sc_nlm) also the training captions and their tags:

  fairseq-mm caption photo.jpg --model checkpoints/sc_nlm --embedding checkpoints/vse_lstm \\
      --data data-bin/flickr8k --jsonl

It writes 1,000 candidates, each by a structure of training and a vector near the image's, and
ranks them by translation weight * penalty * cosine(image, caption) + language weight *
log-probability of an n-gram model. --jsonl has the best five with these parts, and the training
caption nearest to the image.
"""

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional, Union

from fairseq_mm.cli import caption_structured
from fairseq_mm.cli.caption_images import Input, check_inputs, write_captions
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import ALLOW_UNK_HELP, CAPTIONS, SAMPLING_BEAM, SEED


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from fairseq_mm.extract.images import MAX_PIXELS

    parser.add_argument(
        "images",
        nargs="*",
        metavar="IMAGE",
        help="image, folder (with its subfolders) or .tar of images; with --split a data folder; "
        "with --features an id of the store",
    )
    parser.add_argument(
        "--split", metavar="NAME", help="caption the images of a split of the data folder IMAGE"
    )
    parser.add_argument(
        "--list", action="append", default=[], metavar="FILE", help="images, one path a line"
    )
    parser.add_argument(
        "--model",
        required=True,
        metavar="PATH",
        help="folder with checkpoint_best.pt or else checkpoint_last.pt, or a checkpoint; several, "
        f"separated by {os.pathsep!r}, are an ensemble",
    )
    parser.add_argument(
        "--weights", metavar="FILE", help="state dict file of the extractor that made the features"
    )
    parser.add_argument(
        "--features",
        metavar="STORE",
        help="caption items of a feature store instead: those named, or all; with --split the "
        "store of its images (default: features.h5 in the data folder)",
    )
    parser.add_argument(
        "--embedding",
        metavar="PATH",
        help="checkpoint, or folder with it, of the embedding (vse_lstm, vse_gru, vse_bow) on "
        "whose vectors the model was trained",
    )
    search = parser.add_argument_group("search")
    search.add_argument(
        "--beam",
        type=int,
        help=f"width of the beam (default: {CAPTIONS['beam']}; 1 for candidates by structures)",
    )
    search.add_argument("--prefix", metavar="WORDS", help="first words of every caption")
    search.add_argument("--sampling", action="store_true", help="draw the words instead")
    search.add_argument(
        "--topk", type=int, default=0, metavar="K", help="draw from the K most probable words"
    )
    search.add_argument("--temperature", type=float, default=1.0, help="default: 1.0")
    search.add_argument(
        "--seed",
        type=int,
        help=f"seed of the draws (default: {SEED}; 0 for candidates by structures)",
    )
    search.add_argument(
        "--max-words",
        type=int,
        default=CAPTIONS["max_len_b"],
        metavar="N",
        help="longest caption, in words (default: %(default)s)",
    )
    search.add_argument(
        "--no-repeat-ngram", type=int, default=0, metavar="N", help="no N words occur twice in turn"
    )
    search.add_argument("--allow-unk", action="store_true", help=ALLOW_UNK_HELP)
    caption_structured.add_arguments(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--nearest", metavar="DATA", help="data folder whose nearest training caption is added"
    )
    output.add_argument(
        "--jsonl",
        action="store_true",
        help="an object a line: id, caption, score (mean log-probability of a token; by "
        "structures: see above), nearest, extractor, checkpoint (SHA-256), options",
    )
    output.add_argument("--output", metavar="FILE", help="write there instead of to the screen")
    run_options = parser.add_argument_group("run")
    run_options.add_argument("--device", help="cpu, cuda, cuda:1 (default: a GPU if there is one)")
    run_options.add_argument(
        "--batch-size",
        type=int,
        metavar="N",
        help="images that the extractor gets at a time (default: 16 on a CPU, 128 elsewhere)",
    )
    run_options.add_argument(
        "--max-pixels",
        type=int,
        default=MAX_PIXELS,
        metavar="N",
        help="larger JPEGs are decoded at reduced scale, other images refused "
        "(default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    check_inputs(args)
    if args.sampling and args.beam is not None:
        raise UserError("--beam and --sampling: draws have no beam; leave one of the two out.")
    register_quietly()

    from fairseq_mm.inference.text_models import load_states, reads_structures

    states = load_states(args.model)
    if any(reads_structures(state) for state in states.values()):
        return caption_structured.run(args, states)
    caption_structured.refuse_options(args)
    from fairseq_mm.inference.captioner import Search, from_pretrained

    search = Search(
        beam=_beam_of(args),
        prefix=args.prefix,
        sampling=args.sampling,
        topk=args.topk,
        temperature=args.temperature,
        seed=SEED if args.seed is None else args.seed,
        max_words=args.max_words,
        no_repeat_ngram=args.no_repeat_ngram,
        allow_unk=args.allow_unk,
    )
    captioner = from_pretrained(
        args.model,
        weights=args.weights,
        device=args.device,
        embedding=args.embedding,
        states=states,
    )
    captioner.check_search(search)
    describe = _Description(args, captioner, search)

    def lines_of(inputs: list[Input], features: list[Any]) -> Iterator[str]:
        numbers = [item.number for item in inputs]
        captions = captioner.caption_features(features, search, items=numbers)
        yield from map(describe, [item.name for item in inputs], captions)

    return write_captions(args, captioner, lines_of)


def _beam_of(args: argparse.Namespace) -> int:
    if args.sampling:
        return SAMPLING_BEAM
    return CAPTIONS["beam"] if args.beam is None else args.beam


class _Description:
    """The line that is printed for a caption."""

    def __init__(self, args: argparse.Namespace, captioner: Any, search: Any) -> None:
        import dataclasses

        from fairseq_mm.extract.weights import sha256_of

        self.nearest = _Nearest(args.nearest) if args.nearest else None
        self.facts: Optional[dict[str, Any]] = None
        if args.jsonl:
            checkpoints = [sha256_of(file) for file in captioner.files]
            self.facts = {
                "extractor": captioner.identity,
                "checkpoint": checkpoints[0] if len(checkpoints) == 1 else checkpoints,
                "options": dataclasses.asdict(search),
            }

    def __call__(self, name: str, caption: Any) -> str:
        nearest = self.nearest(caption.text) if self.nearest else None
        if self.facts is None:
            return "\t".join([name, caption.text] + ([nearest["caption"]] if nearest else []))
        entry = {"id": name, "caption": caption.text, "score": round(caption.score, 4)}
        if nearest:
            entry["nearest"] = nearest
        return json.dumps({**entry, **self.facts}, ensure_ascii=False)


class _Nearest:
    """Nearest caption of ``text/train.txt`` of a data folder."""

    def __init__(self, folder: str) -> None:
        from fairseq_mm.data.multimodal_dataset import check_line_counts
        from fairseq_mm.data.visual_ids import read_visual_ids
        from fairseq_mm.metrics.nearest_caption import NearestCaption

        text_path = os.path.join(folder, "text", "train.txt")
        ids_path = os.path.join(folder, "train.visual_ids")
        try:
            lines = Path(text_path).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise UserError(
                f"--nearest {folder}: {text_path}: {error.strerror}; is it a folder made by "
                "`prepare`?"
            ) from None
        self.ids = read_visual_ids(ids_path)
        check_line_counts({text_path: len(lines), ids_path: len(self.ids)})
        if not lines:
            raise UserError(f"{text_path}: must have training captions, but is empty.")
        self.lines = lines
        self.index = NearestCaption([line.split() for line in lines], self.ids)

    def __call__(self, text: str) -> dict[str, Union[str, float]]:
        index, similarity = self.index.nearest(text.split())
        return {
            "caption": self.lines[index],
            "id": self.ids[index],
            "cider_d": round(similarity, 4),
        }
