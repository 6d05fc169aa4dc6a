"""``fairseq-mm tell``: stories of five images each, and the table of several systems' stories."""

import argparse
import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from fairseq_mm.cli.image_albums import (
    Album,
    Stored,
    check_rows,
    image_album,
    stored_by_ids,
    stored_of_split,
)
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.cli.tell_output import (
    check_folder,
    check_numbers,
    hashes_of,
    opened,
    progress_bar,
)
from fairseq_mm.cli.tell_prompts import counted
from fairseq_mm.errors import EXIT_STATUS, UserError

if TYPE_CHECKING:
    from fairseq_mm.inference.visual_storyteller import Features, ImageTelling, VisualStoryteller

# options of visual stories alone
_OPTIONS = (
    *("inputs", "albums", "features", "ids", "split", "line", "limit", "compare", "weights"),
    *("repetition_penalty", "end_after_punctuation", "html", "images"),
)
# options of stories of prompts alone
_OPTIONS_OF_PROMPTS = (
    *("prompt", "prompts", "truncate_prompt", "prompt_model", "prompts_only", "prompt_topk"),
    *("prompt_temperature", "words"),
)
# albums whose stories are printed at a time: extractors are slow, stores are not
_IMAGEED, _STORED = 16, 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sources = parser.add_argument_group("images")
    sources.add_argument(
        "inputs",
        nargs="*",
        metavar="IMAGE",
        help="five, in the story's order; - in the place of one that is missing",
    )
    sources.add_argument(
        "--albums",
        action="append",
        default=[],
        metavar="FILE.jsonl",
        help='a story of each line {"images": [five paths], "id": "..."}; paths are seen from the '
        "file",
    )
    sources.add_argument(
        "--features", metavar="STORE", help="features of the images, which are named by --ids"
    )
    sources.add_argument(
        "--ids", nargs="+", default=[], metavar="ID", help="five, of images of --features"
    )
    sources.add_argument(
        "--split", metavar="NAME", help="stories of all photo sequences of a split of --data"
    )
    sources.add_argument(
        "--line",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="only of this line of the split, counted from 0; may be given repeatedly",
    )
    sources.add_argument("--limit", type=int, metavar="N", help="only of the first N of the split")
    sources.add_argument(
        "--compare",
        nargs="+",
        default=[],
        metavar="[NAME=]CKPT",
        help="a table of the stories of several models instead of those of one --model; they are "
        "named by their --arch",
    )
    sources.add_argument(
        "--weights", metavar="FILE", help="state dict file of the extractor that made the features"
    )
    rules = parser.add_argument_group("visual stories")
    rules.add_argument(
        "--repetition-penalty",
        type=float,
        metavar="X",
        help="divide the probability of a word that the story has n times by 1 + n X",
    )
    rules.add_argument(
        "--end-after-punctuation", action="store_true", help="sentences end only after . ? !"
    )
    rules.add_argument("--html", metavar="FILE", help="write a page with the images")
    rules.add_argument(
        "--images",
        action="append",
        default=[],
        metavar="FOLDER",
        help="folder or .tar of the images of a store, for the page; may be given again",
    )


def given_options(args: argparse.Namespace) -> list[str]:
    """Options given that are of visual stories alone, as they are written."""
    return _given(args, _OPTIONS)


def _given(args: argparse.Namespace, names: Sequence[str]) -> list[str]:
    found = []
    for name in names:
        value = getattr(args, name)
        if value is not None and value is not False and value != []:
            found.append("IMAGE" if name == "inputs" else f"--{name.replace('_', '-')}")
    return found


def run(args: argparse.Namespace) -> int:
    _check_arguments(args)
    register_quietly()
    telling = _telling(args)
    names, tellers = _load(args)
    for teller in tellers:
        teller.check(telling)
    if (args.n or 1) > 1 and not telling.draws:
        raise UserError(
            f"--n {args.n}: a search finds the same story each time; draw the words for several "
            "(--preset sampling)."
        )
    stored: Optional[Stored] = None
    if args.split or args.ids:
        stored = stored_of_split(args) if args.split else stored_by_ids(args)
        for teller in tellers:
            check_rows(stored, teller)
        albums = stored.albums
    else:
        albums = image_album(args)
        for teller in tellers:
            teller.extractor  # noqa: B018  one that cannot be rebuilt is named first
    return _write(args, names, tellers, telling, albums, stored)


