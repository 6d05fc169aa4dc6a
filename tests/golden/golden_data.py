"""The data folders on which the golden checkpoints are trained, and raw releases to prepare."""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from fairseq.data import Dictionary
from PIL import Image
from toy_data import (
    WORDS,
    make_captions_folder,
    make_videos_folder,
    write_store,
    write_visual_story_split,
)
from toy_pos_sequences import write_text_and_tags
from toy_released_vse import TheirModel, write_kiros
from toy_story_models import make_story_folder

from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.data.story_text import NUM_IMAGES, SEPARATOR, join_sentences
from fairseq_mm.extract.extractor import build_extractor

MARKS = (".", "?")
SIDE = 33  # of the images as the network sees them
EXTRACTOR = "squeezenet1_1"
WEIGHTS = "squeezenet.pth"
CLIPS = "mc3_18"


def make_data(root: Path) -> None:
    """All folders below ``root``: data folders, images, videos and releases."""
    make_captions_folder(root / "captions")
    for split in ("train", "valid"):
        write_text_and_tags(root / "captions", split)
    make_stories_folder(root / "stories")
    make_stories_folder(root / "stories_grid", rows=4)
    make_story_folder(root / "prompts", valid=6)
    make_videos_folder(root / "videos")
    make_videos_folder(root / "videos_unknowns", indexed_oov=2)
    _make_folders_of_images(root)
    _make_folder_of_clips(root)
    make_releases(root / "releases")


def make_stories_folder(folder: Path, *, rows: int = 1) -> None:
    """8 albums of five images for training and 5 for validation: two stories of each, of five
    sentences of 1 to 4 words, most of which end with a full stop or a question mark."""
    (folder / "text").mkdir(parents=True)
    dictionary = Dictionary()
    for word in [*WORDS, *MARKS, SEPARATOR]:
        dictionary.add_symbol(word)
    dictionary.save(str(folder / "dict.txt"))
    generator = np.random.default_rng(2)
    keys: list[str] = []
    for split, count in (("train", 8), ("valid", 5)):
        lines = []
        for album in range(count):
            images = [f"{split}{album}_{i}" for i in range(NUM_IMAGES)]
            keys += images
            for _ in range(2):
                sentences = []
                for length in generator.integers(1, 5, size=NUM_IMAGES):
                    words = [*generator.choice(WORDS, size=length)]
                    if generator.random() < 0.7:
                        words.append(str(generator.choice(MARKS)))
                    sentences.append(" ".join(words))
                lines.append(("\t".join(images), join_sentences(sentences)))
        write_visual_story_split(folder, split, lines, dictionary)
    write_store(folder / "features.h5", keys, rows=rows)


def draw_image(path: Path, seed: int) -> None:
    """Stripes and a disc in colours of their own."""
    generator = np.random.default_rng(seed)
    width, height = (int(x) for x in generator.integers(24, 40, size=2))
    y, x = np.mgrid[:height, :width]
    first, second, third = generator.integers(0, 256, size=(3, 3))
    angle, period = generator.uniform(0, np.pi), generator.uniform(4, 12)
    stripes = np.sin((x * np.cos(angle) + y * np.sin(angle)) * 2 * np.pi / period) > 0
    pixels = np.where(stripes[..., None], first, second)
    middle = generator.uniform(0.2, 0.8, size=2) * (height, width)
    disc = (y - middle[0]) ** 2 + (x - middle[1]) ** 2 < generator.uniform(5, 11) ** 2
    pixels = np.where(disc[..., None], third, pixels)
    Image.fromarray(pixels.astype(np.uint8)).save(path, quality=90)


