"""Generate captions of images.

  fairseq-mm caption dog.jpg --checkpoint checkpoints/m_rnn
  fairseq-mm caption images/ a.tar --checkpoint best.pt --weights mobilenet.pt
  fairseq-mm caption data-bin/flickr8k --split valid --checkpoint best.pt
  fairseq-mm caption --features f.h5 --checkpoint best.pt --nbest 3 --jsonl

Prints one line per image, the path, a tab and the caption, in input order.
Image features are extracted with the network that the checkpoint was trained
on; its weights file is searched next to the checkpoint and verified by its
SHA-256 digest. Unreadable images are reported on stderr and skipped, and the
exit status is then 2.

With --split, the command captions one split of a data folder from its feature
store, once per image, under the ids of the images. fairseq-generate prints the
same captions. With --sampling, a caption depends only on --seed and
the index of its image: the first line of the image in the split, or the position
of the image among the inputs.

A model that was trained on the vectors of an image-sentence embedding needs
--embedding. A model that reads part-of-speech sequences (sc_nlm) also needs the
training captions (--data). It generates 1,000 candidates for each image. Their
score is --translation-weight times a penalty for repeated words times the cosine
of image and caption, plus --language-weight times the log-probability under an
n-gram model. The captions are the candidates with the highest scores.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Optional, Union

from fairseq_mm.cli import arguments, caption_structured
from fairseq_mm.cli.arguments import Rule
from fairseq_mm.cli.generate import Input, TextRun, remove_name
from fairseq_mm.cli.records import counted, json_line
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.data.output_file import write_file
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import CAPTIONS
from fairseq_mm.metrics.coco_results import coco_image_ids, coco_results

_RULES = (
    Rule("features", excludes=("weights",), because="no image is read"),
    Rule("split", excludes=("weights",), because="the images of a split are features"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="IMAGE",
        help="Image, folder (with its subfolders) or .tar of images; with --split a data folder; "
        "with --features an id of the store.",
    )
    arguments.add(parser, "checkpoint", "weights", "embedding", "split", "features")
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
    arguments.add(parser.add_argument_group("run"), "device", "batch_size")


def run(args: argparse.Namespace) -> int:
    arguments.check(args, _RULES)
    if args.split is not None and len(args.inputs) != 1:
        raise UserError(
            f"--split {args.split}: needs the data folder it is of, and nothing else, but "
            f"{len(args.inputs)} paths are given: fairseq-mm caption DATA --split {args.split}."
        )
    if not (args.inputs or args.features):
        raise UserError("no images: give files or folders, or a feature store (--features).")
    options = arguments.generation_options(args)
    register_quietly()

    from fairseq_mm.inference.checkpoint import Checkpoint
    from fairseq_mm.inference.pretrained import from_checkpoints

    checkpoints = Checkpoint.open_all(args.checkpoint, command="caption")
    if any(checkpoint.reads_structure for checkpoint in checkpoints):
        captioner, search = caption_structured.load(args, checkpoints, options)
        return _write_captions(args, captioner, search, captioner.embedder, is_structured=True)
    caption_structured.refuse_options(args)
    names = ("weights", "device", "embedding")
    model: Any = from_checkpoints(checkpoints, **{name: getattr(args, name) for name in names})
    return _write_captions(args, model, model.config(**options), model.processor.reader)


def _write_captions(
    args: argparse.Namespace, model: Any, config: Any, reader: Any, *, is_structured: bool = False
) -> int:
    """Generate and write the captions of images or of stored features; return the exit status.

    If ``is_structured``, the model reads part-of-speech sequences: ``model`` is then a captioner
    instead of a generator, and ``config`` has the settings of its search.
    """
    store: Any = None
    if args.split is not None or args.features:
        store, inputs = _open_store(args, reader)
    else:
        # an extractor that cannot be rebuilt is reported before any image is looked for
        reader.load_extractor()
        inputs = list_images(args.inputs)
    nearest = _NearestCaption(args.nearest) if args.nearest else None
    if args.submission:  # before the captions are generated: an id may be no number of COCO
        coco_image_ids(item.name for item in inputs)
    texts = TextRun("caption", args, [model], [config], inputs)
    is_jsonl = texts.form == "jsonl"
    if is_structured and is_jsonl:
        facts = caption_structured.provenance_fields(args, model, config)
    elif is_jsonl:
        (facts,) = texts.provenance()

    def read(inputs: Sequence[Input]) -> Iterator[Any]:
        options = {"batch_size": args.batch_size}
        values: Any = [item.value for item in inputs]
        if store is not None:
            values = [store.read(item.name) for item in inputs]
        elif is_structured:
            values = reader.read_features(values, **options)
        # the captioner reads features, and the generators of the other models read examples
        for example in values if is_structured else model.processor.examples(values, **options):
            yield example if isinstance(example, UserError) else [example]

    best: dict[str, str] = {}
    with texts.open_outputs():
        for item, _, (result,) in texts.generate(read):
            captions = result.captions if is_structured else result
            best[item.name] = captions[0].text
            if is_structured and is_jsonl:
                lines = [caption_structured.json_line(item.name, result, facts)]
            elif is_jsonl:
                others = {} if nearest is None else {"nearest": nearest.find(captions[0].text)}
                lines = [json_line(item.name, captions, {**others, **facts})]
            else:
                captions = captions[:1] if is_structured else captions
                lines = ["\t".join([item.name, caption.text]) for caption in captions]
                if nearest is not None:
                    column = nearest.find(captions[0].text)["caption"]
                    lines = [f"{line}\t{column}" for line in lines]
                    if texts.num_texts == 0:
                        lines.insert(0, "image\tcaption\tnearest training caption")
            texts.write(lines, len(captions))
    status = texts.finish()
    if args.submission:
        write_file(args.submission, coco_results(best))
        number = counted(len(best), *texts.text_names)
        print(f"wrote {args.submission}: {number}", file=sys.stderr)
    return status


def list_images(paths: Sequence[str]) -> list[Input]:
    """List the images of files, folders and archives.

    For a path that cannot be read or has no images, the result has an input with an error.
    """
    from fairseq_mm.extract import media_list

    images: list[tuple[str, Any, Optional[UserError]]] = []
    for path in paths:
        try:
            files = media_list.list_images([path], ids="path")
        except UserError as error:
            images.append((path, None, remove_name(error, path)))
        else:
            images += [(file.name, file, None) for file in files]
    return [Input(name, index, file, error) for index, (name, file, error) in enumerate(images)]


def _open_store(args: argparse.Namespace, reader: Any) -> tuple[Any, list[Input]]:
    """Open the feature store, and list the images to caption; return both.

    These are the images of ``--split``, the ids on the command line, or else all images of the
    store.
    """
    from fairseq_mm.data.feature_store import open_features, open_folder_features

    if args.split is not None:
        store = open_folder_features(args.inputs[0], args.features)
        inputs = _list_split(args.inputs[0], args.split)
    else:
        store = open_features(args.features.split(os.pathsep))
        inputs = [Input(key, index) for index, key in enumerate(args.inputs or store.ids)]
    reader.check_features(store.attributes, store.dim, store.path)
    for item in inputs:
        # reports an id that is not in the store, before captions are generated
        store.count_rows(item.name)
    return store, inputs


def _list_split(folder: str, split: str) -> list[Input]:
    """List each image of a split once, in the order of first occurrence."""
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


class _NearestCaption:
    """Search index of training captions, which are compared with a text by CIDEr-D."""

    def __init__(self, folder: str) -> None:
        from fairseq_mm.data.input_files import check_line_counts, read_lines
        from fairseq_mm.data.split_files import read_visual_ids
        from fairseq_mm.metrics.cider import NearestCaption

        text_path = os.path.join(folder, "text", "train.txt")
        ids_path = os.path.join(folder, "train.visual_ids")
        what = "is it in a folder made by `prepare`?"
        lines = [line for _, line in read_lines(text_path, what=what)]
        self.ids = read_visual_ids(ids_path)
        check_line_counts({text_path: len(lines), ids_path: len(self.ids)})
        if not lines:
            raise UserError(f"{text_path}: must have training captions, but is empty.")
        self.lines = lines
        self.index = NearestCaption([line.split() for line in lines], self.ids)

    def find(self, text: str) -> dict[str, Union[str, float]]:
        """Return the nearest training caption to ``text`` as a dict.

        Keys are ``caption``, ``id`` (of the caption's image) and ``cider_d`` (similarity, 0 to 10).
        """
        index, similarity = self.index.nearest(text.split())
        return {
            "caption": self.lines[index],
            "id": self.ids[index],
            "cider_d": round(similarity, 4),
        }