def _write(
    args: argparse.Namespace,
    names: list[str],
    tellers: "list[VisualStoryteller]",
    telling: "ImageTelling",
    albums: list[Album],
    stored: Optional[Stored],
) -> int:
    from fairseq_mm.cli.visual_story_output import Told, entries_of, table_of, text_of

    page = _page(args, names, tellers, telling)
    facts = _facts(tellers, telling) if args.jsonl else [{} for _ in tellers]
    has_heading = len(albums) > 1
    size = _IMAGEED if stored is None else _STORED
    is_silent = args.html and not (args.output or args.jsonl or args.raw)
    failed = 0
    with opened(os.devnull if is_silent else args.output) as file, progress_bar(len(albums)) as bar:
        for start in range(0, len(albums), size):
            piece = albums[start : start + size]
            readable = []
            for album, features in zip(piece, _features(piece, tellers, stored)):
                if not isinstance(features, UserError):
                    readable.append((album, features))
                    continue
                if len(albums) == 1:
                    raise features
                failed += 1
                bar.clear()
                print(f"fairseq-mm tell: {features}", file=sys.stderr)
            items = [album.item for album, _ in readable]
            by_system = []
            for place, teller in enumerate(tellers):
                read = [features[place] for _, features in readable]
                stories = teller.stories(items, read, telling, batch_size=args.batch_size)
                by_system.append(list(stories))
            for number, (album, _) in enumerate(readable):
                told = Told(album, [stories[number] for stories in by_system])
                if args.jsonl:
                    lines = entries_of(told, names, facts, is_compared=bool(args.compare))
                elif args.raw:
                    lines = [story.line for story in told.stories]
                elif args.compare:
                    lines = [table_of(told, names, has_heading=has_heading)]
                else:
                    lines = [text_of(told, has_heading=has_heading)]
                print(*lines, sep="\n", file=file, flush=True)
                if page is not None:
                    page.add(told)
            bar.update(len(piece))
    number = counted((len(albums) - failed) * len(tellers), "story", "stories")
    if args.output:
        print(f"wrote {args.output}: {number}", file=sys.stderr)
    if page is not None and len(albums) > failed:
        page.check_images(" ".join(args.images))
        page.write()
        absent = f"; {counted(page.num_absent, 'image')} not found" if args.images else ""
        size = os.path.getsize(args.html) / 1e6
        print(
            f"wrote {args.html}: {number}, {size:.1f} MB{absent if page.num_absent else ''}",
            file=sys.stderr,
        )
    if failed:
        print(f"{failed} of {len(albums)} albums could not be read", file=sys.stderr)
    return EXIT_STATUS if failed else 0


def _features(
    albums: list[Album], tellers: "list[VisualStoryteller]", stored: Optional[Stored]
) -> "list[Union[list[Features], UserError]]":
    """For each album what each teller reads, or why an image of it cannot be read."""
    if stored is not None:
        found: list[Union[list[Features], UserError]] = []
        for album in albums:
            rows = [None if key is None else stored.store.read(key) for key in album.keys]
            found.append([rows] * len(tellers))
        return found
    # systems that were trained with one extractor share what it gives
    keys = [json.dumps(teller.identity, sort_keys=True) for teller in tellers]
    by_extractor: dict[str, list[Any]] = {}
    for key, teller in zip(keys, tellers):
        if key not in by_extractor:
            by_extractor[key] = list(_extracted(albums, teller))
    result: list[Union[list[Features], UserError]] = []
    for number in range(len(albums)):
        of_tellers = [by_extractor[key][number] for key in keys]
        errors = [found for found in of_tellers if isinstance(found, UserError)]
        result.append(errors[0] if errors else of_tellers)
    return result


def _extracted(
    albums: list[Album], teller: "VisualStoryteller"
) -> "Iterator[Union[Features, UserError]]":
    images = [image for album in albums for image in album.images if image is not None]
    # an image of several albums is read once
    places = {image: place for place, image in enumerate(dict.fromkeys(images))}
    rows = list(teller.features_of(list(places)))
    for album in albums:
        found: list[Any] = []
        error: Optional[UserError] = None
        for image in album.images:
            value = None if image is None else rows[places[image]]
            if isinstance(value, UserError) and image is not None:
                where = f"{album.where}: " if album.where else ""
                error = error or UserError(f"{where}{image.name}: {value}")
            found.append(value)
        yield error or found


def _load(args: argparse.Namespace) -> "tuple[list[str], list[VisualStoryteller]]":
    from fairseq_mm.inference.text_models import load_states
    from fairseq_mm.inference.visual_storyteller import from_pretrained

    names: list[str] = []
    tellers = []
    for text in args.compare or [args.model]:
        name, path = _named(text) if args.compare else ("", text)
        states = load_states(path)
        if not name:
            name = str(next(iter(states.values()))["cfg"]["model"]["_name"])
        if name in names:
            raise UserError(
                f"--compare: two systems are named {name}: give them names (--compare "
                "first=CKPT second=CKPT)."
            )
        names.append(name)
        tellers.append(
            from_pretrained(path, weights=args.weights, device=args.device, states=states)
        )
    return names, tellers


