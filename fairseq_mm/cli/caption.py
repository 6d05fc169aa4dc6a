"""Generate captions of images.

  fairseq-mm caption dog.jpg --checkpoint checkpoints/m_rnn
  fairseq-mm caption images/ holiday.tar --checkpoint checkpoint_best.pt --weights mobilenet_v2.pt
  fairseq-mm caption data-bin/flickr8k --split valid --checkpoint checkpoints/m_rnn --jsonl
  fairseq-mm caption --features features.h5 --checkpoint checkpoints/m_rnn --nbest 3 --jsonl

Writes a line an image, path, tab, caption, in the order of the inputs. The extractor is the one
that the model was trained with; its weights file is looked for beside the checkpoint, and known by
its content. An image that cannot be read is named on stderr, the others are captioned all the
same, and the exit status is 2.

With --split the images of a split of a data folder are captioned from its feature store, each once,
under their ids. The captions are those of fairseq-generate. With --sampling the draws of an image
depend on --seed and its index alone: its first line in the split, or its position among the inputs.

A model that was trained on vectors of an image-sentence embedding needs --embedding. One that reads
part-of-speech sequences (sc_nlm) also needs the training captions (--data); it generates 1,000
candidates for each image and ranks them by translation weight * penalty * cosine(image, caption) +
language weight * log-probability of an n-gram model.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union

from fairseq_mm.cli import arguments, caption_structured
from fairseq_mm.cli.image_inputs import Input, add_inputs, check_inputs, write_captions
from fairseq_mm.cli.records import Record, model_facts
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import CAPTIONS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_inputs(parser)
    arguments.add(parser, "checkpoint", "weights", "embedding")
    arguments.add_generation(parser, CAPTIONS)
    caption_structured.add_arguments(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--nearest",
        metavar="DATA",
        help="Add the training caption of this data folder that is nearest to each caption by "
        "CIDEr-D (0 to 10).",
    )
    arguments.add(output, "jsonl", "output")
    arguments.add(parser.add_argument_group("run"), "device", "batch_size")


def run(args: argparse.Namespace) -> int:
    check_inputs(args)
    options = arguments.generation_options(args)
    register_quietly()

    from fairseq_mm.inference.loading import load_states, reads_structures
    from fairseq_mm.inference.pretrained import from_pretrained

    states = load_states(args.checkpoint)
    if any(reads_structures(state) for state in states.values()):
        return caption_structured.run(args, states, options)
    caption_structured.refuse_options(args)
    model: Any = from_pretrained(
        args.checkpoint,
        weights=args.weights,
        device=args.device,
        embedding=args.embedding,
        states=states,
    )
    if getattr(model, "task", None) is None or model.task.command != "caption":
        raise UserError(
            f"{model.files[0]}: generates {model.task.text_names[1]} of "
            f"{model.task.input_names[1]}: fairseq-mm {model.task.command}."
        )
    config = model.config(**options)
    facts = {"extractor": model.processor.reader.identity, **model_facts(model, config)}
    record = Record(facts if args.jsonl else None, config.nbest)
    nearest = _Nearest(args.nearest) if args.nearest else None

    def lines_of(inputs: list[Input], features: list[Any]) -> Iterator[str]:
        examples = list(model.processor.examples(features))
        found = model.stream(examples, config, indices=[item.index for item in inputs])
        for item, hypotheses in zip(inputs, found):
            others = {"nearest": nearest(hypotheses[0].text)} if nearest else {}
            shown = [others["nearest"]["caption"]] if nearest else []
            yield record.line(item.name, hypotheses, others, shown)

    return write_captions(args, model.processor.reader, lines_of)


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
