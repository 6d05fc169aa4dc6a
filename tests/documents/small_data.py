"""What the documented commands read, with few and small examples, under the names that they use."""

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

THINGS, COLOURS = ("dog", "man", "girl"), ("black", "white", "red", "blue")
PLACES = ("in the snow", "on the grass", "by the water")


def sentence(chance: random.Random) -> str:
    return f"A {chance.choice(COLOURS)} {chance.choice(THINGS)} runs {chance.choice(PLACES)} ."


def write_small_data(folder: Path) -> dict[str, str]:
    """Writes releases and files of one's own; returns the variables that name them."""
    chance = random.Random(4)
    photos = folder / "photos"
    photos.mkdir()
    _write_flickr8k(folder / "flickr8k", photos, chance)
    _write_vist(folder / "vist", chance)
    _write_writingprompts(folder / "writingPrompts", chance)
    _write_how2(folder / "how2", chance)
    _write_own(folder, chance)
    _write_weights(folder)
    return {
        "FLICKR8K": str(folder / "flickr8k"),
        "PHOTOS": str(photos),
        "VIST": str(folder / "vist"),
        "TEXT": str(folder / "how2"),
        "FEATURES": str(folder / "how2/actions"),
        "MARGINAL_IMAGES": "5",
        "DRAWS": "2",
        "CANDIDATES": "4",
    }


def _draw(path: Path, chance: random.Random) -> None:
    pixels = np.random.default_rng(chance.randrange(10**6)).integers(0, 256, (3, 4, 3), np.uint8)
    Image.fromarray(pixels).resize((40, 30)).save(path)


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def _write_jsonl(path: Path, records: Sequence[Any]) -> None:
    _write_lines(path, [json.dumps(record) for record in records])


def _write_flickr8k(folder: Path, photos: Path, chance: random.Random) -> None:
    tokens, names = [], []
    for split, count in (("train", 12), ("dev", 6), ("test", 4)):
        images = [f"{split}_{i}.jpg" for i in range(count)]
        _write_lines(folder / f"Flickr_8k.{split}Images.txt", images)
        tokens += [f"{name}#{k}\t{sentence(chance)}" for name in images for k in range(5)]
        names += images
    _write_lines(folder / "Flickr8k.token.txt", tokens)
    for name in names:
        _draw(photos / name, chance)
    features = np.random.default_rng(1).random((len(names), 1280), np.float32)
    np.save(folder.parent / "features.npy", features)
    _write_lines(folder.parent / "image_ids.txt", names)
    for name in ("photo", "dog", *"abcde"):
        _draw(folder.parent / f"{name}.jpg", chance)


def _write_vist(folder: Path, chance: random.Random) -> None:
    """12 albums for training and validation with a story each, and features of their images."""
    all_keys = []
    for number, split in enumerate(("train", "val")):
        records, keys = [], []
        for album in range(12):
            images = [str(10_000 * number + 10 * album + place) for place in range(5)]
            keys += images
            records += [
                [
                    {
                        "story_id": f"{split}{album}",
                        "album_id": f"album_{split}{album}",
                        "photo_flickr_id": image,
                        "text": sentence(chance).lower(),
                        "original_text": sentence(chance),
                        "worker_arranged_photo_order": place,
                        "tier": "story-in-sequence",
                    }
                ]
                for place, image in enumerate(images)
            ]
        content = {"images": [], "annotations": records}
        _write_lines(folder / f"{split}.story-in-sequence.json", [json.dumps(content)])
        features = np.random.default_rng(number).random((len(keys), 6))
        np.save(folder / f"{split}.features_f16.npy", features.astype(np.float16))
        _write_lines(folder / f"{split}.photo_ids.txt", keys)
        all_keys += keys
    from fairseq_mm.data.feature_store_writer import FeatureStoreWriter

    store = folder.parent / "data-bin" / "vist-features.h5"
    store.parent.mkdir()
    with FeatureStoreWriter(store, dim=6, dtype="float32", attributes={}) as writer:
        for key in all_keys:
            writer.append(key, np.random.default_rng(int(key)).random((1, 6), np.float32))
        writer.finish()


def _write_writingprompts(folder: Path, chance: random.Random) -> None:
    for split, count in (("train", 40), ("valid", 12), ("test", 2)):
        stories = [
            " <newline> ".join(sentence(chance) for _ in range(chance.randint(2, 4)))
            for _ in range(count)
        ]
        _write_lines(folder / f"{split}.wp_source", [f"[ WP ] {sentence(chance)}" for _ in stories])
        _write_lines(folder / f"{split}.wp_target", stories)


def _write_how2(folder: Path, chance: random.Random) -> None:
    (folder / "actions").mkdir(parents=True)
    for name, count in (("sum_train", 8), ("sum_cv", 4), ("sum_devtest", 4)):
        keys = [f"{name}{i}" for i in range(count)]
        for side in ("tran", "desc"):
            lines = [f"{key} {sentence(chance).lower()}" for key in keys]
            _write_lines(folder / name / f"{side}.tok.txt", lines)
        for key in keys:
            rows = np.random.default_rng(len(key)).random((chance.randint(1, 3), 2048), np.float32)
            np.save(folder / "actions" / f"{key}.npy", rows)


