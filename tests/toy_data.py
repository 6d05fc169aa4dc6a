"""Small data folders and models that tests share."""

import importlib
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary, indexed_dataset

import fairseq_mm
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.data.story_text import (
    NUM_IMAGES,
    SEPARATOR,
    join_sentences,
    split_sentences,
)

WORDS = "a the dog cat man runs sits jumps on in grass snow red blue small big".split()  # noqa: SIM905
PACKAGE = Path(fairseq_mm.__file__).parent
EXTRACTOR = {"extractor": "drawn", "weights": "none", "layer": "pool", "grid": 0}


def make_dictionary(*, reverse: bool = False, separator: bool = False) -> Dictionary:
    """Four special symbols and 16 words, and the separator of stories' sentences if asked for."""
    dictionary = Dictionary()
    for word in reversed(WORDS) if reverse else WORDS:
        dictionary.add_symbol(word)
    if separator:
        dictionary.add_symbol(SEPARATOR)
    return dictionary


def write_split(
    folder: Path, split: str, lines: list[tuple[str, str]], dictionary: Dictionary
) -> None:
    """Binarised text, ids and references of (key, sentence) pairs."""
    builder = indexed_dataset.make_builder(
        str(folder / f"{split}.bin"), "mmap", vocab_size=len(dictionary)
    )
    references: dict[str, list[str]] = {}
    for key, sentence in lines:
        builder.add_item(dictionary.encode_line(sentence, add_if_not_exist=False))
        references.setdefault(key, []).append(sentence)
    builder.finalize(str(folder / f"{split}.idx"))
    (folder / f"{split}.visual_ids").write_text("".join(f"{key}\n" for key, _ in lines))
    (folder / f"{split}.references.jsonl").write_text(
        "".join(
            json.dumps({"id": key, "references": sentences}) + "\n"
            for key, sentences in references.items()
        )
    )


def write_store(
    path: Path,
    keys: list[str],
    *,
    dim: int = 5,
    rows: int = 1,
    seed: int = 3,
    attributes: Optional[dict[str, Any]] = None,
) -> None:
    generator = np.random.default_rng(seed)
    with FeatureStoreWriter(
        path, dim=dim, dtype="float32", attributes=EXTRACTOR if attributes is None else attributes
    ) as writer:
        for key in keys:
            writer.append(key, generator.normal(size=(rows, dim)).astype(np.float32))
        writer.finish()


def make_captions_folder(folder: Path, *, dim: int = 5, rows: int = 1) -> Path:
    """12 training and 7 validation images with three captions each, as ``prepare`` makes it."""
    folder.mkdir(parents=True, exist_ok=True)
    dictionary = make_dictionary()
    dictionary.save(str(folder / "dict.txt"))
    generator = np.random.default_rng(1)
    keys: list[str] = []
    for split, count in (("train", 12), ("valid", 7)):
        lines = []
        for i in range(count):
            key = f"{split}{i}.jpg"
            keys.append(key)
            for _ in range(3):
                length = int(generator.integers(2, 7))
                lines.append((key, " ".join(generator.choice(WORDS, size=length))))
        write_split(folder, split, lines, dictionary)
    write_store(folder / "features.h5", keys, dim=dim, rows=rows)
    return folder


def make_visual_stories_folder(folder: Path, *, dim: int = 5, rows: int = 1) -> Path:
    """8 albums of five images for training and 5 for validation and as many for testing, as
    ``prepare`` makes it: two stories of each sequence, of five sentences of 1 to 5 words."""
    (folder / "text").mkdir(parents=True, exist_ok=True)
    dictionary = make_dictionary(separator=True)
    dictionary.save(str(folder / "dict.txt"))
    generator = np.random.default_rng(2)
    keys: list[str] = []
    for split, count in (("train", 8), ("valid", 5), ("test", 5)):
        lines = []
        for album in range(count):
            images = [f"{split}{album}_{i}" for i in range(NUM_IMAGES)]
            keys += images
            for _ in range(2):
                lengths = generator.integers(1, 6, size=NUM_IMAGES)
                sentences = [" ".join(generator.choice(WORDS, size=length)) for length in lengths]
                lines.append(("\t".join(images), join_sentences(sentences)))
        write_visual_story_split(folder, split, lines, dictionary)
    write_store(folder / "features.h5", keys, dim=dim, rows=rows)
    return folder