def write_extractor_weights(path: Path) -> None:
    """A state dict of few different numbers, which an archive holds in little room."""
    import torchvision

    torch.manual_seed(2)
    state = torchvision.models.squeezenet1_1(weights=None).state_dict()
    generator = torch.Generator().manual_seed(5)
    block = torch.randn(1009, generator=generator)  # a prime: no two filters are alike
    for name, values in state.items():
        if name.startswith("classifier"):
            values.zero_()
            continue
        fan_in = values[0].numel() if values.dim() > 1 else 100.0
        repeated = block.repeat(values.numel() // len(block) + 1)[: values.numel()]
        values.copy_((repeated * (2.0 / fan_in) ** 0.5).reshape(values.shape))
    torch.save(state, path)


def _make_folders_of_images(root: Path) -> None:
    """Captions and stories of images that are there, with the features of a network."""
    images = root / "images"
    images.mkdir()
    folder = root / "extractor"
    folder.mkdir()
    write_extractor_weights(folder / WEIGHTS)
    extractor = build_extractor(
        EXTRACTOR, weights=str(folder / WEIGHTS), resize="squash", size=SIDE
    )
    shutil.copytree(root / "captions", root / "captions_images")
    shutil.copytree(root / "stories", root / "stories_images")
    for seed, data in ((100, "captions_images"), (200, "stories_images")):
        keys = FeatureStore(str(root / data / "features.h5")).ids
        (root / data / "features.h5").unlink()
        with FeatureStoreWriter(
            root / data / "features.h5",
            dim=extractor.dim,
            dtype="float32",
            attributes=extractor.identity,
        ) as writer:
            for number, key in enumerate(keys):
                path = images / key if key.endswith(".jpg") else images / f"{key}.jpg"
                draw_image(path, seed + number)
                writer.append(key, extractor.extract([str(path)])[0])
                if key.startswith("train"):
                    path.unlink()
            writer.finish()


def _make_folder_of_clips(root: Path) -> None:
    """Three videos of 4, 2 and 1 clips and their transcripts, and a folder of such features."""
    from toy_summarizer import save_transcripts, save_videos

    save_videos(root / "clips")
    save_transcripts(root / "clips")
    extractor = build_extractor(CLIPS, weights="none", size=16, frames=4)
    make_videos_folder(root / "videos_clips", with_features=False)
    generator = np.random.default_rng(6)
    keys = [f"{split}{i}" for split, n in (("train", 8), ("valid", 5)) for i in range(n)]
    with FeatureStoreWriter(
        root / "videos_clips" / "features.h5",
        dim=extractor.dim,
        dtype="float16",
        attributes=extractor.identity,
    ) as writer:
        for key in keys:
            rows = int(generator.integers(1, 3))
            writer.append(key, generator.normal(size=(rows, extractor.dim)).astype(np.float32))
        writer.finish()


def make_releases(folder: Path) -> None:
    """The official releases that the preparation reads, of a few examples each."""
    for make in (_flickr8k, _flickr30k, _coco, _iapr_tc12, _vist, _writingprompts, _how2, _own):
        make(folder)
    write_kiros(_folder(folder / "kiros") / "f8k.npz", WORDS)
    model = TheirModel(WORDS)
    model.write(_folder(folder / "vsepp") / "model_best.pth.tar")
    model.write_vocabulary(folder / "vsepp" / "vocabulary.pkl")


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _write_jsonl(path: Path, entries: list) -> None:
    _write(path, "".join(json.dumps(entry) + "\n" for entry in entries))


CAPTIONS = (
    "A dog runs on the grass .",
    "The cat, small and red, sits in snow!",
    "Two men 's dogs jump .",
    "A man in blue sits on a big red bench .",
)


def _flickr8k(folder: Path) -> None:
    names = {"train": ["1_a.jpg", "2_b.jpg"], "dev": ["3_c.jpg"], "test": ["4_d.jpg"]}
    tokens = []
    for number, name in enumerate(name for part in names.values() for name in part):
        tokens += [f"{name}#{i}\t{CAPTIONS[(number + i) % 4]}" for i in range(3)]
    _write(folder / "flickr8k" / "Flickr8k.token.txt", "\n".join(tokens) + "\n")
    for split, part in names.items():
        path = folder / "flickr8k" / f"Flickr_8k.{split}Images.txt"
        _write(path, "".join(f"{name}\n" for name in part))


def _flickr30k(folder: Path) -> None:
    images = [
        {
            "filename": f"{number}.jpg",
            "split": split,
            "sentences": [{"raw": CAPTIONS[number % 4]}, {"raw": CAPTIONS[(number + 1) % 4]}],
        }
        for number, split in enumerate(["train", "train", "val", "test"])
    ]
    content = {"images": images, "dataset": "flickr30k"}
    _write(folder / "flickr30k" / "dataset_flickr30k.json", json.dumps(content))


def _coco(folder: Path) -> None:
    for year, numbers in (("train2014", [5, 9]), ("val2014", [6, 7, 8])):
        content = {
            "images": [{"id": n, "file_name": f"COCO_{year}_{n:012d}.jpg"} for n in numbers],
            "annotations": [
                {"image_id": n, "id": n * 10 + i, "caption": CAPTIONS[(n + i) % 4]}
                for n in numbers
                for i in range(2)
            ],
        }
        _write(folder / "coco" / f"captions_{year}.json", json.dumps(content))
    for split, numbers in (("valid", [6]), ("test", [7])):
        _write(folder / "coco" / f"{split}.txt", "".join(f"{n}\n" for n in numbers))


def _iapr_tc12(folder: Path) -> None:
    for number in (1000, 1001, 2000):
        text = (
            f"<DOC>\n<DOCNO>annotations/{number // 1000:02d}/{number}.eng</DOCNO>\n"
            f"<TITLE>A view</TITLE>\n<DESCRIPTION>a red house {number}; two men sit in front; "
            "</DESCRIPTION>\n<NOTES></NOTES>\n<LOCATION>Lima, Peru</LOCATION>\n<DATE>2002</DATE>\n"
            f"<IMAGE>images/{number // 1000:02d}/{number}.jpg</IMAGE>\n<THUMBNAIL></THUMBNAIL>\n"
            "</DOC>\n"
        )
        path = folder / "iapr_tc12" / "annotations" / f"{number // 1000:02d}" / f"{number}.eng"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="latin-1")
    _write(folder / "iapr_tc12" / "train.txt", "01/1000\n01/1001\n")
    _write(folder / "iapr_tc12" / "test.txt", "02/2000\n")


