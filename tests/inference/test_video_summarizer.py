"""A checkpoint summarises videos and transcripts as fairseq-generate does, from nothing else."""

import re
import shutil

import numpy as np
import pytest
import torch
from fairseq_mm.inference.summary_search import MAX_LEN, Search
from fairseq_mm.inference.video_summarizer import VideoSummarizer
from toy_captioner import change_checkpoint
from toy_data import WORDS, make_videos_folder, run_fairseq
from toy_summarizer import DIM, save_videos, train_summarizer, train_video_summarizer
from toy_video_summarizers import write_video_summarizer

import fairseq_mm
from fairseq_mm.cli.summarize_inputs import _of_jsonl
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.errors import UserError
from fairseq_mm.extract.first_clips import extract_first_clips
from fairseq_mm.extract.video_extractor import build_video_extractor
from fairseq_mm.models._provenance import STATE_KEY


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Of videos, with ``mc3_18.pth`` beside it and without its data folder."""
    folder = tmp_path_factory.mktemp("trained")
    train_video_summarizer(folder, folder / "data")
    return folder


@pytest.fixture(scope="module")
def summarizer(trained):
    return fairseq_mm.from_pretrained(trained, device="cpu")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Models of transcripts, and the data folder that they share."""
    folder = tmp_path_factory.mktemp("text")
    data = make_videos_folder(folder / "data", numbered_unknowns=2, with_features=False)
    for name in ("t5", "pointer_generator", "transformer", "bart"):
        (folder / name).mkdir()
        train_summarizer(folder / name, data, name)
    return folder


@pytest.fixture
def videos(tmp_path):
    return save_videos(tmp_path / "videos")


