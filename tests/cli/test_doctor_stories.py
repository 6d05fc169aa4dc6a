"""``fairseq-mm doctor`` on prompts and stories, and on the models of them."""

import re
import shutil
import subprocess

import pytest
from fairseq.data import Dictionary, indexed_dataset
from toy_captioner import change_checkpoint
from toy_data import make_captions_folder, run_fairseq
from toy_story_models import make_story_folder, train_stories
from toy_text_models import save_text_model

from fairseq_mm.cli.doctor_data import KINDS, LANGUAGE_MODELS, find_data_folder
from fairseq_mm.models._provenance import fingerprint
from fairseq_mm.prepare import prompts

PAIR = "wp_source-wp_target"
LSTM = "--encoder-embed-dim 8 --decoder-embed-dim 8 --decoder-out-embed-dim 6"


@pytest.fixture
def data(tmp_path):
    return make_story_folder(tmp_path / "data")


def matches(pattern, lines):
    return [line for line in lines if re.search(pattern, line)]


def words_of_file(path):
    return [line.rsplit(" ", 1)[0] for line in path.read_text().splitlines()]


def write_text(path, dictionary, lines):
    builder = indexed_dataset.make_builder(f"{path}.bin", "mmap", vocab_size=len(dictionary))
    for line in lines:
        builder.add_item(dictionary.encode_line(line, add_if_not_exist=False))
    builder.finalize(f"{path}.idx")


def test_the_layout_is_that_of_prepare():
    assert KINDS["prompts"].languages == (prompts.SOURCE, prompts.TARGET)
    assert LANGUAGE_MODELS == prompts.LANGUAGE_MODELS


@pytest.mark.parametrize("part", ["", "prompts", "stories"])
def test_a_whole_folder_of_stories_has_no_problem(examine, data, part):
    _, lines, problems = examine("--data", data / part)
    assert problems == []
    assert matches(r"^ok +\S+dict\.wp_source\.txt: 13 words$", lines)
    assert matches(r"^ok +\S+dict\.wp_target\.txt: \d+ words$", lines)
    assert matches(r"^ok +train: 8 pairs, longest prompt of \d tokens, longest story of", lines)
    assert matches(r"^ok +valid: 13 pairs, ", lines)
    assert not matches(r"features|references", lines)


def test_folders_are_told_apart(tmp_path, data):
    captions = make_captions_folder(tmp_path / "captions")
    assert find_data_folder(str(captions)) == (str(captions), "captions")
    assert find_data_folder(str(data / "stories")) == (str(data), "prompts")
    assert find_data_folder(str(data / "text")) == (str(data / "text"), "captions")
    for side in ("source", "target"):
        (data / f"dict.wp_{side}.txt").unlink()
    (data / "prepare.json").write_text('{"kind": "prompts"}')
    assert find_data_folder(str(data)) == (str(data), "prompts")
    for other in ('{"kind": "captions"}', "{", "[1]", '{"kind": ["prompts"]}'):
        (data / "prepare.json").write_text(other)
        assert find_data_folder(str(data)) == (str(data), "captions")


def test_it_runs_on_stories_where_fairseq_is_missing(started_python, data):
    code = (
        "import sys; sys.argv[0] = 'fairseq-mm'; sys.modules['fairseq'] = None;"
        "sys.modules['tqdm'] = None;"
        "from fairseq_mm.cli.main import main;"
        f"sys.exit(main(['doctor', '--data', {str(data)!r}]))"
    )
    done = subprocess.run([started_python, "-c", code], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    lines = done.stdout.splitlines()
    assert matches(r"^note .*: its text is not checked \(.* -> repair the installation", lines)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("dict.wp_source.txt", "a 3\nb\n", r"wp_source\.txt: cannot be read as a dictionary"),
        ("dict.wp_target.txt", None, r"dict\.wp_target\.txt: no such file; is"),
        ("stories/dict.txt", None, r"stories/dict\.txt: no such file; is"),
        ("dict.wp_source.txt", "a 3\na 2\n", r"Duplicate word found when loading Dictionary: 'a'"),
    ],
)
def test_broken_dictionaries_of_stories_are_found(examine, data, name, content, message):
    (data / name).unlink()
    if content is not None:
        (data / name).write_text(content)
    *_, problems = examine("--data", data)
    assert matches(message, problems)


def test_a_language_models_dictionary_must_be_that_of_the_pairs(examine, data):
    path = data / "stories" / "dict.txt"
    first, second, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([second, first, *rest]))
    (data / "prompts" / "dict.txt").open("a").write("more 1\n")
    *_, problems = examine("--data", data)
    assert len(problems) == 2
    for part, side in (("prompts", "source"), ("stories", "target")):
        text = rf"{part}/dict\.txt: is not the dictionary of the pairs, dict\.wp_{side}\.txt -> "
        assert matches(text, problems)


def test_language_models_folders_are_optional(examine, data):
    shutil.rmtree(data / "prompts")
    (data / "prepare.json").write_text('{"kind": "prompts", "options": {}}')
    _, lines, problems = examine("--data", data)
    assert problems == []
    assert matches(r"^note .*prompts: is missing; it is for language models only -> prep", lines)


