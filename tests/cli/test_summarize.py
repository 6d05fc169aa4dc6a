"""``fairseq-mm summarize``: inputs of each kind, what is printed, exit status, refusals."""

import json
import re
import shutil

import pytest
from toy_data import make_videos_folder, write_store
from toy_summarizer import (
    DIM,
    save_transcripts,
    save_videos,
    train_summarizer,
    train_video_summarizer,
)
from toy_visual_story_models import write_story_checkpoint

import fairseq_mm
from fairseq_mm.cli.main import main
from fairseq_mm.extract.extractor import build_extractor
from fairseq_mm.extract.weights import compute_sha256

SHORT = ("--max-len-b", "9")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model of videos, one of transcripts that carries its dictionary, and one of fairseq's."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "video").mkdir()
    train_video_summarizer(folder / "video", folder / "video" / "data")
    data = make_videos_folder(folder / "data", with_features=False)
    (data / "prepare.json").write_text('{"options": {"tokenizer": "lower"}}')
    for name in ("t5", "transformer"):
        (folder / name).mkdir()
        train_summarizer(folder / name, data, name)
    return folder


@pytest.fixture
def videos(tmp_path):
    return save_videos(tmp_path / "videos")


@pytest.fixture
def transcripts(tmp_path):
    return save_transcripts(tmp_path)


@pytest.fixture
def summarize(trained, capsys):
    """Runs the command: exit status, lines of stdout, lines of stderr."""

    def run(*arguments, model="video"):
        capsys.readouterr()
        model = trained / model if isinstance(model, str) else model
        command = ["summarize", *arguments, "--checkpoint", model, "--device", "cpu"]
        status = main([*map(str, command)])
        captured = capsys.readouterr()
        return status, captured.out.splitlines(), captured.err.splitlines()

    return run


@pytest.fixture
def stored(trained):
    """``--features`` of the data folder, and its transcripts."""
    data = trained / "video" / "data.moved"
    return ("--features", data / "features.h5"), (data, "--split", "test")


def texts_of(generated):
    return [best.text for best, *_ in generated]


def given(transcripts):
    return [f"--transcript={path}" for path in transcripts]


def test_a_line_a_video_in_the_order_of_the_inputs(summarize, trained, videos, transcripts):
    model = fairseq_mm.from_pretrained(trained / "video", device="cpu")
    texts = ["The dog runs on grass, the cat sits.", "A big man jumps in snow", "red cat blue dog"]
    inputs = [{"video": path, "transcript": text} for path, text in zip(videos, texts)]
    expected = texts_of(model.generate(inputs, max_len_b=9))
    lines = [f"{path}\t{text}" for path, text in zip(videos, expected)]
    status, out, err = summarize(*videos, *given(transcripts), *SHORT)
    assert (status, out) == (0, lines)
    assert err == [f"transcript truncated to 8 tokens: {videos[0]} (of 10)"]
    assert len(set(expected)) == 3
    folder = videos[0].rsplit("/", 1)[0]
    assert summarize(folder, *given(transcripts), *SHORT)[1] == lines


def test_a_video_that_cannot_be_read_is_named_and_the_others_are_summarised(
    summarize, trained, videos, transcripts, tmp_path
):
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video")
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    output = tmp_path / "summaries.txt"
    status, out, err = summarize(
        *(broken, videos[2], tmp_path / "absent.mp4", videos[1], transcripts[0]),
        *given([transcripts[0], transcripts[2], transcripts[0], empty, empty]),
        *("--output", output, "--html", tmp_path / "page.html", *SHORT),
    )
    assert (status, out) == (2, [])
    assert [line.split("\t")[0] for line in output.read_text().splitlines()] == [videos[2]]
    checkpoint = trained / "video" / "checkpoint_best.pt"
    unknown = f"none of the transcript's words is in the dictionary of {checkpoint}."
    assert err == [
        f"fairseq-mm summarize: {broken}: is no video, or its head or index is missing "
        "(Invalid data found when processing input).",
        f"fairseq-mm summarize: {tmp_path}/absent.mp4: cannot be read (No such file or directory).",
        f"fairseq-mm summarize: {videos[1]}: {unknown}",
        f"fairseq-mm summarize: {transcripts[0]}: {unknown}",
        f"wrote {output}: 1 summary",
        f"wrote {tmp_path}/page.html: 1 summary",
        "4 of 5 videos could not be read",
    ]
    page = (tmp_path / "page.html").read_text()
    assert page.count("data:image/jpeg") == 1  # its one clip
    assert "red cat blue dog" in page
    output.unlink()
    status, out, err = summarize(broken, "--transcript", transcripts[0], "--output", output)
    assert (status, out, len(err)) == (2, [], 1)
    assert err[0].startswith(f"fairseq-mm summarize: {broken}: is no video")
    assert not output.exists()


