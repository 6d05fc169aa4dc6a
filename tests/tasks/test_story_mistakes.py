"""What a user can do wrong with stories: one line, before any training step."""

import re
import shutil

import pytest
import torch
from fairseq.data import Dictionary, indexed_dataset
from toy_data import run_fairseq
from toy_story_models import FUSION, make_story_folder
from toy_text_models import save_text_model

from fairseq_mm.errors import UserError
from fairseq_mm.models._provenance import list_words

TASK = ("--task", "hierarchical_story")
POSITIONS = ("--max-source-positions", "40", "--max-target-positions", "44")
TRAINING = (
    *("--arch", "conv_story_tiny", "--criterion", "cross_entropy", "--optimizer", "adam"),
    *("--lr", "0.02", "--batch-size", "3", "--num-workers", "0", "--cpu", "--log-format", "none"),
    *("--no-epoch-checkpoints", "--max-epoch", "1"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_story_folder(tmp_path_factory.mktemp("stories") / "data", valid=5)


@pytest.fixture
def data(whole, tmp_path):
    """A copy to damage."""
    return shutil.copytree(whole, tmp_path / "data")


def train(data, save_dir, *options):
    with pytest.MonkeyPatch.context() as monkeypatch:
        arguments = (data, *TASK, *POSITIONS, *TRAINING, "--save-dir", save_dir, *options)
        run_fairseq(monkeypatch, "train", *arguments)
    return save_dir / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def story(whole, tmp_path_factory):
    return train(whole, tmp_path_factory.mktemp("story"))


def refuse_to_train(data, tmp_path, message, *options):
    """No step is taken: fairseq would write crash.pt."""
    with pytest.raises(UserError, match=message) as caught:
        train(data, tmp_path / "ck", *options)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "ck").glob("*.pt"))


def fusion_of(path):
    return (*FUSION.split(), "--arch", "conv_story_fusion", "--pretrained-checkpoint", path)


def write_lines(data, split, side, lines):
    """``lines`` are lists of words' numbers, their end included."""
    path = str(data / f"{split}.wp_source-wp_target.{side}")
    builder = indexed_dataset.make_builder(f"{path}.bin", "mmap", vocab_size=30)
    for line in lines:
        builder.add_item(torch.tensor(line))
    builder.finalize(f"{path}.idx")


def dictionary_of(path):
    return Dictionary.load(str(path))


def save_words(words, path):
    dictionary = Dictionary()
    for word in words:
        dictionary.add_symbol(word)
    dictionary.save(str(path))


def test_prompts_and_stories_have_a_word_and_as_many_lines(data, tmp_path):
    lines = [[5, 6, 2], [2], [7, 2], [2]]
    for side in ("wp_source", "wp_target"):
        copy = shutil.copytree(data, tmp_path / side)
        write_lines(copy, "train", side, lines)
        message = rf"train\.wp_source-wp_target\.{side}.*line 2 has no word \(2 empty in all\)"
        refuse_to_train(copy, tmp_path, message)
    write_lines(data, "train", "wp_source", [[5, 2]] * 7)
    message = r"wp_source\.idx has 7 lines, but \S+wp_target\.idx has 8 lines: they must agree"
    refuse_to_train(data, tmp_path, message)


def test_texts_longer_than_the_models_positions(data, tmp_path):
    write_lines(data, "train", "wp_source", [[5, 2]] * 6 + [[5] * 39 + [2], [5] * 40 + [2]])
    message = (
        r"line 7 \(2 such lines\): the prompt has 40 tokens, its end included, but must have at "
        r"most 38: give --truncate-source --max-source-positions 40, or leave"
    )
    refuse_to_train(data, tmp_path, message)
    write_lines(data, "valid", "wp_target", [[5, 2]] * 4 + [[5] * 42 + [2]])
    refuse_to_train(data, tmp_path, r"line 5 .* story has 43 .* at most 42", "--truncate-source")


def test_texts_longer_than_the_frozen_models_positions(data, story, tmp_path):
    """fairseq leaves them out of training, but not of validation."""
    write_lines(data, "valid", "wp_target", [[5, 2]] * 4 + [[5] * 42 + [2]])
    message = (
        r"line 5 of valid \(1 such lines\): the story has 43 tokens, its end included, but must "
        r"have at most 42: give --truncate-target --max-target-positions 44"
    )
    options = (*fusion_of(story), "--max-target-positions", "60")
    refuse_to_train(data, tmp_path, message, *options)