def test_folders_of_fairseq_preprocess_need_no_language_models_folders(examine, data):
    for part in ("prompts", "stories"):
        shutil.rmtree(data / part)
    _, lines, problems = examine("--data", data)
    assert problems == []
    assert not any("is missing" in line or "fairseq-mm prepare" in line for line in lines)


def test_halves_of_pairs_that_do_not_agree_are_found(examine, data):
    target = Dictionary.load(str(data / "dict.wp_target.txt"))
    for base in (data / f"train.{PAIR}.wp_target", data / "stories" / "train"):
        write_text(base, target, ["I opened the door"] * 7)
    text = data / "text" / "valid.wp_source"
    text.write_text("".join(text.read_text().splitlines(keepends=True)[:-2]))
    *_, problems = examine("--data", data)
    assert len(problems) == 2
    assert matches(r"train: \S+wp_source\.idx has 8 lines, but \S+wp_target\.idx has 7:", problems)
    assert matches(r"valid: .* has 13 lines, but \S+text/valid\.wp_source has 11: .* ->", problems)


def test_empty_damaged_and_foreign_binaries_are_found(examine, data):
    (data / "stories" / "valid.idx").unlink()
    shutil.copy(data / "stories" / "train.bin", data / "prompts" / "train.bin")
    shutil.copy(data / "stories" / "train.idx", data / "prompts" / "train.idx")
    *_, problems = examine("--data", data)
    assert matches(r"train: \S+prompts/train\.bin has the word number \d+, but the dict", problems)
    assert matches(r"valid: \S+stories/valid\.idx: no such file", problems)
    source = Dictionary.load(str(data / "dict.wp_source.txt"))
    lines = (data / "text" / "train.wp_source").read_text().splitlines()
    write_text(data / f"train.{PAIR}.wp_source", source, [lines[0], "", *lines[2:]])
    (data / f"valid.{PAIR}.wp_target.bin").write_bytes(b"")
    *_, problems = examine("--data", data)
    assert matches(r"train: \S+wp_source\.idx: line 2 is empty \(1 empty in all\)", problems)
    assert matches(r"valid: \S+wp_target\.bin and \.idx cannot be read", problems)
    for side in ("source", "target"):
        for end in ("bin", "idx"):
            (data / f"train.{PAIR}.wp_{side}.{end}").unlink()
    *_, problems = examine("--data", data)
    assert matches(r"train: \S+wp_source\.idx: no such file", problems)


def test_language_models_have_the_pairs_text(examine, data):
    source = Dictionary.load(str(data / "dict.wp_source.txt"))
    lines = (data / "text" / "valid.wp_source").read_text().splitlines()
    longer = [*lines[:4], f"{lines[4]} door", *lines[5:]]
    write_text(data / "prompts" / "valid", source, longer)
    *_, (problem,) = examine("--data", data)
    assert re.search(
        r"valid: \S+prompts/valid\.idx must be of the same text as the pairs, but is not "
        r"\(line 5 differs\) -> prepare",
        problem,
    )


def test_texts_longer_than_the_default_positions_are_noted(examine, data):
    target = Dictionary.load(str(data / "dict.wp_target.txt"))
    lines = (data / "text" / "train.wp_target").read_text().splitlines()
    longer = [*lines[:2], "door " * 1022, lines[3], "door " * 1500, *lines[5:7], "door " * 1021]
    for base in (data / f"train.{PAIR}.wp_target", data / "stories" / "train"):
        write_text(base, target, longer)
    (data / "text" / "train.wp_target").write_text("".join(f"{line}\n" for line in longer))
    _, found, problems = examine("--data", data)
    assert problems == []
    (line,) = matches(r"^note +train: ", found)
    assert re.search(
        r"the story of line 5 has 1,501 tokens, its end included, but models have positions for "
        r"1,022 by default \(2 such lines\) -> train with --max-target-positions 1503 or "
        r"--truncate-target$",
        line,
    )


def test_a_folder_without_splits_is_found(examine, data):
    for path in [*data.glob("*.bin"), *data.glob("*.idx"), *data.glob("*/*.idx")]:
        path.unlink()
    shutil.rmtree(data / "text")
    *_, (problem,) = examine("--data", data)
    assert re.search(r"has none of the splits train, valid, test -> run fairseq-mm prep", problem)


@pytest.fixture
def words(data):
    return {side: words_of_file(data / f"dict.wp_{side}.txt") for side in ("source", "target")}


def test_checkpoints_of_stories_and_their_data_have_no_problem(examine, data, words, tmp_path):
    pair = {"words": words["target"], "source_words": words["source"]}
    story = save_text_model(tmp_path / "story.pt", **pair)
    for options in ((), ("--data", data), ("--data", data / "prompts")):
        _, lines, problems = examine("--checkpoint", story, *options)
        assert problems == []
        assert matches(r"story\.pt: --arch conv_story_tiny, --task translation, ", lines)
        for side in ("source", "target"):
            known = f"{side} dictionary of {len(words[side])} words, {fingerprint(words[side])}"
            assert f"ok       checkpoint: {known}" in lines


