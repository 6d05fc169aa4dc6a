"""VG-T5 under fairseq's commands, from a T5 of Hugging Face's on."""

import re
import shutil

import pytest
import torch
from fairseq.data import Dictionary
from numerics import assert_close
from toy_data import make_videos_folder, run_fairseq, write_video_split

from fairseq_mm.conversion.t5 import convert_t5
from fairseq_mm.data.subwords import Subwords

transformers = pytest.importorskip("transformers")

SIZES = {"model_dim": 12, "attention_heads": 2, "head_dim": 5, "ffn_dim": 14}
LAYERS = {"encoder_layers": 3, "decoder_layers": 2}
TASK = ("--task", "video_summarization")
TRAINING = (
    *("--criterion", "cross_entropy", "--optimizer", "adam", "--lr", "1e-7", "--batch-size", "3"),
    *("--max-update", "2", "--num-workers", "0", "--cpu", "--no-epoch-checkpoints"),
    *("--log-format", "none"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A converted T5 in ``t5``, and videos in ``data``, prepared with its pieces."""
    import sentencepiece

    folder = tmp_path_factory.mktemp("vg_t5")
    data = make_videos_folder(folder / "data")
    texts = [(data / "text" / f"train.{side}").read_text() for side in ("tran", "desc")]
    (folder / "hf").mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter("".join(texts * 3).splitlines()),
        model_prefix=str(folder / "hf" / "spiece"),
        **{"vocab_size": 40, "minloglevel": 2, "hard_vocab_limit": False},
        **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    )
    config = transformers.T5Config(
        **{"vocab_size": 160, "d_model": 12, "d_kv": 5, "d_ff": 14, "num_heads": 2},
        **{"num_layers": 3, "num_decoder_layers": 2, "decoder_start_token_id": 0},
    )
    torch.manual_seed(0)
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder / "hf")
    convert_t5(str(folder / "hf"), str(folder / "t5"))
    dictionary = Dictionary.load(str(folder / "t5" / "dict.txt"))
    subwords = Subwords.load(folder / "t5")
    for side in ("tran", "desc"):
        shutil.copy(folder / "t5" / "dict.txt", data / f"dict.{side}.txt")
    subwords.save(data)
    for split in ("train", "valid", "test"):
        keys = (data / f"{split}.visual_ids").read_text().split()
        sides = [
            [" ".join(subwords.encode(text)) for text in (data / path).read_text().splitlines()]
            for path in (f"text/{split}.tran", f"text/{split}.desc")
        ]
        write_video_split(data, split, list(zip(keys, *sides)), dictionary)
    return folder


def options(**changed):
    values = {**SIZES, **LAYERS, "video_encoder_heads": 1, "fusion_dim": 8, **changed}
    return [x for name, value in values.items() for x in (f"--{name.replace('_', '-')}", value)]


def train(monkeypatch, folder, save_dir, *arguments):
    run_fairseq(
        monkeypatch,
        "train",
        folder / "data",
        *(*TASK, *TRAINING, "--arch", "vg_t5", "--save-dir", save_dir),
        *arguments,
    )
    return torch.load(save_dir / "checkpoint_last.pt")["model"]


def test_converted_t5_is_trained_with_videos_and_generates_each_once(
    monkeypatch, capsys, folder, tmp_path
):
    start = folder / "t5" / "model.pt"
    weights = train(monkeypatch, folder, tmp_path, *options(), "--finetune-from-model", str(start))
    backbone = torch.load(start)["model"]
    for name, x in backbone.items():
        if x.is_floating_point():
            assert_close(weights[name], x)
    assert {name for name in weights if name not in backbone} == {
        name for name in weights if name.startswith(("encoder.fusions.", "encoder.video."))
    }
    capsys.readouterr()
    path = str(tmp_path / "checkpoint_last.pt")
    arguments = (folder / "data", *TASK, "--path", path, "--cpu", "--max-len-b", 9, "--beam", 4)
    run_fairseq(monkeypatch, "generate", *arguments)
    found = re.findall(r"^D-(\d+)\t\S+\t(.*)$", capsys.readouterr().out, flags=re.MULTILINE)
    assert sorted(int(line) for line, _ in found) == list(range(5))
    assert not any("\u2581" in text for _, text in found)
