"""`fairseq-mm inspect` of models that summarise videos: gates, attention, pages, messages."""

import json
import re

import numpy as np
import pytest
from numerics import assert_close
from toy_data import make_videos_folder
from toy_video_summarizers import write_video_summarizer

from fairseq_mm.analysis.video_inspection import VideoInspection
from fairseq_mm.cli.main import main
from fairseq_mm.inference.checkpoint import Checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data folder of whose videos valid2 has no transcript, checkpoints by name."""
    folder = tmp_path_factory.mktemp("inspect_videos")
    data = make_videos_folder(folder / "data")
    path = data / "valid.transcripts.jsonl"
    lines = path.read_text().splitlines()
    lines[2] = json.dumps({"id": "valid2", "transcript": "Transcript not available."})
    path.write_text("\n".join(lines) + "\n")
    write_video_summarizer(folder / "bart.pt", "vg_bart_tiny", data)
    write_video_summarizer(
        folder / "decoder.pt",
        "vg_bart_tiny",
        data,
        fusion_encoder_layers="",
        fusion_decoder_layers="1",
    )
    write_video_summarizer(folder / "ha.pt", "hierarchical_attention_rnn_tiny", data)
    write_video_summarizer(folder / "t5.pt", "t5_tiny", data)
    return folder


@pytest.fixture
def inspect(folder, tmp_path, capsys):
    """Runs the command on the data folder; returns exit status, entries, stdout and stderr."""

    def run(*arguments, model="bart.pt", source=None):
        file = tmp_path / "found.jsonl"
        file.unlink(missing_ok=True)
        sources = [folder / "data"] if source is None else source
        named = ("--checkpoint", folder / model, "--device", "cpu", "--output", file)
        status = main([*map(str, ["inspect", *sources, *arguments, *named])])
        entries = []
        if file.exists():
            entries = [json.loads(line) for line in file.read_text().splitlines()]
        return status, entries, *capsys.readouterr()

    return run


def library(folder, model="bart.pt"):
    checkpoints = Checkpoint.open_all(folder / model)
    return VideoInspection.from_checkpoints(
        checkpoints, str(folder / "data"), "valid", device="cpu"
    )


def references(folder):
    lines = (folder / "data/valid.references.jsonl").read_text().splitlines()
    return {entry["id"]: entry["references"][0] for entry in map(json.loads, lines)}


def generated(path):
    """Output of fairseq-generate."""
    texts = [f"a cat number {'red ' * i}sits" for i in range(5)]
    path.write_text("".join(f"H-{i}\t-0.5\t{text}\n" for i, text in enumerate(texts)))
    return texts


def test_gates_of_a_whole_split_as_entries_figures_and_page(inspect, folder, tmp_path):
    texts = generated(tmp_path / "generate.txt")
    outputs = ("--json", tmp_path / "gates.json", "--html", tmp_path / "gates.html")
    given = ("--hypotheses", tmp_path / "generate.txt")
    status, entries, out, err = inspect("--gates", *outputs, *given)
    assert status == 0
    found = library(folder).gate_scores()
    assert [entry["id"] for entry in entries] == found.ids == [f"valid{i}" for i in range(5)]
    written = references(folder)
    for i, entry in enumerate(entries):
        assert entry["item"] == i
        assert_close(entry["score"], found.scores[i])
        assert list(entry["layers"]) == ["encoder layer 1", "encoder layer 2"]
        assert_close(list(entry["layers"].values()), found.by_layer[i])
        assert entry["transcript_available"] is (i != 2)
        assert (entry["hypothesis"], entry["reference"]) == (texts[i], written[f"valid{i}"])
    result = json.loads((tmp_path / "gates.json").read_text())
    rest = np.delete(found.scores, 2)
    figures = result["statistics"]
    assert_close(figures["all"]["mean"], found.scores.mean())
    assert figures["all"]["count"] == 5
    assert_close(figures["transcript available"]["std"], rest.std())
    assert_close(figures["transcript not available"]["max"], found.scores[2])
    assert_close(result["layers"]["encoder layer 2"]["max"], found.by_layer[:, 1].max())
    counts = result["histogram"]["counts"]
    assert [sum(counts[name]) for name in figures] == [5, 4, 1]
    assert len(result["histogram"]["edges"]) == len(counts["all"]) + 1
    rank = 1 + int((found.scores > found.scores[2]).sum())
    assert result["transcript not available"] == [{**entries[2], "rank": rank}]
    page = (tmp_path / "gates.html").read_text()
    assert f'<td class="number">{rank} of 5</td><td>{texts[2]}</td>' in page
    assert "transcript not available" in page
    assert "encoder layer 2" in page
    assert "vg_bart_tiny, " in page
    assert f"valid2: transcript not available, score {found.scores[2]:.4f}, rank {rank} of" in out
    assert f"  hypothesis: {texts[2]}" in out
    assert re.search(rf"^all +5 +{found.scores.mean():.4f} ", out, re.MULTILINE)
    assert "wrote " in err


def test_words_of_the_transcript_or_of_the_summary_attend_to_frames(inspect, folder, tmp_path):
    texts = generated(tmp_path / "generate.txt")
    (found,) = library(folder).frame_attention([4])
    status, (entry, first), *_ = inspect("--lines", "4,2", "--layers")
    assert status == 0
    assert (entry["id"], entry["item"], entry["frames"]) == ("valid4", 4, found.num_frames)
    assert (entry["transcript_available"], first["transcript_available"]) == (True, False)
    assert entry["seconds_per_frame"] is None
    assert_close(list(entry["gates"].values()), found.gates)
    (attention,) = entry["attention"]
    assert (attention["of"], attention["sums_over"]) == ("transcript", "frames")
    assert [word["word"] for word in attention["words"]] == found.maps[0].words
    for w, word in enumerate(attention["words"]):
        weights = found.maps[0].weights[:, w]
        assert_close(word["layers"], weights)
        assert_close(word["weights"], weights.mean(axis=0))
    # of one layer, in the decoder, and by default of line 0
    _, (entry,), *_ = inspect(model="decoder.pt")
    assert [word["word"] for word in entry["attention"][0]["words"][:-1]] == references(folder)[
        "valid0"
    ].split()
    assert "layers" not in entry["attention"][0]["words"][0]
    given = ("--hypotheses", tmp_path / "generate.txt")
    _, (entry,), *_ = inspect(*given, model="ha.pt")
    words = entry["attention"][0]["words"]
    assert [word["word"] for word in words[:2]] == texts[0].split()[:2]
    assert 0 < words[0]["video_share"] < 1
    assert entry["hypothesis"] == texts[0]
    assert "gates" not in entry


def test_a_page_shows_lines_with_their_seconds_and_images(inspect, folder, tmp_path):
    pytest.importorskip("av")
    from toy_videos import frames_of, write_video

    from fairseq_mm.data.feature_store import open_features
    from fairseq_mm.data.feature_store_writer import FeatureStoreWriter

    old = open_features([str(folder / "data/features.h5")])
    attributes = {**old.attributes, "stride": 4, "frame_rate": "native"}
    names = ("extractor", "weights", "layer", "grid", "stride", "frame_rate")
    attributes = {name: attributes[name] for name in names}
    with FeatureStoreWriter(tmp_path / "f.h5", dim=5, attributes=attributes) as writer:
        for key in old.ids:
            writer.append(key, old.read(key))
        writer.finish()
    (tmp_path / "films").mkdir()
    write_video(tmp_path / "films/valid1.mp4", frames_of(20), fps=10)
    page, store = tmp_path / "page.html", ("--features", tmp_path / "f.h5")
    shown = ("--html", page, "--videos", tmp_path / "films")
    status, entries, *_ = inspect("--lines", "1,2", *store, *shown)
    assert status == 0
    assert entries[0]["seconds_per_frame"] == pytest.approx(0.4, rel=0.06)
    assert entries[1]["seconds_per_frame"] is None
    html = page.read_text()
    assert "Attention of 2 summaries of videos" in html
    assert html.count("data:image/jpeg") == entries[0]["frames"]
    assert html.count('class="map"') == 2
    assert "Words of the transcript, encoder layer 1, encoder layer 2" in html
    assert re.search(r'transcript</th><td class="code">transcript not available', html)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (["--lines", "0,5"], {}, r"--lines must be from 0 to 4 \(.*valid.*\), but is 5 instead"),
        ([], {"model": "t5.pt"}, r"t5.pt: reads no video \(--arch t5_tiny\): there is nothing"),
        (["--gates"], {"model": "ha.pt"}, r"ha.pt: has no forget gate: VG-BART and VG-T5"),
        (["--json", "x.json"], {}, r"--json: needs --gates beside it"),
        (
            ["--gates", "--layers"],
            {},
            r"--layers and --gates: leave one of the two out: scores of gates",
        ),
        ([], {"source": ["a prompt"]}, r"a prompt: must be a data folder for a model of videos"),
        (["--features", "no.h5"], {}, r"no.h5: is no feature store .*No such file"),
    ],
)
def test_mistakes_are_one_line(inspect, arguments, options, message):
    status, entries, out, err = inspect(*arguments, **options)
    assert status == 2
    assert entries == []
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith(("INFO", "WARNING"))]
    assert len(lines) == 1
    assert re.search(message, lines[0])