def test_language_models_are_of_either_half(examine, data, words, tmp_path):
    for side, part in (("source", "prompts"), ("target", "stories")):
        model = save_text_model(tmp_path / f"{part}.pt", "gcnn_lm_tiny", words=words[side])
        for folder in (data, data / part):
            _, lines, problems = examine("--checkpoint", model, "--data", folder)
            assert problems == []
            count, found = len(words[side]), fingerprint(words[side])
            assert f"ok       checkpoint: dictionary of {count} words, {found}" in lines
    *_, (problem,) = examine("--checkpoint", model, "--data", data / "prompts")
    assert f"(fingerprint {found}), but dict.txt of the data folder has 13" in problem
    model = save_text_model(tmp_path / "other.pt", "gcnn_lm_tiny", words=["some", "other"])
    *_, (problem,) = examine("--checkpoint", model, "--data", data)
    known = fingerprint(["some", "other"])
    assert problem.count(f"trained with a dictionary of 2 words (fingerprint {known})") == 2
    assert "-> use the folder that it was trained on" in problem


def test_both_dictionaries_of_a_story_model_are_compared(examine, data, words, tmp_path):
    turned = words["source"][::-1]
    for side, pair in (
        ("source", {"words": words["target"], "source_words": turned}),
        ("target", {"words": words["target"][1:], "source_words": words["source"]}),
    ):
        story = save_text_model(tmp_path / "story.pt", **pair)
        *_, (problem,) = examine("--checkpoint", story, "--data", data)
        ours = turned if side == "source" else words["target"][1:]
        assert f"a dictionary of {len(ours)} words (fingerprint {fingerprint(ours)}), but the " in (
            problem
        )
        theirs = f"{len(words[side])} (fingerprint {fingerprint(words[side])})"
        assert f"{side} dictionary of the data folder has {theirs}" in problem


def test_models_and_folders_of_two_kinds_are_found(examine, data, tmp_path):
    captions = make_captions_folder(tmp_path / "captions")
    story = save_text_model(tmp_path / "story.pt")
    *_, (problem,) = examine("--checkpoint", story, "--data", captions)
    assert re.search(
        r"a model of prompts \(--task translation\), but \S+ has captions -> name", problem
    )
    command = (
        f"{captions} --task multimodal_captioning --arch m_rnn_tiny --save-dir {tmp_path} --cpu "
        "--max-update 1 --batch-size 8 --optimizer adam --num-workers 0 --disable-validation "
        "--log-format none"
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_fairseq(monkeypatch, "train", *command.split())
    *_, (problem,) = examine("--checkpoint", tmp_path / "checkpoint_last.pt", "--data", data)
    assert re.search(
        r"a model of images \(--task multim\w+\), but \S+ has prompts -> name", problem
    )


def test_broken_checkpoints_of_stories_are_found(examine, tmp_path):
    story = save_text_model(tmp_path / "story.pt")

    def spoil(bias):
        bias[3] = float("inf")

    name = "decoder.output_proj.bias"
    path = change_checkpoint(story, tmp_path / "inf.pt", weights={name: spoil})
    *_, (problem,) = examine("--checkpoint", path)
    assert re.search(r"decoder\.output_proj\.bias has NaN or infinite values -> name a", problem)
    path = change_checkpoint(story, tmp_path / "words.pt", provenance={"words": ["one"]})
    *_, (problem,) = examine("--checkpoint", path)
    assert re.search(r"words\.pt: its weights do not fit --arch conv_story_tiny: ", problem)
    assert problem.endswith(" -> name another checkpoint")
    path = change_checkpoint(story, tmp_path / "images.pt", provenance={"feature_dim": 7})
    *_, (problem,) = examine("--checkpoint", path)
    assert re.search(r"images\.pt: --arch conv_story_tiny reads images or videos, but was", problem)


def test_fairseqs_own_models_take_a_folders_dictionaries(examine, data, tmp_path):
    options = f"{LSTM} --task hierarchical_story --max-epoch 1"
    lstm = train_stories(data, tmp_path / "lstm", "lstm", options)
    _, lines, problems = examine("--checkpoint", lstm)
    assert problems == []
    assert matches(
        r"^note +checkpoint: carries no dictionary, as none of fairseq's own models does \(--arch "
        r"lstm\) -> name its data folder too: --data$",
        lines,
    )
    _, lines, problems = examine("--checkpoint", lstm, "--data", data)
    assert problems == []
    assert matches(r"^ok +checkpoint: carries no dictionary \(fairseq's --arch lstm\); it", lines)
    other = make_story_folder(tmp_path / "other")
    for path in (other / "dict.wp_source.txt", other / "prompts" / "dict.txt"):
        path.open("a").write("more 1\n")
    *_, (problem,) = examine("--checkpoint", lstm, "--data", other)
    assert re.search(r"its weights do not fit --arch lstm: .* -> use the folder that it", problem)
