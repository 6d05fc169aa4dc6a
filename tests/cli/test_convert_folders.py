"""``fairseq-mm convert`` of folders: Hugging Face's BART there, into training, and back."""

import json
import os
import re
import shutil

import pytest
import torch
from fairseq.data import Dictionary, indexed_dataset
from numerics import assert_close
from toy_bart import SENTENCES, write_huggingface_bart
from toy_convert import convert, message
from toy_data import run_fairseq, write_store

from fairseq_mm.data.subwords import Subwords

FILES = ["dict.txt", "encoder.json", "model.pt", "subwords.json", "vocab.bpe"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder of Hugging Face's BART that ``--arch vg_bart`` can have, too."""
    folder = tmp_path_factory.mktemp("convert") / "huggingface"
    write_huggingface_bart(folder, max_position_embeddings=1024)
    return folder


def test_barts_folder_becomes_fairseqs(source, tmp_path, capsys):
    output = tmp_path / "bart"
    assert convert(source, output) == 0
    assert sorted(os.listdir(output)) == FILES
    assert os.listdir(tmp_path) == ["bart"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{source}: Hugging Face's BART"
    assert re.fullmatch(rf"{output}: [\d,]+ parameters, 3\d\d words: {', '.join(FILES)}", lines[1])
    assert lines[2] == f"data: fairseq-mm prepare videos ... --pretrained {output}"
    sizes = (
        "--encoder-embed-dim 16 --encoder-layers 2 --encoder-ffn-embed-dim 24 "
        "--encoder-attention-heads 2 {}--decoder-layers 3 --decoder-ffn-embed-dim 20 "
        "--decoder-attention-heads 4 "
    )
    train = "fairseq-train ... --task video_summarization --arch"
    end = f"--finetune-from-model {output}/model.pt"
    width, fusion = "--decoder-embed-dim 16 ", "--fusion-encoder-layers 1,2 "
    assert lines[3] == f"text only: {train} bart_base {sizes.format(width)}{end}"
    assert lines[4] == f"with videos: {train} vg_bart_base {sizes.format('')}{fusion}{end}"


def write_videos(folder, pretrained):
    """Prepared data of four videos in the subwords of a converted model."""
    folder.mkdir()
    subwords = Subwords.load(str(pretrained))
    subwords.save(str(folder))
    for side in ("tran", "desc"):
        shutil.copy(pretrained / "dict.txt", folder / f"dict.{side}.txt")
    dictionary = Dictionary.load(str(pretrained / "dict.txt"))
    (folder / "text").mkdir()
    keys = [f"v{i}" for i in range(len(SENTENCES))]
    for split in ("train", "valid"):
        for side in ("tran", "desc"):
            lines = [" ".join(subwords.encode(text[:40])) for text in SENTENCES]
            (folder / "text" / f"{split}.{side}").write_text("".join(f"{x}\n" for x in lines))
            stem = str(folder / f"{split}.tran-desc.{side}")
            builder = indexed_dataset.make_builder(f"{stem}.bin", "mmap", vocab_size=400)
            for line in lines:
                builder.add_item(dictionary.encode_line(line, add_if_not_exist=False))
            builder.finalize(f"{stem}.idx")
        (folder / f"{split}.visual_ids").write_text("".join(f"{key}\n" for key in keys))
        rows = [{"id": key, "references": [text]} for key, text in zip(keys, SENTENCES)]
        (folder / f"{split}.references.jsonl").write_text(
            "".join(f"{json.dumps(row)}\n" for row in rows)
        )
    write_store(folder / "features.h5", keys, rows=3)
    return folder


def test_training_goes_on_from_what_was_converted(source, tmp_path, capsys, monkeypatch):
    """With the options that the command prints, of the model with videos; nothing learns."""
    output = tmp_path / "bart"
    convert(source, output)
    printed = capsys.readouterr().out.splitlines()[-1]
    flags = printed.split("fairseq-train ... ")[1].split()
    data = write_videos(tmp_path / "data", output)
    run_fairseq(
        *(monkeypatch, "train", data, *flags, "--save-dir", tmp_path / "out", "--cpu"),
        *("--fusion-dim", 6, "--fusion-heads", 2),
        *("--video-encoder-layers", 0, "--optimizer", "adam", "--lr", 1e-9, "--max-update", 1),
        *("--batch-size", 2, "--num-workers", 0, "--disable-validation", "--log-format", "none"),
        *("--criterion", "cross_entropy", "--required-batch-size-multiple", 1),
    )
    trained = torch.load(tmp_path / "out" / "checkpoint_last.pt", weights_only=False)["model"]
    weights = torch.load(output / "model.pt", weights_only=True)["model"]
    shared = [name for name in weights if name in trained]
    assert len(shared) == len(weights)
    for name in shared:
        found = trained[name]
        # <mask> is no word of the task
        assert_close(found, weights[name][: len(found)])


def test_places_that_cannot_be_written_are_refused(source, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert "must be a new folder" in message(capsys, source, tmp_path / "file")
    for output in (tmp_path / "none" / "bart", source):
        error = message(capsys, source, output, "--overwrite")
        assert "must be a new folder in an existing folder" in error
    assert os.listdir(tmp_path) == ["file"]


def test_what_is_no_model_is_refused(source, tmp_path, capsys):
    output = tmp_path / "new"
    assert "none: cannot be read (No such file" in message(capsys, tmp_path / "none", output)
    folder = tmp_path / "folder"
    folder.mkdir()
    assert "folder: cannot be read (Is a directory)" in message(capsys, folder, output)
    for content in ('{"model_type": "pegasus"}', '{"format": "fairseq_mm"}'):
        (folder / "config.json").write_text(content)
        assert "`model_type` must be bart, t5, mt5, but is " in message(capsys, folder, output)
    (folder / "config.json").write_text("{")
    assert "config.json: not JSON" in message(capsys, folder, output)
    assert os.listdir(tmp_path) == ["folder"]