def write_visual_story_split(
    folder: Path, split: str, lines: list[tuple[str, str]], dictionary: Dictionary
) -> None:
    """Binarised text, ids and references of (keys, story) pairs; each sequence is an album."""
    write_split(folder, split, lines, dictionary)
    (folder / "text" / f"{split}.txt").write_text("".join(f"{story}\n" for _, story in lines))
    references: dict[str, list[str]] = {}
    stories = []
    for number, (key, story) in enumerate(lines):
        references.setdefault(key, []).append(" ".join(split_sentences(story)))
        album = f"{split}-album{len(references)}"
        stories.append({"story_id": f"{split}{number}", "album_id": album})
    items = [
        {"id": key, "album": f"{split}-album{number}", "references": texts}
        for number, (key, texts) in enumerate(references.items(), start=1)
    ]
    plain = [{"id": item["id"], "references": item["references"]} for item in items]
    for name, entries in (
        ("references", plain),
        ("album_references", items),
        ("stories", stories),
    ):
        (folder / f"{split}.{name}.jsonl").write_text(
            "".join(json.dumps(entry) + "\n" for entry in entries)
        )


def make_videos_folder(
    folder: Path, *, dim: int = 5, with_features: bool = True, indexed_oov: int = 0
) -> Path:
    """8 videos of 3 to 9 frames for training and 5 for validation and as many for testing, with
    transcripts of 5 to 9 words and summaries of 3 to 6, as ``prepare`` makes it.

    Args:
        folder: made if it is not there.
        dim: channels of the features.
        with_features: there is a feature store.
        indexed_oov: words of the dictionary that stand for a transcript's own: then the third
            word of each transcript, and the second of each summary, is one.
    """
    (folder / "text").mkdir(parents=True, exist_ok=True)
    dictionary = make_dictionary()
    subwords: dict[str, Any] = {"kind": "none"}
    if indexed_oov:
        subwords["numbered_unknowns"] = indexed_oov
        for number in range(indexed_oov):
            dictionary.add_symbol(f"<unk-{number}>")
    for side in ("tran", "desc"):
        dictionary.save(str(folder / f"dict.{side}.txt"))
    (folder / "subwords.json").write_text(json.dumps(subwords))
    generator = np.random.default_rng(4)
    frames = {}
    for split, count in (("train", 8), ("valid", 5), ("test", 5)):
        lines = []
        for i in range(count):
            key = f"{split}{i}"
            frames[key] = int(generator.integers(3, 10))
            transcript = generator.choice(WORDS, size=int(generator.integers(5, 10))).tolist()
            summary = generator.choice(WORDS, size=int(generator.integers(3, 7))).tolist()
            if indexed_oov:
                transcript[2] = summary[1] = "<unk-0>"
            lines.append((key, " ".join(transcript), " ".join(summary)))
        write_video_split(folder, split, lines, dictionary)
    if with_features:
        store = FeatureStoreWriter(
            folder / "features.h5", dim=dim, dtype="float32", attributes=EXTRACTOR
        )
        with store as writer:
            for key, rows in frames.items():
                writer.append(key, generator.normal(size=(rows, dim)).astype(np.float32))
            writer.finish()
    return folder


