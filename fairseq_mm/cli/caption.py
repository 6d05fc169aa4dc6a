"""Generate captions of images.

  fairseq-mm caption dog.jpg --checkpoint checkpoints/m_rnn
  fairseq-mm caption images/ a.tar --checkpoint best.pt --weights mobilenet.pt
  fairseq-mm caption data-bin/flickr8k --split valid --checkpoint best.pt
  fairseq-mm caption --features f.h5 --checkpoint best.pt --nbest 3 --jsonl

Writes one line per image (path, tab, caption) in the order of the inputs. The
extractor is the one that the model was trained with; its weights file is looked
for beside the checkpoint, and known by its content. An image that cannot be
read is named on stderr, the others are captioned all the same, and the exit
status is 2.

With --split the images of a split of a data folder are captioned from its
feature store, each once, under their ids. The captions are those of
fairseq-generate. With --sampling the draws of an image depend on --seed and its
index alone: its first line in the split, or its position among the inputs.

A model that was trained on vectors of an image-sentence embedding needs
--embedding. One that reads part-of-speech sequences (sc_nlm) also needs the
training captions (--data); it generates 1,000 candidates for each image and
ranks them by translation weight * penalty * cosine(image, caption) + language
weight * log-probability of an n-gram model.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional, Union

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import Rule
from fairseq_mm.cli.generate import Flow, Input, without_name
from fairseq_mm.cli.records import counted
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.data.output_file import write_file
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import CAPTIONS
from fairseq_mm.metrics.coco_results import coco_image_ids, coco_results

_RULES = (
    Rule("features", excludes=("weights", "list"), because="no image is read"),
    Rule("split", excludes=("weights", "list"), because="the images of a split are features"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from fairseq_mm.cli import caption_structured

    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="IMAGE",
        help="Image, folder (with its subfolders) or .tar of images; with --split a data folder; "
        "with --features an id of the store.",
    )
    arguments.add(parser, "checkpoint", "weights", "embedding", "split", "features")
    parser.add_argument(
        "--list",
        action="append",
        default=[],
        metavar="FILE",
        help="File with the path of an image a line; may be given again.",
    )
    arguments.add_generation(parser, CAPTIONS)
    caption_structured.add_arguments(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--nearest",
        metavar="DATA",
        help="Add the training caption of this data folder that is nearest to each caption by "
        "CIDEr-D (0 to 10).",
    )
    output.add_argument(
        "--submission",
        metavar="FILE",
        help="Write the captions, too, as COCO's evaluation server takes them "
        "(captions_test2014_NAME_results.json).",
    )
    arguments.add(output, "jsonl", "output")
    arguments.add(parser.add_argument_group("run"), "device", "batch_size", "max_pixels")


def run(args: argparse.Namespace) -> int:
    from fairseq_mm.cli import caption_structured

    arguments.check(args, _RULES)
    if args.split is not None and len(args.inputs) != 1:
        raise UserError(
            f"--split {args.split}: needs the data folder it is of, and nothing else, but "
            f"{len(args.inputs)} paths are given: fairseq-mm caption DATA --split {args.split}."
        )
    if not (args.inputs or args.list or args.features):
        raise UserError("no images: give files or folders, or a feature store (--features).")
    options = arguments.generation_options(args)
    register_quietly()

    from fairseq_mm.inference.checkpoint import Checkpoint
    from fairseq_mm.inference.pretrained import from_checkpoints

    checkpoints = Checkpoint.open_all(args.checkpoint)
    for checkpoint in checkpoints:
        checkpoint.check_command("caption")
    if any(checkpoint.reads_structure for checkpoint in checkpoints):
        return caption_structured.run(args, checkpoints, options)
    caption_structured.refuse_options(args)
    names = ("weights", "device", "embedding")
    model: Any = from_checkpoints(checkpoints, **{name: getattr(args, name) for name in names})
    return Captions(args, [model], [model.config(**options)], model.processor.reader).run()


class Captions(Flow):
    """Captions of images, or of features of a store.

    Args:
        args: of the command line.
        models: that generate.
        configs: of generation.
        reader: :class:`.ImageReader` whose features are captioned.
    """

    command = "caption"
    # whether the heading of the columns is written, which --nearest adds
    _has_heading = False

    def __init__(
        self, args: argparse.Namespace, models: Sequence[Any], configs: Sequence[Any], reader: Any
    ) -> None:
        self.reader = reader
        self.store: Any = None
        if args.split is not None or args.features:
            self.store, inputs = _stored(args, reader)
        else:
            reader.extractor  # noqa: B018  an extractor that cannot be rebuilt is named first
            inputs = list_images(args.inputs, args.list)
        super().__init__(args, models, configs, inputs)
        self.nearest = _Nearest(args.nearest) if args.nearest else None
        self.submitted: dict[str, str] = {}
        if args.submission:  # what cannot be submitted is named before the work begins
            coco_image_ids(item.name for item in inputs)

    def features_of(self, inputs: Sequence[Input]) -> Iterator[Any]:
        """``[rows, D]`` of each image, or why it cannot be read."""
        if self.store is not None:
            return (self.store.read(item.name) for item in inputs)
        return self.reader.features_of(
            [item.value for item in inputs],
            batch_size=self.args.batch_size,
            max_pixels=self.args.max_pixels,
        )

    def read(self, inputs: Sequence[Input]) -> Iterator[Any]:
        found = list(self.features_of(inputs))
        readable = [rows for rows in found if not isinstance(rows, UserError)]
        examples = self.models[0].processor.examples(readable)
        for rows in found:
            yield rows if isinstance(rows, UserError) else [next(examples)]

    def show(self, item: Input, examples: Sequence[Any], found: Sequence[Any]) -> None:
        self.submitted[item.name] = self.caption_of(found[0])

    def caption_of(self, found: Any) -> str:
        """The best caption of what the model gave for an image."""
        return found[0].text

    def run(self) -> int:
        status = super().run()
        if self.args.submission:
            write_file(self.args.submission, coco_results(self.submitted))
            number = counted(len(self.submitted), *self.text_names)
            print(f"wrote {self.args.submission}: {number}", file=sys.stderr)
        return status

    def lines(self, item: Input, examples: Sequence[Any], found: Sequence[Any]) -> list[str]:
        lines = list(super().lines(item, examples, found))
        if self.nearest is not None and self.form != "jsonl" and not self._has_heading:
            self._has_heading = True
            lines.insert(0, "\t".join(("image", "caption", "nearest training caption")))
        return lines

    def others(self, item: Input, example: Any, found: Any) -> tuple[dict[str, Any], list[str]]:
        if self.nearest is None:
            return {}, []
        nearest = self.nearest(found[0].text)
        return {"nearest": nearest}, [str(nearest["caption"])]


def list_images(paths: Sequence[str], lists: Sequence[str]) -> list[Input]:
    """The images of files, folders, archives and lists; a path without images has an error."""
    from fairseq_mm.extract import media_list

    found: list[tuple[str, Any, Optional[UserError]]] = []
    for path in paths:
        try:
            images = media_list.list_images([path], ids="path")
        except UserError as error:
            found.append((path, None, without_name(error, path)))
        else:
            found += [(image.name, image, None) for image in images]
    if lists:
        images = media_list.list_images([], lists=lists, ids="path")
        found += [(image.name, image, None) for image in images]
    return [Input(name, index, image, error) for index, (name, image, error) in enumerate(found)]


def _stored(args: argparse.Namespace, reader: Any) -> tuple[Any, list[Input]]:
    from fairseq_mm.data.feature_store import open_features, open_folder_features

    if args.split is not None:
        store = open_folder_features(args.inputs[0], args.features)
        inputs = _inputs_of_split(args.inputs[0], args.split)
    else:
        store = open_features(args.features.split(os.pathsep))
        inputs = [Input(key, index) for index, key in enumerate(args.inputs or store.ids)]
    reader.check_features(store.attributes, store.dim, store.path)
    for item in inputs:
        store.count_rows(
            item.name
        )  # an id that is not in the store is named before the work begins
    return store, inputs


def _inputs_of_split(folder: str, split: str) -> list[Input]:
    """The images of a split, each once, in the order of their first lines.

    Raises:
        UserError: if the folder has no such split, or its items are no images.
    """
    from fairseq_mm.data.split_files import first_lines, read_visual_ids

    path = os.path.join(folder, f"{split}.visual_ids")
    lines = read_visual_ids(path)
    for number, line in enumerate(lines, start=1):
        if "\t" in line:
            raise UserError(
                f"{path}:{number}: must have the key of one image, but has "
                f"{len(line.split())}: stories of image sequences are generated by fairseq-mm tell."
            )
    return [Input(lines[i], i) for i, first in enumerate(first_lines(lines)) if first]


class _Nearest:
    """Nearest caption of ``text/train.txt`` of a data folder."""

    def __init__(self, folder: str) -> None:
        from fairseq_mm.data.binarised_text import check_line_counts
        from fairseq_mm.data.prepared_files import check_prepared_file
        from fairseq_mm.data.split_files import read_visual_ids
        from fairseq_mm.metrics.nearest_caption import NearestCaption

        text_path = os.path.join(folder, "text", "train.txt")
        ids_path = os.path.join(folder, "train.visual_ids")
        check_prepared_file(text_path)
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