def _named(text: str) -> tuple[str, str]:
    """Name and checkpoint of ``NAME=CKPT``; the name is empty where none is given."""
    name, sign, path = text.partition("=")
    if not sign or not name or os.sep in name or os.path.exists(text):
        return "", text
    return name, path


def _facts(tellers: "list[VisualStoryteller]", telling: "ImageTelling") -> list[dict[str, Any]]:
    return [
        {
            "seed": telling.seed,
            "options": dataclasses.asdict(telling),
            "extractor": teller.identity,
            "checkpoint": hashes_of(teller.files),
        }
        for teller in tellers
    ]


def _page(
    args: argparse.Namespace,
    names: list[str],
    tellers: "list[VisualStoryteller]",
    telling: "ImageTelling",
) -> Any:
    if not args.html:
        return None
    from fairseq_mm.cli.visual_story_output import SIDE, Page
    from fairseq_mm.report.thumbnails import Thumbnails

    card = [("command", shlex.join(["fairseq-mm", *sys.argv[1:]]))]
    options = dataclasses.asdict(telling)
    card.append(("telling", ", ".join(f"{name} {value}" for name, value in options.items())))
    for name, teller in zip(names, tellers):
        hashes = hashes_of(teller.files)
        hashes = [hashes] if isinstance(hashes, str) else hashes
        files = ", ".join(f"{file}, sha256 {x[:16]}" for file, x in zip(teller.files, hashes))
        card.append((name, files))
    extractors = {str(teller.identity.get("extractor", "not recorded")) for teller in tellers}
    card.append(("extractor", ", ".join(sorted(extractors))))
    thumbnails = Thumbnails(args.images, SIDE) if args.images else None
    return Page(Path(args.html), names, thumbnails, card)


def _telling(args: argparse.Namespace) -> "ImageTelling":
    from fairseq_mm.inference.visual_storyteller import image_telling

    names = ("beam", "topk", "topp", "temperature", "no_repeat_ngram", "seed", "min_words")
    names += ("max_words", "repetition_penalty")
    changes = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    changes["allow_unk"] = args.allow_unk
    if args.end_after_punctuation:
        changes["end_after_punctuation"] = True
    return image_telling(args.preset, **changes)


def _check_arguments(args: argparse.Namespace) -> None:
    of_prompts = _given(args, _OPTIONS_OF_PROMPTS)
    if of_prompts:
        ours = given_options(args)[0]
        raise UserError(
            f"{of_prompts[0]}: is of stories of prompts, but {ours} of visual stories, which "
            "have none; leave one of the two out."
            if of_prompts[0] != "--words"
            else "--words: sets the length of stories of prompts; sentences about images have "
            "--min-words and --max-words."
        )
    if bool(args.model) == bool(args.compare):
        raise UserError(
            "--model and --compare: give one model or several systems, not both."
            if args.model
            else "no model: give a checkpoint of a model of visual stories (--model, --compare)."
        )
    images = bool(args.inputs or args.albums)
    sources = [
        *(["IMAGE"] if args.inputs else []),
        *(["--albums"] if args.albums else []),
        *(["--ids"] if args.ids else []),
        *(["--split"] if args.split else []),
    ]
    if not sources:
        raise UserError(
            "no images: give five (before --compare), or --albums FILE, or --features STORE "
            "--ids ID ID ID ID ID, or --data DIR --split NAME."
        )
    if len(sources) > 1 and sources != ["IMAGE", "--albums"]:
        raise UserError(f"{sources[0]} and {sources[1]}: leave one of the two out.")
    if args.ids and not args.features:
        raise UserError("--ids: are of a feature store; name it (--features STORE).")
    if images and (args.features or args.images):
        other = "--features" if args.features else "--images"
        raise UserError(f"{other}: is for images of a feature store; leave it out.")
    if args.weights and not images:
        raise UserError("--weights: no image is read where features are given; leave it out.")
    if args.images and not args.html:
        raise UserError("--images: are shown on the page (--html FILE).")
    if bool(args.split) != bool(args.data):
        other, missing = ("--split", "--data") if args.split else ("--data", "--split")
        raise UserError(f"{other}: needs {missing} beside it.")
    if not args.split and (args.line or args.limit is not None):
        raise UserError(f"{'--line' if args.line else '--limit'}: is of a --split.")
    if args.split and (args.n or args.first_id):
        name = "--n" if args.n else "--first-id"
        raise UserError(
            f"{name}: the stories of a split are numbered by its lines, and each is told once; "
            "another --seed draws others."
        )
    if args.limit is not None and args.limit < 1:
        raise UserError(f"--limit must be 1 or more, but is {args.limit} instead.")
    check_numbers(args)
    for option, path in (("--output", args.output), ("--html", args.html)):
        check_folder(option, path)