def write_video_split(
    folder: Path, split: str, lines: list[tuple[str, str, str]], dictionary: Dictionary
) -> None:
    """Binarised text, ids, references and transcripts of (video, transcript, summary) triples.

    In texts as people write them, the word zebra stands where ``<unk-0>`` does in tokens.
    """
    for column, side in ((1, "tran"), (2, "desc")):
        base = folder / f"{split}.tran-desc.{side}"
        builder = indexed_dataset.make_builder(f"{base}.bin", "mmap", vocab_size=len(dictionary))
        for line in lines:
            builder.add_item(dictionary.encode_line(line[column], add_if_not_exist=False))
        builder.finalize(f"{base}.idx")
        (folder / "text" / f"{split}.{side}").write_text("".join(f"{x[column]}\n" for x in lines))
    (folder / f"{split}.visual_ids").write_text("".join(f"{key}\n" for key, _, _ in lines))
    written = [tuple(text.replace("<unk-0>", "zebra") for text in line) for line in lines]
    entries = {
        "references": [{"id": key, "references": [summary]} for key, _, summary in written],
        "transcripts": [{"id": key, "transcript": text} for key, text, _ in written],
    }
    if any("<unk-0>" in transcript for _, transcript, _ in lines):
        entries["unknowns"] = [["zebra"] if "<unk-0>" in text else [] for _, text, _ in lines]
    for name, content in entries.items():
        text = "".join(json.dumps(entry) + "\n" for entry in content)
        (folder / f"{split}.{name}.jsonl").write_text(text)


def visual_story_task(**attributes: Any) -> Namespace:
    """What a model of visual stories' ``build_model`` asks of its task."""
    dictionary = make_dictionary(separator=True)
    return toy_task(
        **{
            "target_dictionary": dictionary,
            "separator_index": dictionary.index(SEPARATOR),
            "rows_per_image": 1,
            **attributes,
        }
    )


def toy_task(**attributes: Any) -> Namespace:
    """What a model's ``build_model`` asks of its task."""
    return Namespace(
        **{
            "target_dictionary": make_dictionary(),
            "feature_dim": 5,
            "feature_attributes": EXTRACTOR,
            **attributes,
        }
    )


def story_task(**attributes: Any) -> Namespace:
    """What a story model's ``build_model`` asks of its task."""
    return Namespace(
        **{
            "source_dictionary": make_dictionary(),
            "target_dictionary": make_dictionary(),
            "cfg": Namespace(data=None),
            **attributes,
        }
    )


def video_task(**attributes: Any) -> Namespace:
    """What the ``build_model`` of a model of videos and transcripts asks of its task."""
    dictionary = make_dictionary()
    return toy_task(
        **{
            "source_dictionary": dictionary,
            "target_dictionary": dictionary,
            "max_frames": 9,
            "cfg": Namespace(data=None),
            **attributes,
        }
    )


def write_story_checkpoint(path: Path, arch: str, options: dict[str, Any]) -> str:
    """A checkpoint of a story model, with what loading as a pretrained model reads of it."""
    model = build_model(arch, story_task(), **options)
    state = {
        "args": None,
        "cfg": {"model": {**vars(model.cfg), "_name": arch}, "task": {"_name": "translation"}},
        "model": model.state_dict(),
        "optimizer_history": [
            {"optimizer_name": "Adam", "lr_scheduler_state": {}, "num_updates": 1}
        ],
        "extra_state": {"train_iterator": {"epoch": 1}},
    }
    torch.save(state, path)
    return str(path)


def build_model(arch: str, task: Any, **options: Any) -> Any:
    """A model as fairseq builds it from ``--arch`` and flags, in evaluation mode."""
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    cls = ARCH_MODEL_REGISTRY[arch]
    cfg = Namespace(**options)
    ARCH_CONFIG_REGISTRY[arch](cfg)
    defaults = {key: field.default for key, field in cls.__dataclass.__dataclass_fields__.items()}
    torch.manual_seed(7)
    model = cls.build_model(Namespace(**{**defaults, **vars(cfg)}), task)
    return model.eval()


def run_fairseq(monkeypatch: Any, command: str, *arguments: Any, user_dir: Path = PACKAGE) -> Any:
    """Runs ``fairseq-<command>`` in this process, by default with the package as --user-dir."""
    # the best score of the process, by which a second training would write no checkpoint_best.pt
    vars(checkpoint_utils.save_checkpoint).pop("best", None)
    module = importlib.import_module(f"fairseq_cli.{command}")
    argv = [f"fairseq-{command}", *map(str, arguments), "--user-dir", str(user_dir)]
    monkeypatch.setattr(sys, "argv", argv)
    return module.cli_main()