def _write_own(folder: Path, chance: random.Random) -> None:
    """Captions, prompts, visual stories and videos of one's own, and released models."""
    images = [f"images/{i}.jpg" for i in range(12)]
    (folder / "images").mkdir()
    for name in images:
        _draw(folder / name, chance)
    captions = [{"image": name, "captions": [sentence(chance)] * 2} for name in images]
    _write_jsonl(folder / "mine.jsonl", captions)
    prompts = [{"prompt": f"[WP] {sentence(chance)}", "story": sentence(chance)} for _ in range(12)]
    _write_jsonl(folder / "stories.jsonl", prompts)
    for album in range(8):
        for place in range(5):
            _draw(folder / f"{album}_{place}.jpg", chance)
    albums = [
        {
            "images": [f"{album}_{place}.jpg" for place in range(5)],
            "sentences": [sentence(chance) for _ in range(5)],
        }
        for album in range(8)
    ]
    _write_jsonl(folder / "albums.jsonl", albums)
    for name, count in (("sentences", 30), ("sentences_valid", 6)):
        _write_lines(folder / f"{name}.txt", [sentence(chance) for _ in range(count)])


def write_parallel_text(folder: Path) -> None:
    """Texts and ids, a line each, as fairseq-preprocess reads them, of the images of Flickr8k and
    the videos of How2."""
    chance = random.Random(6)
    images = (folder / "image_ids.txt").read_text().split()
    videos = sorted(path.stem for path in (folder / "how2/actions").glob("*.npy"))
    for name, split, count in (("train", "train", 12), ("valid", "dev", 6)):
        keys = [key for key in images if key.startswith(split)]
        lines = [(key, sentence(chance)) for key in keys for _ in range(2)]
        _write_lines(folder / f"captions/{name}.txt", [text for _, text in lines])
        _write_lines(folder / f"captions/{name}.ids", [key for key, _ in lines])
        stories = [" <sent> ".join(sentence(chance) for _ in range(5)) for _ in range(count)]
        _write_lines(folder / f"albums/{name}.txt", stories)
        sequences = [chance.sample(keys, 5) for _ in stories]
        _write_lines(folder / f"albums/{name}.ids", ["\t".join(x) for x in sequences])
        for ending in ("wp_source", "wp_target"):
            _write_lines(folder / f"prompts/{name}.{ending}", [sentence(chance) for _ in stories])
        for ending in ("tran", "desc"):
            _write_lines(folder / f"lessons/{name}.{ending}", [sentence(chance) for _ in stories])
        _write_lines(folder / f"lessons/{name}.ids", [chance.choice(videos) for _ in stories])


def write_videos(folder: Path) -> None:
    """Videos of one's own, with transcripts and summaries; skips the test where PyAV is missing."""
    from toy_videos import frames_of, write_video

    chance = random.Random(5)
    names = ["lesson.mp4", *(f"{i}.mp4" for i in range(5))]
    for seed, name in enumerate(names):
        write_video(folder / name, frames_of(16, seed=seed))
    _write_lines(
        folder / "lesson.srt", ["1", "00:00:01,000 --> 00:00:02,500", "a red dog runs", ""]
    )
    records = [
        {
            "video": name,
            "transcript": "lesson.srt" if name == "lesson.mp4" else sentence(chance),
            "summary": sentence(chance),
        }
        for name in names
    ]
    _write_jsonl(folder / "lessons.jsonl", records)


def put_weights_beside_checkpoints(folder: Path) -> None:
    """Copy the extractor's weights to where commands without ``--weights`` search them."""
    for name in ("m_rnn", "mine", "albums", "vse_bow"):
        (folder / "checkpoints" / name).mkdir(parents=True)
        shutil.copy(folder / "mobilenet_v2.pt", folder / "checkpoints" / name)


def write_videos_and_weights(folder: Path) -> None:
    write_videos(folder)
    put_weights_beside_checkpoints(folder)


def write_released_embeddings(folder: Path) -> None:
    """Models of Kiros et al.'s and Faghri et al.'s code, under the names of their releases."""
    from toy_released_vse import TheirModel, write_kiros

    words = ["a", "dog", "man", "runs", "red", "snow"]
    write_kiros(folder / "f30k.npz", words)
    model = TheirModel(words)
    model.write(folder / "model_best.pth.tar")
    model.write_vocabulary(folder / "f30k_precomp_vocab.pkl")


# the golden checkpoints, by the names that the documentation has for such ones
CHECKPOINTS = {
    "m_rnn": "captions/m_rnn_images",
    "vse_lstm": "captions/vse_images",
    "sc_nlm": "captions/sc_nlm",
    "glac": "stories/glac_images",
    "fusion": "prompts/conv_story_fusion",
    "prompt_lm": "prompts/gcnn_lm",
    "lessons": "videos/vg_bart_clips",
}


def write_checkpoints(folder: Path) -> None:
    """Trained checkpoints, the weights of their extractor and the data folder of one."""
    from golden.golden_files import unpack

    write_videos(folder)
    for name in ("captions", "data", "prompts", "stories", "videos"):
        unpack(name, folder / "golden")
    (folder / "checkpoints").mkdir()
    for name, system in CHECKPOINTS.items():
        (folder / "golden" / system).rename(folder / "checkpoints" / name)
    data = folder / "golden" / "data"
    (data / "captions_images").rename(folder / "data-bin" / "flickr8k")
    (data / "extractor" / "squeezenet.pth").replace(folder / "mobilenet_v2.pt")


def _write_weights(folder: Path) -> None:
    """State dicts of the networks that the documented commands extract features with."""
    import torchvision

    torch.manual_seed(3)
    network = torchvision.models.mobilenet_v2(weights=None)
    torch.save(network.state_dict(), folder / "mobilenet_v2.pt")