def generated(capsys, data, checkpoint, *options):
    """id -> text and score of fairseq-generate, in its lines' order."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as monkeypatch:
        arguments = (
            *(data, "--task", "video_summarization", "--path", checkpoint, "--cpu", "--beam", "3"),
            *("--max-len-b", "9", "--no-repeat-ngram-size", "2", "--unkpen", "inf", *options),
        )
        run_fairseq(monkeypatch, "generate", *arguments)
    pattern = re.compile(r"^D-(\d+)\t(\S+)\t(.*)$", re.MULTILINE)
    found = sorted(pattern.findall(capsys.readouterr().out), key=lambda line: int(line[0]))
    return [text for _, _, text in found], [float(score) for _, score, _ in found]


SEARCH = {"beam": 3, "max_len": 9, "no_repeat_ngram": 2}


def test_videos_are_summarised_as_fairseq_generate_does(capsys, trained, summarizer):
    data = trained / "data.moved"
    arguments = (data, trained / "checkpoint_best.pt", "--lenpen", "2.5", "--batch-size", 2)
    texts, scores = generated(capsys, *arguments)
    inputs = list(_of_jsonl(data / "test.transcripts.jsonl", "name"))
    store = FeatureStore(str(data / "features.h5"))
    summaries = summarizer.summarize_features(
        [store.read(item.name) for item in inputs],
        [item.transcript for item in inputs],
        Search(lenpen=2.5, **SEARCH),
    )
    assert [summary.text for summary in summaries] == texts
    # fairseq's are to the base 2
    assert [x.score / np.log(2) for x in summaries] == pytest.approx(scores, abs=1e-4)
    assert len(set(texts)) > 2


@pytest.mark.parametrize("name", ["t5", "pointer_generator", "transformer", "bart"])
def test_transcripts_are_summarised_as_fairseq_generate_does(capsys, text, name):
    texts, _ = generated(capsys, text / "data", text / name / "checkpoint_best.pt")
    data = text / "data" if name in ("transformer", "bart") else None
    reader = fairseq_mm.from_pretrained(text / name, device="cpu", data=data)
    assert not reader.reads_video
    inputs = list(_of_jsonl(text / "data" / "test.transcripts.jsonl", "name"))
    assert reader.summarize(None, [item.transcript for item in inputs], **SEARCH) == texts
    assert len(set(texts)) > 1


GENERATED_WITHOUT_OUTPUT_PROJECTION = {
    # by the version of the repository before it had one, with the weights of `set_weights`
    "vg_bart_tiny": (
        ("on the on on big the the big on", -1.96188),
        ("on on the the on big the big on", -2.05608),
        ("on the on on big the the big on", -2.10091),
    ),
    "vg_t5_tiny": (
        ("snow runs runs dog dog dog runs", -2.44411),
        ("runs dog dog runs runs dog runs", -2.45663),
        ("runs runs dog dog on dog runs on runs", -2.48617),
    ),
}


def set_weights(weights):
    """Weights that need no random numbers."""
    names = [name for name in sorted(weights) if weights[name].is_floating_point()]
    for number, name in enumerate(names):
        x = weights[name]
        waves = torch.sin(torch.arange(x.numel()) * (0.7 + 0.1 * number)) * 1.2
        weights[name] = waves.view_as(x).to(x)


@pytest.mark.parametrize("arch", GENERATED_WITHOUT_OUTPUT_PROJECTION)
def test_a_checkpoint_without_an_output_projection_generates_the_same_text(
    arch, tmp_path, monkeypatch
):
    """Multi-head fusion with a forget gate, on both sides, as it was saved before there was one."""
    # the first text of vg_t5_tiny was generated when <s>, which is not printed, could be in it
    monkeypatch.setattr(
        "fairseq_mm.generation.task.tokens_never_generated",
        lambda dictionary, allow_unk: [dictionary.unk()],
    )
    data = make_videos_folder(tmp_path / "data")
    older = {"fusion_dim": 6, "fusion_heads": 3, "fusion_decoder_layers": "2"}
    path = write_video_summarizer(
        tmp_path / "older.pt", arch, data, fusion_output_projection="off", **older
    )
    state = torch.load(path)
    for option in ("fusion_output_projection", "video_attention_dropout"):
        del state["cfg"]["model"][option]
    assert sorted(name for name in state["model"] if "decoder.fusions" in name) == [
        f"decoder.fusions.2.{name}"
        for name in (
            *("gate_proj.bias", "gate_proj.weight", "key_proj.weight", "norm.bias", "norm.weight"),
            *("output_proj.bias", "output_proj.weight", "query_proj.bias", "query_proj.weight"),
            *("value_proj.bias", "value_proj.weight"),
        )
    ]
    set_weights(state["model"])
    torch.save(state, path)
    summarizer = fairseq_mm.from_pretrained(path, device="cpu")
    features = [
        np.sin(np.arange(5 * count, dtype=np.float32) * step).reshape(count, 5)
        for step, count in enumerate((4, 2, 6), start=1)
    ]
    texts = ["the dog runs on grass", "a big man jumps in snow", "red cat blue dog"]
    found = summarizer.summarize_features(features, texts, Search(**SEARCH))
    expected = GENERATED_WITHOUT_OUTPUT_PROJECTION[arch]
    assert [summary.text for summary in found] == [text for text, _ in expected]
    scores = [score for _, score in expected]
    assert [summary.score for summary in found] == pytest.approx(scores, abs=2e-4)


def test_files_of_embeddings_are_not_looked_for(text, tmp_path):
    state = torch.load(text / "transformer" / "checkpoint_best.pt")
    state["cfg"]["model"].encoder_embed_path = str(tmp_path / "absent.txt")
    torch.save(state, tmp_path / "moved.pt")
    reader = fairseq_mm.from_pretrained(tmp_path / "moved.pt", data=text / "data", device="cpu")
    same = fairseq_mm.from_pretrained(text / "transformer", data=text / "data", device="cpu")
    assert reader.summarize(None, ["a dog"]) == same.summarize(None, ["a dog"])


def test_a_copied_word_is_the_transcripts_own(monkeypatch, text):
    reader = fairseq_mm.from_pretrained(text / "pointer_generator", device="cpu")
    transcript = reader.encode_transcript("a dog sees Yaks and yaks and Zebras or emus")
    # "and", too, is outside the dictionary: there are two numbers
    assert transcript.unknowns == ["sees", "yaks"]
    numbers = [reader.dictionary.index(f"<unk-{i}>") for i in range(2)]
    unknown = reader.dictionary.unk()
    assert transcript.tokens[2:6].tolist() == [numbers[0], numbers[1], unknown, numbers[1]]
    forced = [[{"tokens": torch.tensor([*numbers, unknown]), "score": torch.tensor(0.5)}]]
    monkeypatch.setattr(reader.task, "inference_step", lambda *_: forced)
    assert reader.summarize_features(None, [transcript]) == [("sees yaks <unk>", 0.5)]


def test_a_video_becomes_the_rows_of_its_first_clips(summarizer, videos):
    whole = summarizer.extractor.extract(videos)
    assert [len(rows) for rows in whole] == [4, 2, 1]
    for video, rows in zip(videos, whole):
        seen = summarizer.read_video(video, batch_size=3, num_images=3)
        np.testing.assert_allclose(seen.rows, rows, atol=1e-5)
        assert not seen.is_cut
        assert len(seen.images) == min(3, len(rows))
        assert seen.images[0].shape == (16, 16, 3)
    expected = summarizer.summarize_features(whole, ["the dog runs", "a cat", None])
    texts = summarizer.summarize(videos, ["the dog runs", "a cat", None])
    assert texts == [summary.text for summary in expected]
    first = summarizer.extractor.first_clips(videos[0], 3, batch_size=2)
    assert first.is_cut
    np.testing.assert_allclose(first.rows, whole[0][:3], atol=1e-5)


def test_what_is_behind_the_limits_is_not_read(summarizer):
    assert (summarizer.max_frames, summarizer.encoder.limit) == (6, 8)
    rows = np.random.default_rng(1).normal(size=(11, DIM)).astype(np.float32)
    words = ["the", "dog", "runs", "on", "grass", "in", "red", "snow", "and", "more"]
    whole = summarizer.encode_transcript(" ".join(words))
    assert (whole.num_tokens, whole.num_cut, len(whole.tokens)) == (10, 2, 9)
    texts = [" ".join(words), " ".join(words[:8])]
    summaries = summarizer.summarize_features([rows, rows[:6]], texts)
    assert summaries[0].text == summaries[1].text
    assert summaries[0].score == pytest.approx(summaries[1].score, abs=1e-5)


def test_draws_depend_on_the_seed_alone(summarizer):
    generator = np.random.default_rng(2)
    rows = [generator.normal(size=(n, DIM)).astype(np.float32) for n in (3, 5)]
    texts = ["the dog runs", "a cat"]

    def draw(seed, part=slice(None)):
        search = Search(sampling=True, topk=7, seed=seed)
        items = range(2)[part]
        return summarizer.summarize_features(rows[part], texts[part], search, items=items)

    before = torch.get_rng_state()
    assert draw(1) == draw(1) != draw(2)
    (alone,), (_, beside) = draw(1, slice(1, 2)), draw(1)
    assert alone.text == beside.text
    assert alone.score == pytest.approx(beside.score, abs=1e-5)
    assert torch.equal(torch.get_rng_state(), before)


def test_lengths_and_repetitions_are_as_asked(summarizer):
    rows = [np.ones((2, DIM), np.float32)]
    texts = ["the dog runs"]
    (long,) = summarizer.summarize_features(rows, texts, Search(min_len=5, max_len=5))
    assert len(long.text.split()) == 5
    (many,) = summarizer.summarize_features(
        rows, texts, Search(min_len=9, max_len=9, no_repeat_ngram=1)
    )
    assert len(set(many.text.split())) == len(many.text.split()) > 7
    assert summarizer.check_search(Search()) == MAX_LEN


def test_what_is_no_word_is_not_written(trained, tmp_path):
    """Though nothing were likelier than <unk>, and what fills a dictionary up."""
    best = trained / "checkpoint_best.pt"
    words = [*WORDS[:-1], "madeupword0000"]
    filled = change_checkpoint(
        best, tmp_path / "filled.pt", provenance={"words": words, "source_words": words}
    )
    reader = fairseq_mm.from_pretrained(filled, weights=trained / "mc3_18.pth", device="cpu")
    likely = torch.zeros(len(reader.dictionary))
    likely[[reader.dictionary.unk(), reader.dictionary.index("madeupword0000")]] = 50.0
    reader.models[0].decoder.output_projection.register_forward_hook(
        lambda module, inputs, logits: logits + likely
    )
    rows = [np.ones((2, DIM), np.float32)]
    (summary,) = reader.summarize_features(rows, ["the dog"], Search(min_len=5, max_len=9))
    assert set(summary.text.split()) <= set(words[:-1])
    assert len(summary.text.split()) >= 5


def test_two_checkpoints_are_averaged(trained, summarizer, tmp_path):
    other = change_checkpoint(
        trained / "checkpoint_best.pt",
        tmp_path / "other.pt",
        weights={"decoder.embed_tokens.weight": lambda x: x.neg_()},
    )
    rows = [np.ones((2, DIM), np.float32)]
    both = fairseq_mm.from_pretrained([trained, other], device="cpu")
    again = fairseq_mm.from_pretrained(f"{trained}:{trained}", device="cpu")
    one = summarizer.summarize_features(rows, ["the dog runs"])
    assert both.summarize_features(rows, ["the dog runs"]) != one
    assert again.summarize_features(rows, ["the dog runs"])[0].text == one[0].text


def test_transcripts_go_through_what_the_training_data_did(trained, summarizer, tmp_path):
    assert summarizer.encoder.tokenizer == "words"  # what is taken where nobody knows
    unk = summarizer.dictionary.unk()
    assert unk not in summarizer.encode_transcript("The DOG, runs").tokens[[0, 1, 3]].tolist()
    with pytest.raises(UserError, match=r"none of the transcript's words is in the dictionary of"):
        summarizer.encode_transcript("THE DOG", tokenizer="none")
    with pytest.raises(UserError, match="`tokenizer` must be one of none, lower, words, but"):
        summarizer.encode_transcript("the", tokenizer="x")
    state = torch.load(trained / "checkpoint_best.pt")["task_state"]
    other = change_checkpoint(
        trained / "checkpoint_best.pt",
        tmp_path / "other.pt",
        task_state={**state, "tokenizer": "lower"},
    )
    assert fairseq_mm.from_pretrained(other).encoder.tokenizer == "lower"


def test_bad_inputs_are_named(summarizer, videos, tmp_path):
    with pytest.raises(UserError, match=r"^transcript 1: the transcript is empty: it must have at"):
        summarizer.summarize(videos[:2], ["a dog", " \n"])
    with pytest.raises(UserError, match=r"^the transcript holds fairseq's control symbol </s>"):
        summarizer.encode_transcript("a </s> dog", tokenizer="none")
    with pytest.raises(UserError, match="`videos` and `transcripts` must be as many, but are 3"):
        summarizer.summarize(videos, ["a dog"])
    with pytest.raises(UserError, match="`videos` must be a list, but is a str"):
        summarizer.summarize(videos[0], ["a dog"])
    with pytest.raises(UserError, match=r"--arch vg_bart_tiny reads videos: give `videos`\."):
        summarizer.summarize(None, ["a dog"])
    with pytest.raises(UserError, match=r"absent\.mp4: No such file or directory"):
        summarizer.summarize([tmp_path / "absent.mp4"], ["a dog"])
    with pytest.raises(UserError, match=r"^video 0: is no video, or its head or index is missing"):
        summarizer.summarize([b"no video"], ["a dog"])
    with pytest.raises(UserError, match=rf"video 0 must be \[frames, {DIM}\], but are \[2, 5\]"):
        summarizer.summarize_features([np.ones((2, 5))], ["a dog"])
    with pytest.raises(UserError, match=rf"x\.h5: features have 5 channels, .* trained on {DIM}"):
        summarizer.check_features({}, 5, "x.h5")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 0}, "`beam` must be 1 or more, but is 0"),
        ({"max_len": 0}, "`max_len` must be 1 or more, but is 0"),
        ({"no_repeat_ngram": -1}, "`no_repeat_ngram` must be 0 or more, but is -1"),
        ({"temperature": 0.0}, "`temperature` must be above 0 and finite, but is 0.0"),
        ({"lenpen": float("nan")}, "`lenpen` must be 0 or more and finite, but is nan"),
        ({"topp": 0.0}, "`topp` must be above 0 and at most 1, but is 0.0"),
        ({"seed": 2**64}, "`seed` must be a number of 64 bits"),
        ({"topk": 3}, "`topk` is 3, but tokens are drawn with `sampling` only"),
        ({"topk": 3, "topp": 0.5, "sampling": True}, "`topk` and `topp` exclude each other"),
        ({"beam": 20}, "`beam` must be at most 19, so many words are in the dictionary"),
        ({"max_len": 2000}, r"`max_len` must be at most \d+, for which .*best\.pt has positions"),
        ({"min_len": 63}, "`min_len` must be at most the longest summary, 62, but is 63"),
    ],
)
def test_searches_that_cannot_be_are_refused(summarizer, options, message):
    with pytest.raises(UserError, match=message):
        summarizer.summarize([], [], **options)


def test_the_extractor_must_be_the_one_of_the_training(trained, tmp_path, videos):
    best = trained / "checkpoint_best.pt"
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(best, alone)
    with pytest.raises(UserError, match=r"SHA-256 [0-9a-f]{64}\)\. Give that file \(--weights"):
        fairseq_mm.from_pretrained(alone).summarize(videos, [None] * 3)
    (tmp_path / "other.pth").write_bytes(b"other")
    with pytest.raises(UserError, match=r"other\.pth: must have the SHA-256 "):
        fairseq_mm.from_pretrained(best, weights=tmp_path / "other.pth").summarize(videos)
    unknown = change_checkpoint(best, tmp_path / "unknown.pt", provenance={"extractor": {}})
    with pytest.raises(UserError, match="whose extractor is not recorded, so no video can be"):
        fairseq_mm.from_pretrained(unknown).summarize(videos)
    other = change_checkpoint(best, tmp_path / "images.pt", provenance={"feature_dim": 7})
    with pytest.raises(UserError, match=r"images\.pt"):
        fairseq_mm.from_pretrained(other)


def test_weights_that_features_do_not_record_can_be_given(trained, tmp_path, videos, caplog):
    """As those of How2's features; the preprocessing is then the network's own."""
    identity = {"extractor": "mc3_18", "frames_per_clip": 16, "stride": 16}
    (tmp_path / "how2").mkdir()
    best = change_checkpoint(
        trained / "checkpoint_best.pt",
        tmp_path / "how2" / "checkpoint_best.pt",
        provenance={"extractor": identity},
    )
    with pytest.raises(UserError, match=r"mc3_18 with weights that are not recorded\. Give the "):
        fairseq_mm.from_pretrained(best, device="cpu").summarize(videos)
    weights = trained / "mc3_18.pth"
    reader = fairseq_mm.from_pretrained(best, weights=weights, device="cpu")
    own = build_video_extractor("mc3_18", weights=str(weights))
    assert reader.extractor.preprocessing == own.preprocessing
    assert f"taken to be {weights} and mc3_18's own" in caplog.text
    assert len(reader.summarize(videos[:1], ["a dog"], max_len=3)) == 1


def test_checkpoints_of_other_kinds_are_refused(trained, text, tmp_path):
    best = trained / "checkpoint_best.pt"
    of_text = text / "t5" / "checkpoint_best.pt"
    with pytest.raises(UserError, match=r"`weights` \(--weights\) is for models of videos, but"):
        fairseq_mm.from_pretrained(of_text, weights="any.pth")
    with pytest.raises(UserError, match=r"--arch t5_tiny reads no video: give None for `videos`"):
        fairseq_mm.from_pretrained(of_text).summarize(["a.mp4"], ["a dog"])
    with pytest.raises(UserError, match=r"^transcript 0: there is none, and no video is read"):
        fairseq_mm.from_pretrained(of_text).summarize(None, [None])
    with pytest.raises(UserError, match="`prompt_model` is for models that tell stories"):
        fairseq_mm.from_pretrained(best, prompt_model="any")
    with pytest.raises(UserError, match=r"carries no dictionary \(--arch transformer, .*--data"):
        fairseq_mm.from_pretrained(text / "transformer")
    with pytest.raises(UserError, match=r"t5/.*: has another dictionary \(18 words"):
        fairseq_mm.from_pretrained([best, of_text])
    with pytest.raises(UserError, match="cannot be in an ensemble with the others"):
        fairseq_mm.from_pretrained([text / "pointer_generator", of_text])
    state = torch.load(best)["task_state"]
    ends = change_checkpoint(best, tmp_path / "e.pt", task_state={**state, "source_ends": "none"})
    with pytest.raises(UserError, match=r"e\.pt: was trained with --source-ends none, but"):
        fairseq_mm.from_pretrained([best, ends])
    for task, hint in (
        ("visual_storytelling", "fairseq-mm tell"),
        ("multimodal_captioning", "fairseq-mm caption"),
        ("translation", "fairseq-mm tell"),
    ):
        state = torch.load(best)
        state["cfg"]["task"]["_name"] = task
        torch.save(state, tmp_path / "other.pt")
        message = f"with --task {task}, and writes no summaries: {hint}"
        with pytest.raises(UserError, match=message):
            fairseq_mm.from_pretrained([best, tmp_path / "other.pt"])
    with pytest.raises(UserError, match=r"`data` is for models of fairseq's own that summarise"):
        fairseq_mm.from_pretrained(tmp_path / "other.pt", data=trained)
    assert STATE_KEY in torch.load(best)["model"]


def test_it_says_what_it_is(summarizer, text):
    assert isinstance(summarizer, VideoSummarizer)
    assert repr(summarizer).endswith("checkpoint_best.pt': videos as mc3_18, cpu)")
    reader = fairseq_mm.from_pretrained(text / "t5", device="cpu")
    assert repr(reader).endswith("checkpoint_best.pt': transcripts, cpu)")
