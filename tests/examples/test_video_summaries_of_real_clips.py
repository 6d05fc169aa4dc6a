"""Summaries follow their videos: How2's clips, whose transcripts are not available."""

import json
import re

import pytest
from toy_data import run_fairseq

from fairseq_mm.cli.main import main

SIZES = """--encoder-embed-dim 64 --encoder-ffn-embed-dim 128 --decoder-ffn-embed-dim 128
    --encoder-layers 2 --decoder-layers 2 --encoder-attention-heads 4 --decoder-attention-heads 4
    --fusion-encoder-layers 1,2 --fusion-dim 64 --video-encoder-layers 0 --dropout 0"""
TEXTS = "--max-source-positions 64 --max-target-positions 128"
TRAIN = """--criterion cross_entropy --optimizer adam --lr 4e-3 --lr-scheduler inverse_sqrt
    --warmup-updates 30 --clip-norm 1 --batch-size 12 --required-batch-size-multiple 1
    --max-epoch 300 --disable-validation --save-interval 300 --no-epoch-checkpoints --seed 1
    --num-workers 0 --cpu"""
TASK = "--task video_summarization"


def clips(folder):
    """(video, summary) of all sets."""
    for name in sorted(path for path in (folder / "text").iterdir()):
        (action,) = name.glob("*_action.txt")
        (summaries,) = name.glob("*_desc_text.txt")
        videos = [line.rsplit("/", 1)[-1][: -len(".npy")] for line in action.read_text().split()]
        yield from zip(videos, summaries.read_text().strip().split("\n"))


def generated(text):
    found = re.findall(r"^D-(\d+)\t[^\t]*\t(.*)$", text, re.MULTILINE)
    return {int(number): summary for number, summary in found}


@pytest.mark.slow
def test_summaries_of_clips_without_transcripts_follow_the_videos(
    shared_data, tmp_path, monkeypatch, capsys
):
    source = shared_data("how2/clips")
    pairs = list(clips(source))
    assert len(pairs) == 12
    lines = [
        {
            "video": video,
            "transcript": "transcript not available",
            "summary": summary,
            "split": "train",
        }
        for video, summary in pairs
    ]
    (tmp_path / "clips.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = tmp_path / "data"
    prepare = ["--tokenizer", "none", "--output", str(data)]
    assert main(["prepare", "videos", str(tmp_path / "clips.jsonl"), *prepare]) == 0
    features = [str(source / "video_action_features"), str(data / "features.h5")]
    assert main(["store", "import", features[0], "--output", features[1]]) == 0
    # the same videos in another order
    turned = [video for video, _ in pairs[5:] + pairs[:5]]
    for path in data.glob("train.tran-desc.*"):
        (data / path.name.replace("train", "valid", 1)).write_bytes(path.read_bytes())
    records = map(json.loads, (data / "train.jsonl").read_text().splitlines())
    changed = [{**record, "id": video} for record, video in zip(records, turned)]
    (data / "valid.jsonl").write_text("".join(json.dumps(record) + "\n" for record in changed))

    saved = tmp_path / "saved"
    arguments = f"{TASK} --arch vg_bart_base {SIZES} {TEXTS} {TRAIN}".split()
    run_fairseq(monkeypatch, "train", data, *arguments, "--save-dir", saved)
    model = ["--path", saved / "checkpoint_last.pt"]
    search = f"{TASK} {TEXTS} --max-len-b 120 --no-repeat-ngram-size 0".split()
    search += ["--batch-size", "5", "--num-workers", "0", "--cpu"]

    def summaries(split, *options):
        capsys.readouterr()
        run_fairseq(monkeypatch, "generate", data, *model, *search, "--gen-subset", split, *options)
        texts = generated(capsys.readouterr().out)
        return [texts[number] for number in range(len(pairs))]

    written = dict(pairs)
    videos = [video for video, _ in pairs]
    assert summaries("train") == [written[video] for video in videos]
    assert summaries("valid") == [written[video] for video in turned]
    of_noise = summaries("train", "--noise-features")
    assert sum(x == written[video] for x, video in zip(of_noise, videos)) <= 1
