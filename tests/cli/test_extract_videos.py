"""``fairseq-mm extract`` of videos from the command line."""

import json

import pytest
from toy_videos import frames_of, write_video

from fairseq_mm.cli.main import main
from fairseq_mm.data.feature_store import FeatureStore

MODEL = ["--model", "mc3_18", "--weights", "none", "--size", "16", "--frames-per-clip", "4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    for i, count in enumerate((9, 4, 13)):
        write_video(folder / f"{i}.mp4", frames_of(count, seed=i))
    return folder


def extract(*arguments: object) -> int:
    return main(["extract", *map(str, arguments)])


def test_a_folder_of_videos_becomes_a_store(folder, tmp_path, capsys):
    output = tmp_path / "f.h5"
    assert extract(folder, *MODEL, "--workers", 0, "--ids", "stem", "--output", output) == 0
    out, err = capsys.readouterr()
    assert out.startswith(
        f"{output}: 3 videos of feature dimension 512, 0 unreadable; 3 in this run, with 6 clips, "
    )
    assert "3/3" in err
    store = FeatureStore(output)
    assert [(key, store.count_rows(key)) for key in store.ids] == [("0", 2), ("1", 1), ("2", 3)]


def test_options_of_clips_reach_the_store(folder, tmp_path, capsys):
    data = tmp_path / "data.jsonl"
    lines = [
        {"video": f"{folder}/0.mp4"},
        {"id": "x", "video": f"{folder}/2.mp4", "transcript": "t", "summary": "s"},
    ]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "broken.mp4").write_bytes(b"broken")
    output = tmp_path / "f.h5"
    options = ["--fps", "50", "--stride", "2", "--dtype", "float32"]
    assert extract(data, tmp_path / "broken.mp4", *MODEL, *options, "--output", output) == 0
    assert (
        f"2 videos of feature dimension 512, 1 unreadable ({output}.unr" in capsys.readouterr().out
    )
    store = FeatureStore(output)
    assert [(key, store.count_rows(key)) for key in store.ids] == [("0.mp4", 8), ("x", 12)]
    attributes = store.attributes
    assert [attributes[key] for key in ("frame_rate", "stride", "frames_per_clip")] == [50.0, 2, 4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no videos found in no inputs"),
        (["."], "no videos found in . (suffixes: .3g2 .3gp "),
        (["clips", "--grid"], "--grid: is no option of mc3_18, which reads videos."),
        (["clips", "--layer", "x"], "--layer: is no option of mc3_18, which reads videos."),
        (["clips", "--model", "vgg16"], "--frames-per-clip: is no option of vgg16, which reads"),
        (
            ["clips", "--fps", "0.001"],
            "`frames` must be 1 to 1024, `stride` 1 or more, `fps` 0 or 0.01",
        ),
        (["clips", "--crop", "none", "--resize", "short"], "`frames` must be 1 to 1024, "),
        (["clips", "--model", "resnext101_3d"], "--weights None: must be a file (resnext-101"),
    ],
)
def test_mistakes_are_one_line_and_status_2(tmp_path, arguments, message, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clips").mkdir()
    if arguments and arguments[0] == "clips":
        for name in ("a.mp4", "a.jpg"):
            (tmp_path / "clips" / name).write_bytes(b"")
    model = [*MODEL]
    if "resnext101_3d" in arguments:
        del model[2:4]
    assert extract(*model, "--output", "f.h5", *arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"fairseq-mm extract: {message}")
    assert err.count("\n") == 1


def test_real_videos_have_their_numbers_of_clips(shared_data, tmp_path):
    videos = shared_data("videos")
    output = tmp_path / "f.h5"
    assert extract(videos, *MODEL[:6], "--ids", "stem", "--output", output) == 0
    store = FeatureStore(output)
    clips = {key: store.count_rows(key) for key in store.ids}
    # frames: 125, 120, 325, 250
    assert clips == {
        "av1_video": 7,
        "carphone_pristine": 7,
        "nasa_13013": 20,
        "scene_cuts": 15,
    }