def interact(monkeypatch, data, path, prompts, tmp_path, *options):
    (tmp_path / "prompts").write_text(prompts)
    arguments = (data, *TASK, "--path", path, "--input", tmp_path / "prompts", "--cpu")
    run_fairseq(monkeypatch, "interactive", *arguments, "--max-len-b", "5", *options)


def test_prompts_that_are_typed(monkeypatch, capsys, whole, story, tmp_path):
    with pytest.raises(UserError, match=r"prompt 1 is empty: it must have at least one word\."):
        interact(monkeypatch, whole, story, "\n", tmp_path)
    message = r"line 1 of the input .* prompt has 41 tokens, .* at most 38: .* --truncate-source"
    with pytest.raises(UserError, match=message):
        interact(monkeypatch, whole, story, "door " * 40, tmp_path)
    capsys.readouterr()
    interact(monkeypatch, whole, story, "door " * 40, tmp_path, "--truncate-source")
    assert capsys.readouterr().out.count("\nH-0\t") == 1
    # fairseq reads words that are not in the dictionary as <unk>
    interact(monkeypatch, whole, story, "dragons sleep", tmp_path)
    assert "S-0\t<unk> <unk>" in capsys.readouterr().out


def changed_dictionaries():
    """Side -> how its words change -> what is said of it."""
    order = "the same words in another order"
    filler = r"one of the two was padded with madeupword\.\.\.: prepare with --padding-factor 1"
    other = "prepared with another vocabulary threshold, or from other training text"
    return [
        ("wp_source", lambda words: words[::-1], rf"the source dictionary of the data .*{order}"),
        ("wp_target", lambda words: [*words, "madeupword0000", "madeupword0001"], filler),
        ("wp_source", lambda words: [*words, "dragon"], rf"of the data folder has \d+ .*{other}"),
    ]


@pytest.mark.parametrize(("side", "change", "message"), changed_dictionaries())
def test_dictionaries_that_do_not_fit(monkeypatch, data, story, tmp_path, side, change, message):
    path = data / f"dict.{side}.txt"
    save_words(change(list_words(dictionary_of(path))), path)
    arguments = (data, *TASK, "--path", story, "--gen-subset", "valid", "--cpu")
    with pytest.raises(UserError, match=message):
        run_fairseq(monkeypatch, "generate", *arguments)
    refuse_to_train(
        data, tmp_path, f"--pretrained-checkpoint {story}: .*{message}", *fusion_of(story)
    )
    # a resumed run: fairseq wraps the error, but prints ours
    shutil.copytree(story.parent, tmp_path / "resumed")
    with pytest.raises(Exception, match=r"do not fit|Cannot load") as caught:
        train(data, tmp_path / "resumed", "--max-epoch", "2")
    assert isinstance(caught.value.__context__, UserError)
    assert re.search(message, str(caught.value.__context__))


def renamed(story, path, arch, **task):
    """A checkpoint as another architecture saves it, with the weights' names of a story model."""
    state = torch.load(story)
    state["cfg"]["model"]["_name"] = arch
    torch.save(state, path)
    return path


def test_pretrained_checkpoints_that_are_none(whole, story, tmp_path):
    files = {name: tmp_path / f"{name}.pt" for name in ("missing", "text", "cut", "m_rnn", "lm")}
    files["text"].write_text("no checkpoint")
    files["cut"].write_bytes(story.read_bytes()[:5000])
    for arch in ("m_rnn", "transformer", "fconv_self_att_wp"):
        files[arch] = renamed(story, tmp_path / f"{arch}.pt", arch)
    save_text_model(files["lm"], "gcnn_lm_tiny")
    of_arch = "must be of --arch conv_story or one of its sizes, but is of "
    for name, message in {
        "missing": "no such file",
        "text": "cannot be loaded safely",
        "cut": "cannot be loaded safely",
        "m_rnn": rf"{of_arch}m_rnn\.",
        "transformer": rf"{of_arch}transformer\.",
        "fconv_self_att_wp": f"{of_arch}fconv_self_att_wp; convert it first: fairseq-mm convert",
        "lm": rf"{of_arch}gcnn_lm_tiny\.",
    }.items():
        message = rf"^--pretrained-checkpoint {files[name]}: {message}"
        refuse_to_train(whole, tmp_path, message, *fusion_of(files[name]))


def test_pretrained_checkpoints_that_do_not_fit(whole, story, tmp_path):
    fusion = train(whole, tmp_path / "fusion", *fusion_of(story))
    message = ", a fusion model itself"
    refuse_to_train(whole, tmp_path, message, *fusion_of(fusion))
