r"""VIST (Huang et al. 2016): visual stories, and descriptions of single images.

  fairseq-mm prepare vist FOLDER --output DIR
  fairseq-mm prepare vist FOLDER --output DIR --tier description-in-isolation

Stories and descriptions in sequence are for the task visual_storytelling, descriptions in isolation
for multimodal_captioning.

FOLDER has {train,val,test}.TIER.json. The file of a split may be missing; without the file of train
--dictionary is required. A story is five annotations with one story_id, in the order of
worker_arranged_photo_order, which may differ from their order in the file. The release's text is
tokenized: it is lower-cased and split at white space, so that placeholders such as [male] stay one
word.

The id of an image is its Flickr number, such as 4996714644. Features come from

  fairseq-mm extract IMAGES --ids stem --model resnet152 \
      --output DIR/features.h5

If a store has other keys (4996714644.jpg), give it as --features: its keys are used.

Some images of VIST are gone from Flickr or unreadable. --features STORE determines which, and
--missing decides whether their stories are kept.
"""

import argparse
from pathlib import Path

from fairseq_mm.data.input_files import check_id, read_json
from fairseq_mm.data.record_split import CAPTIONS, VISUAL_STORIES
from fairseq_mm.data.story_text import NUM_IMAGES
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.captions import captioned_image
from fairseq_mm.prepare.corpus import Corpus, Example
from fairseq_mm.prepare.split_lists import release_file

# Li et al. 2020, section 4.1. They count 209,651 images, more than the stories have (81,743 in
# Huang et al. 2016); images_listed in prepare.json counts all images that the release lists.
VIST_STORIES = {"train": 40_155, "valid": 4_990, "test": 5_055}
STORIES, IN_SEQUENCE, IN_ISOLATION = (
    "story-in-sequence",
    "description-in-sequence",
    "description-in-isolation",
)
TIERS = (STORIES, IN_SEQUENCE, IN_ISOLATION)

_RELEASE_SPLITS = {"train": "train", "valid": "val", "test": "test"}
_ORDER_FIELDS = ("worker_arranged_photo_order", "photo_order_in_story")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "release", metavar="RELEASE", type=Path, help="Folder of one tier's JSON files."
    )
    parser.add_argument(
        "--tier", choices=TIERS, default=STORIES, help="Tier to read (default: %(default)s)."
    )


def read(args: argparse.Namespace) -> Corpus:
    if args.tier == IN_ISOLATION:
        return read_vist_descriptions(args.release)
    return read_vist_stories(args.release, tier=args.tier)


def read_vist_stories(folder: Path, *, tier: str = STORIES) -> Corpus:
    """Read the visual stories of a tier, in the order of their first annotations in the file.

    Stories without five sentences at five different positions, or with two albums, are left out and
    listed in the corpus's ``exceptions``.

    ``tier`` is ``story-in-sequence`` or ``description-in-sequence``; the file of a split may be
    missing.
    """
    published = VIST_STORIES if tier == STORIES else {}
    options: dict[str, object] = {"tier": tier}
    corpus = Corpus(
        VISUAL_STORIES, "vist", "official", {}, [], options=options, published=published
    )
    for split, path in _files(folder, tier).items():
        corpus.files.append(str(path))
        # story -> its (position, album, image, sentence), 200,000 in the full release
        parts: dict[str, list[tuple[int, str, str, str]]] = {}
        with release_file(path):
            content = read_json(path)
            if "images" in content:
                corpus.counts[split] = {"images_listed": len(content["images"])}
            annotations = content["annotations"]
            # frees this large object with the last annotation, before the stories are built
            del content
            for number, (annotation,) in enumerate(annotations):
                where = f"{path}: annotations[{number}]"
                key = check_id(str(annotation["story_id"]), where, what="a story")
                order = _ORDER_FIELDS[_ORDER_FIELDS[0] not in annotation]
                part = (
                    annotation[order],
                    str(annotation["album_id"]),
                    check_id(str(annotation["photo_flickr_id"]), where),
                    annotation["text"],
                )
                parts.setdefault(key, []).append(part)
            del annotations
        stories = []
        malformed: list[str] = []
        for key, several in parts.items():
            # sorted by position: the annotations of a story need not be in its order
            positions, albums, images, sentences = map(list, zip(*sorted(several)))
            if len(several) == len(set(positions)) == NUM_IMAGES and len(set(albums)) == 1:
                texts = {"sentences": sentences}
                stories.append(Example(texts, str(path), key, images, group=albums[0]))
            else:
                malformed.append(key)
        corpus.splits[split] = stories
        what = f"{split} stories left out, not five sentences at five positions of one album"
        corpus.add_exception(what, malformed)
    return corpus


def read_vist_descriptions(folder: Path) -> Corpus:
    """Read VIST's images with their descriptions in isolation as captions."""
    corpus = Corpus(CAPTIONS, f"vist, {IN_ISOLATION}", "official", {}, [])
    for split, path in _files(folder, IN_ISOLATION).items():
        corpus.files.append(str(path))
        images: dict[str, Example] = {}
        with release_file(path):
            for number, (annotation,) in enumerate(read_json(path)["annotations"]):
                where = f"{path}: annotations[{number}]"
                key = check_id(str(annotation["photo_flickr_id"]), where)
                image = images.setdefault(key, captioned_image(key, [], where))
                image.texts["captions"].append(annotation["text"])
        corpus.splits[split] = list(images.values())
    return corpus


def _files(folder: Path, tier: str) -> dict[str, Path]:
    names = {split: f"{name}.{tier}.json" for split, name in _RELEASE_SPLITS.items()}
    files = {split: folder / name for split, name in names.items() if (folder / name).exists()}
    if not files:
        raise UserError(f"{folder}: none of {', '.join(names.values())} found in this folder.")
    return files