def test_videos_without_transcripts_say_so(summarize, trained, videos):
    status, out, err = summarize(videos[0], *SHORT)
    model = fairseq_mm.from_pretrained(trained / "video", device="cpu")
    assert status == 0
    assert out == [f"{videos[0]}\t{model.generate(videos[0], max_len_b=9)[0].text}"]
    assert err == [f'no transcript ("transcript not available" is read): {videos[0]}']


def test_jsonl_brings_videos_and_transcripts(summarize, videos, transcripts, tmp_path):
    entries = [
        {"video": "videos/video1.mp4", "transcript": "b.srt", "summary": "left out"},
        {"video": "videos/video2.mp4", "transcript_file": "c.txt"},
        {"video": "videos/video0.mp4"},
        {"video": "videos/absent.mp4", "transcript": "d.txt"},
    ]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    status, out, err = summarize(data, *SHORT)
    assert status == 2
    assert [line.split("\t")[0] for line in out] == ["video1.mp4", "video2.mp4", "video0.mp4"]
    same = summarize(videos[1], videos[2], *given(transcripts[1:]), *SHORT)[1]
    assert out[:2] == [line.rpartition("/")[2] for line in same]
    assert err == [
        f"fairseq-mm summarize: {data}:4: {tmp_path}/d.txt: cannot be read (No such file "
        "or directory). A text that ends like a file's name needs a full stop.",
        'no transcript ("transcript not available" is read): video0.mp4',
        "1 of 4 videos could not be read",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "must be a JSON object, but is list instead"),
        ('{"id": "a", "video": 7}', "`video` must be text, but is int"),
        ('{"video": "x/a.mp4"}', "the id 'a.mp4' was given before, at .*:1"),
        ('{"id": "\\ud800"}', "not JSON .text holds half a character"),
    ],
)
def test_lines_that_are_no_videos_are_refused(summarize, tmp_path, line, message):
    data = tmp_path / "data.jsonl"
    data.write_text(f'{{"video": "a.mp4"}}\n\n{line}\n')
    status, out, err = summarize(data)
    assert (status, out) == (2, [])
    assert any(re.match(rf"fairseq-mm summarize: {data}:3: {message}", line) for line in err)
    data.write_text("\n")
    assert "must have JSON objects with 'video' or 'transcript' or" in summarize(data)[2][0]


