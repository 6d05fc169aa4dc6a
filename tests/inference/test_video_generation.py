"""Summaries of videos and transcripts are those of fairseq-generate, by the checkpoint alone."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from numerics import assert_close
from toy_captioner import change_checkpoint
from toy_data import make_videos_folder, run_fairseq
from toy_subwords import SENTENCES, write_gpt2, write_sentencepiece
from toy_summarizer import DIM, save_videos, train_summarizer, train_video_summarizer

import fairseq_mm
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.subwords import Subwords
from fairseq_mm.errors import UserError
from fairseq_mm.extract.extractor import build_extractor
from fairseq_mm.inference.video_processor import TranscriptEncoder
from fairseq_mm.models._vg_bart_parts import VgBartDecoder
from fairseq_mm.tasks.video_summarization import VideoSummarizationTask


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Of videos, with ``mc3_18.pth`` beside it and without its data folder."""
    folder = tmp_path_factory.mktemp("trained")
    train_video_summarizer(folder, folder / "data")
    return folder


@pytest.fixture(scope="module")
def model(trained):
    return fairseq_mm.from_pretrained(trained, device="cpu")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Models of transcripts, and the data folder that they share."""
    folder = tmp_path_factory.mktemp("text")
    data = make_videos_folder(folder / "data", indexed_oov=2, with_features=False)
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


OPTIONS = {"beam": 3, "max_len_b": 9, "no_repeat_ngram_size": 2}


def inputs_of(videos, transcripts):
    return [{"video": x, "transcript": text} for x, text in zip(videos, transcripts)]


def best_of(found):
    return [best for best, *_ in found]


def texts_of(found):
    return [best.text for best in best_of(found)]


def written_inputs(data):
    """Names and transcripts of a data folder's test split."""
    lines = (data / "test.transcripts.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [entry["id"] for entry in found], [entry.get("transcript") for entry in found]


def test_videos_are_summarised_as_fairseq_generate_does(capsys, trained, model):
    data = trained / "data.moved"
    arguments = (data, trained / "checkpoint_best.pt", "--lenpen", "2.5", "--batch-size", 2)
    texts, scores = generated(capsys, *arguments)
    names, transcripts = written_inputs(data)
    store = FeatureStore(str(data / "features.h5"))
    inputs = inputs_of(map(store.read, names), transcripts)
    summaries = best_of(model.generate(inputs, lenpen=2.5, **OPTIONS))
    assert [summary.text for summary in summaries] == texts
    # fairseq's are to the base 2
    assert [x.score / np.log(2) for x in summaries] == pytest.approx(scores, abs=1e-4)
    # toy models have few texts, but no two videos have one score
    assert len(set(texts)) > 1
    assert len(set(scores)) == len(scores) > 2


@pytest.mark.parametrize("name", ["t5", "pointer_generator", "transformer", "bart"])
def test_transcripts_are_summarised_as_fairseq_generate_does(capsys, text, name):
    texts, _ = generated(capsys, text / "data", text / name / "checkpoint_best.pt")
    data = text / "data" if name in ("transformer", "bart") else None
    model = fairseq_mm.from_pretrained(text / name, device="cpu", data=data)
    assert not model.processor.reader.reads_video
    _, transcripts = written_inputs(text / "data")
    assert texts_of(model.generate(transcripts, **OPTIONS)) == texts
    assert len(set(texts)) > 1
    # fairseq's BART is decoded by the steps of VG-BART, in which beams share a cache
    (decoder,) = (x.decoder for x in model.loaded.models)
    assert isinstance(decoder, VgBartDecoder) == (name == "bart")


def test_files_of_embeddings_are_not_looked_for(text, tmp_path):
    state = torch.load(text / "transformer" / "checkpoint_best.pt")
    state["cfg"]["model"].encoder_embed_path = str(tmp_path / "absent.txt")
    torch.save(state, tmp_path / "moved.pt")
    moved = fairseq_mm.from_pretrained(tmp_path / "moved.pt", data=text / "data", device="cpu")
    same = fairseq_mm.from_pretrained(text / "transformer", data=text / "data", device="cpu")
    assert moved.generate("a dog")[0].tokens == same.generate("a dog")[0].tokens


def test_a_copied_word_is_the_transcripts_own(monkeypatch, text):
    model = fairseq_mm.from_pretrained(text / "pointer_generator", device="cpu")
    transcript = model.processor.encoder.encode("a dog sees Yaks and yaks and Zebras or emus")
    # "and", too, is outside the dictionary: there are two numbers
    assert transcript.oov_words == ["sees", "yaks"]
    numbers = [model.dictionary.index(f"<unk-{i}>") for i in range(2)]
    unknown = model.dictionary.unk()
    assert transcript.tokens[2:6].tolist() == [numbers[0], numbers[1], unknown, numbers[1]]
    tokens = torch.tensor([*numbers, unknown])
    forced = {"tokens": tokens, "score": torch.tensor(0.5), "positional_scores": torch.ones(3)}
    monkeypatch.setattr(model.task, "inference_step", lambda *_, **__: [[forced]])
    (best,) = model.generate({"transcript": transcript})
    assert (best.text, best.score) == ("sees yaks <unk>", 0.5)
    assert best.line == "<unk-0> <unk-1> <unk>"
    assert best.source is transcript


def test_a_video_becomes_the_rows_of_its_first_clips(model, videos):
    reader = model.processor.reader
    whole = reader.extractor.extract(videos)
    assert [len(rows) for rows in whole] == [4, 2, 1]
    for video, rows in zip(videos, whole):
        seen = reader.extractor.first_clips(video, reader.max_frames, batch_size=3, num_images=3)
        assert_close(seen.rows, rows)
        assert not seen.is_cut
        assert len(seen.images) == min(3, len(rows))
        assert seen.images[0].shape == (16, 16, 3)
    transcripts = ["the dog runs", "a cat", None]
    expected = texts_of(model.generate(inputs_of(whole, transcripts)))
    assert texts_of(model.generate(inputs_of(videos, transcripts))) == expected
    assert texts_of(model.generate([videos[2]])) == expected[2:]  # a path is a video
    assert model.generate(videos[2])[0].text == expected[2]
    with open(videos[2], "rb") as file:
        assert model.generate(file)[0].text == expected[2]
    first = reader.extractor.first_clips(videos[0], 3, batch_size=2)
    assert first.is_cut
    assert_close(first.rows, whole[0][:3])


def test_what_is_behind_the_limits_is_not_read(model):
    processor = model.processor
    assert (processor.reader.max_frames, processor.encoder.limit) == (6, 8)
    rows = np.random.default_rng(1).normal(size=(11, DIM)).astype(np.float32)
    words = ["the", "dog", "runs", "on", "grass", "in", "red", "snow", "and", "more"]
    whole = processor.encoder.encode(" ".join(words))
    assert (whole.num_tokens, whole.num_cut, len(whole.tokens)) == (10, 2, 9)
    texts = [" ".join(words), " ".join(words[:8])]
    summaries = best_of(model.generate(inputs_of([rows, rows[:6]], texts)))
    assert summaries[0].text == summaries[1].text
    assert_close(summaries[0].score, summaries[1].score)


def test_transcripts_go_through_what_the_training_data_did(trained, model, tmp_path):
    encoder = model.processor.encoder
    assert encoder.tokenizer == "words"  # what is taken where nobody knows
    assert model.dictionary.unk() not in encoder.encode("The DOG, runs").tokens[[0, 1, 3]].tolist()
    with pytest.raises(UserError, match=r"none of the transcript's words is in the dictionary of"):
        encoder.encode("THE DOG", tokenizer="none")
    with pytest.raises(UserError, match="`tokenizer` must be one of none, lower, words, but"):
        encoder.encode("the", tokenizer="x")
    state = torch.load(trained / "checkpoint_best.pt")["task_state"]
    other = change_checkpoint(
        trained / "checkpoint_best.pt",
        tmp_path / "other.pt",
        task_state={**state, "tokenizer": "lower"},
    )
    assert fairseq_mm.from_pretrained(other).processor.encoder.tokenizer == "lower"


def test_bad_inputs_are_named(model, videos, tmp_path):
    def refusal(*inputs, **options):
        with pytest.raises(UserError) as caught:
            model.generate(list(inputs), **options)
        return str(caught.value)

    second = {"video": videos[1], "transcript": " \n"}
    assert refusal(videos[0], second).startswith(f"{videos[1]}: none of the transcript's words is")
    for wrong in ({"transcript": "a"}, {"video": videos[0], "text": "a"}):
        assert "--arch vg_bart_tiny reads videos: give `video`" in refusal(wrong)
    assert refusal(tmp_path / "absent.mp4").endswith(
        "absent.mp4: cannot be read (No such file or directory)."
    )
    assert refusal(b"no video").startswith("video 0: is no video, or its head or index is missing")
    expected = rf"^video 0: features must be \[rows, {DIM}\], but are \[2, 5\]"
    assert re.search(expected, refusal(np.ones((2, 5))))
    with pytest.raises(UserError, match=rf"were made with dim = {DIM}, but \S*x\.h5 with 5"):
        model.processor.reader.check_features({}, 5, "x.h5")


def test_the_extractor_must_be_the_one_of_the_training(trained, tmp_path, videos):
    best = trained / "checkpoint_best.pt"
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(best, alone)
    with pytest.raises(UserError, match=r"SHA-256 [0-9a-f]{64}\)\. Give that file \(--weights"):
        fairseq_mm.from_pretrained(alone).generate(videos)
    (tmp_path / "other.pth").write_bytes(b"other")
    with pytest.raises(UserError, match=r"other\.pth: must have the SHA-256 "):
        fairseq_mm.from_pretrained(best, weights=tmp_path / "other.pth").generate(videos)
    unknown = change_checkpoint(best, tmp_path / "unknown.pt", provenance={"extractor": {}})
    with pytest.raises(UserError, match="whose extractor is not recorded, which no video can be"):
        fairseq_mm.from_pretrained(unknown).generate(videos)
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
    with pytest.raises(UserError, match=r"mc3_18 with weights that are not recorded\. Give that "):
        fairseq_mm.from_pretrained(best, device="cpu").generate(videos)
    weights = trained / "mc3_18.pth"
    model = fairseq_mm.from_pretrained(best, weights=weights, device="cpu")
    own = build_extractor("mc3_18", weights=str(weights))
    assert model.processor.reader.extractor.preprocessing == own.preprocessing
    assert f"taken to be {weights} and mc3_18's own" in caplog.text
    assert len(model.generate(videos[:1], max_len_b=3)) == 1


def test_checkpoints_of_other_kinds_are_refused(trained, text, tmp_path):
    best = trained / "checkpoint_best.pt"
    of_text = text / "t5" / "checkpoint_best.pt"
    with pytest.raises(UserError, match="`weights` is no option of models that read videos"):
        fairseq_mm.from_pretrained(of_text, weights="any.pth")
    transcripts = fairseq_mm.from_pretrained(of_text)
    with pytest.raises(UserError, match=r"--arch t5_tiny reads no video: give `transcript` alone"):
        transcripts.generate([{"video": "a.mp4", "transcript": "a dog"}])
    with pytest.raises(UserError, match=r"^video 0: .* reads no video: give `transcript`"):
        transcripts.generate([{"transcript": None}])
    with pytest.raises(UserError, match="`prompt_model` is no option of "):
        fairseq_mm.from_pretrained(best, prompt_model=best)
    with pytest.raises(UserError, match=r"carries no dictionary \(--arch transformer, .*--data"):
        fairseq_mm.from_pretrained(text / "transformer")
    with pytest.raises(UserError, match=r"t5/.*: was trained with other dictionary than"):
        fairseq_mm.from_pretrained([best, of_text])
    with pytest.raises(UserError, match="cannot be in an ensemble with the others"):
        fairseq_mm.from_pretrained([text / "pointer_generator", of_text])
    state = torch.load(best)["task_state"]
    ends = change_checkpoint(best, tmp_path / "e.pt", task_state={**state, "source_ends": "none"})
    with pytest.raises(UserError, match=r"e\.pt: was trained with --source-ends none, but"):
        fairseq_mm.from_pretrained([best, ends])
    state = torch.load(best)
    state["cfg"]["task"]["_name"] = "multimodal_captioning"
    torch.save(state, tmp_path / "other.pt")
    with pytest.raises(UserError, match=r"other\.pt: was trained with other task than"):
        fairseq_mm.from_pretrained([best, tmp_path / "other.pt"])
    with pytest.raises(UserError, match=r"`data` is no option of "):
        fairseq_mm.from_pretrained(best, data=trained)


def encoder_of(subwords, words, **state):
    task = VideoSummarizationTask.from_provenance(words, {}, 0, subwords=subwords.to_state())
    task.load_state_dict(state)
    return TranscriptEncoder(task, "best.pt")


def subwords_of(kind, folder):
    if kind == "gpt2":
        encoder, merges = write_gpt2(folder)
        return Subwords.from_paths(kind, {"encoder.json": encoder, "vocab.bpe": merges})
    return Subwords.from_paths(kind, {"sentencepiece.model": write_sentencepiece(folder / "s.m")})


@pytest.mark.parametrize("kind", ["gpt2", "sentencepiece"])
def test_text_is_taken_as_it_is_where_there_are_pieces(kind, tmp_path):
    subwords = subwords_of(kind, tmp_path)
    pieces = subwords.encode(SENTENCES[0])
    encoder = encoder_of(subwords, sorted(set(pieces)))
    assert encoder.tokenizer == "none"
    transcript = encoder.encode(f"  {SENTENCES[0]}\n")
    dictionary = encoder.task.source_dictionary
    expected = [*(dictionary.index(piece) for piece in pieces), dictionary.eos()]
    assert transcript.tokens.tolist() == expected
    assert encoder.task.readable.decode_text(dictionary.string(transcript.tokens)) == SENTENCES[0]
    assert transcript[2:] == ([], len(pieces), 0, True)


@pytest.mark.parametrize(
    ("ends", "words", "begins"), [("end", 3, False), ("both", 2, True), ("none", 4, False)]
)
def test_ends_are_those_of_the_training(ends, words, begins):
    state = {"source_ends": ends, "max_source_positions": 4}
    encoder = encoder_of(Subwords(), list("abcdef"), **state)
    assert encoder.limit == words
    dictionary = encoder.task.source_dictionary
    transcript = encoder.encode("a b c d e")
    assert (transcript.num_tokens, transcript.num_cut) == (5, 5 - words)
    expected = [dictionary.index(word) for word in "abcde"[:words]]
    expected = [dictionary.bos()] * begins + expected + [dictionary.eos()] * (ends != "none")
    assert transcript.tokens.tolist() == expected


def test_a_transcript_may_say_that_there_is_none():
    encoder = encoder_of(Subwords(), ["a", "dog"])
    for text in (None, "Transcript not available."):
        assert not encoder.encode(text).is_available  # though the model knows none of its words
    assert encoder.encode(None).text == "transcript not available"