def _vist(folder: Path) -> None:
    parts = {"train": [("a", 10), ("b", 10), ("c", 20)], "val": [("v", 30)], "test": [("t", 40)]}
    for tier in ("story-in-sequence", "description-in-isolation"):
        for split, stories in parts.items():
            content = [
                [
                    {
                        "story_id": key,
                        "album_id": f"album{number}",
                        "photo_flickr_id": str(number + place),
                        "text": f"[Male] saw {key} at {place} .",
                        "original_text": f"Joe saw {key} at {place}.",
                        "worker_arranged_photo_order": place,
                        "tier": tier,
                    }
                ]
                for key, number in stories
                for place in (4, 0, 3, 1, 2)
            ]
            path = folder / "vist" / f"{split}.{tier}.json"
            _write(path, json.dumps({"images": [], "annotations": content}))


def _writingprompts(folder: Path) -> None:
    for split, count in (("train", 6), ("valid", 2), ("test", 2)):
        prompts = [f"[ WP ] a {['cat', 'dog', 'bird'][i % 3]} speaks ." for i in range(count)]
        stories = [f"It was n't {i} . <newline> <newline> `` Who ? ''" for i in range(count)]
        for side, lines in (("wp_source", prompts), ("wp_target", stories)):
            _write(folder / "writingprompts" / f"{split}.{side}", "\n".join(lines) + "\n")


def _how2(folder: Path) -> None:
    rows = 1
    for name, keys in (("sum_train", "abc"), ("sum_cv", "d"), ("sum_devtest", "e")):
        for side in ("tran", "desc"):
            text = "".join(f"{key} {side} of the video {key}\n" for key in keys)
            _write(folder / "how2" / "text" / name / f"{side}.tok.txt", text)
        for key in keys:
            path = folder / "how2" / "actions" / f"{key}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, np.full((rows, 2048), rows, np.float32))
            rows += 1


def _own(folder: Path) -> None:
    own = folder / "own"
    captions = [
        {"image": f"{i}.jpg", "captions": [CAPTIONS[i % 4], CAPTIONS[(i + 1) % 4]]}
        for i in range(6)
    ]
    _write_jsonl(own / "captions.jsonl", captions)
    prompts = [
        {"prompt": f"[WP] You can't {i}.", "story": f'It began with "{i}".\n\nThen it rained.'}
        for i in range(6)
    ]
    _write_jsonl(own / "prompts.jsonl", prompts)
    stories = [
        {
            "images": [f"{i}_{k}.jpg" for k in range(5)],
            "sentences": [f"We saw {i} at {k} ." for k in range(5)],
            "album": f"album{i // 2}",
        }
        for i in range(6)
    ]
    _write_jsonl(own / "stories.jsonl", stories)
    _write(
        own / "b.srt",
        "1\n00:00:01,000 --> 00:00:02,500\nhello <i>you</i>\n\n2\n00:00:03,000 --> 00:00:04,000\n"
        "tie it\n",
    )
    videos = [
        {
            "video": f"{i}.mp4",
            "transcript": "b.srt" if i == 1 else f"Hi, I'm {i} and the knot is big.",
            "summary": f"Learn how to tie {i} knots.",
        }
        for i in range(6)
    ]
    _write_jsonl(own / "videos.jsonl", videos)
    write_store(own / "features.h5", [f"{i}.jpg" for i in range(6)])
    np.save(own / "array.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
    _write(own / "array_ids.txt", "a\nb\nc\nd\n")