def test_an_object_a_line_says_what_was_read_and_how(summarize, trained, stored, tmp_path):
    features, data = stored
    output = tmp_path / "summaries.jsonl"
    options = ("--beam", "2", "--min-len", "2", "--lenpen", "1.5", "--no-repeat-ngram-size", "2")
    status, out, err = summarize(*data, *features, "--output", output, *options, *SHORT)
    assert (status, out) == (0, [])
    entries = [json.loads(line) for line in output.read_text().splitlines()]
    assert [entry["id"] for entry in entries] == [f"test{i}" for i in range(5)]
    entry = entries[4]
    assert (entry["transcript_tokens"], entry["transcript_tokens_cut"]) == (9, 1)
    assert (entry["frames"], entry["frames_cut"]) == (6, True)
    assert 2 <= len(entry["hypothesis"].split()) <= 9
    assert entry["score"] < 0
    assert entry["checkpoint"] == compute_sha256(str(trained / "video" / "checkpoint_best.pt"))
    assert entry["extractor"]["weights"] == compute_sha256(str(trained / "video" / "mc3_18.pth"))
    assert entry["options"] == {
        "beam": 2, "nbest": 1, "max_len_a": 0, "max_len_b": 9, "min_len": 2, "lenpen": 1.5,
        "unkpen": 0.0, "no_repeat_ngram_size": 2, "sampling": False, "sampling_topk": -1,
        "sampling_topp": -1.0, "typical_p": -1.0, "temperature": 1.0, "seed": 1, "allow_unk": False,
        "weights_dtype": "float32", "tokenizer": "words",
    }  # fmt: skip
    assert err[-1] == f"wrote {output}: 5 summaries"
    assert "video truncated to 6 frames (clips): test1, test2, test4" in err
    _, lines, _ = summarize(*data, *features, "--jsonl", *options, *SHORT)
    assert [json.loads(line) for line in lines] == entries


def test_models_of_transcripts_need_no_video(summarize, trained, transcripts, stored):
    model = fairseq_mm.from_pretrained(trained / "t5", device="cpu")
    assert model.processor.encoder.tokenizer == "lower"  # of prepare.json
    texts = ["The dog runs on grass, the cat sits.", "red cat blue dog"]
    expected = texts_of(model.generate(texts, max_len_b=9))
    chosen = [transcripts[0], transcripts[2]]
    status, out, err = summarize(*given(chosen), *SHORT, model="t5")
    assert (status, err) == (0, [])
    assert out == [f"{path}\t{text}" for path, text in zip(chosen, expected)]
    # one and the same command line may be given with any model
    status, out, err = summarize(
        *("a.mp4", "--transcript", transcripts[2], *SHORT, "--data", trained / "data"),
        model="transformer",
    )
    assert (status, out) == (2, [])
    assert err[-1] == "fairseq-mm summarize: a.mp4: cannot be read (No such file or directory)."
    status, out, err = summarize(*stored[1], *SHORT, model="t5")
    assert (status, len(out)) == (0, 5)


def test_inputs_that_do_not_fit_the_model_are_refused(
    summarize, trained, videos, transcripts, stored, tmp_path
):
    def refusal(*arguments, **options):
        status, out, err = summarize(*arguments, **options)
        assert (status, out, len(err)) == (2, [], 1)
        return err[0]

    assert "there must be a transcript for each video, in their order, but there are 2 " in refusal(
        videos[0], *given(transcripts[:2])
    )
    assert refusal("--transcript", transcripts[0]).endswith(
        f"a.txt: {trained}/video/checkpoint_best.pt: --arch vg_bart_tiny reads videos: give "
        "`video`, a file or features, and `transcript` if there is one."
    )
    assert "checkpoint_best.pt reads no features." in refusal("a", *stored[0], model="t5")
    assert "`weights` is no option of models that read videos" in refusal(
        "--transcript", transcripts[0], "--weights", "w.pt", model="t5"
    )
    assert "carries no dictionary (--arch transformer" in refusal("a.mp4", model="transformer")
    other = build_extractor("mc3_18", weights="none", size=16, frames=8)
    write_store(tmp_path / "other.h5", ["a"], dim=DIM, attributes=other.identity)
    assert "another extractor: " in refusal("a", "--features", tmp_path / "other.h5")
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(trained / "video" / "checkpoint_best.pt", alone)
    assert "Give that file (--weights FILE" in refusal(videos[0], model=alone)


def test_a_checkpoint_of_another_command_names_it(trained, capsys):
    other = write_story_checkpoint(trained / "stories.pt", "transtory_full_tiny")
    assert main(["summarize", "a.mp4", "--checkpoint", str(other), "--device", "cpu"]) == 2
    assert capsys.readouterr().err == (
        f"fairseq-mm summarize: {other}: --arch transtory_full_tiny (--task visual_storytelling) "
        "is a model of fairseq-mm tell, not of fairseq-mm summarize.\n"
    )
