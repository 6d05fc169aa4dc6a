"""`fairseq-mm frequencies`: document frequencies in a data folder, and what refuses them."""

import errno
from argparse import Namespace
from collections import Counter

import numpy as np
import pytest
from toy_data import make_captions_folder, make_videos_folder, make_visual_stories_folder
from toy_story_models import make_story_folder

from fairseq_mm.cli.main import main
from fairseq_mm.data.binarised_text import load_binarised_text, load_dictionary
from fairseq_mm.data.reward_text import RewardText
from fairseq_mm.data.subwords import Subwords
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.document_frequencies import read_frequencies
from fairseq_mm.tasks.video_summarization import VideoSummarizationTask


@pytest.fixture
def folder(tmp_path):
    return make_captions_folder(tmp_path / "data")


def load(path):
    """Counts of n-grams of words, and the number of documents."""
    with np.load(path) as file:
        words = file["words"].tobytes().decode().split("\n")
        counts = {
            tuple(words[i] for i in row if i >= 0): count
            for row, count in zip(file["ngrams"].tolist(), file["counts"].tolist())
        }
        return counts, int(file["documents"])


def naive(items):
    """Counts of the n-grams of texts, each a list of words with its end."""
    counts = Counter()
    for texts in items:
        counts.update(
            {
                tuple(text[i : i + n])
                for text in texts
                for n in range(1, 5)
                for i in range(len(text) - n + 1)
            }
        )
    return counts


def words_of(base, dictionary, ignored=()):
    known = load_dictionary(str(dictionary))
    lines = load_binarised_text(str(base), num_types=len(known), end=known.eos())
    return [
        [known.symbols[token] for token in lines[i].tolist() if known.symbols[token] not in ignored]
        for i in range(len(lines))
    ]


def test_of_captions_an_image_is_a_document(folder, capsys):
    assert main(["frequencies", str(folder)]) in (None, 0)
    path = folder / "train.document_frequencies.npz"
    lines = words_of(folder / "train", folder / "dict.txt")
    assert load(path) == (naive([lines[i : i + 3] for i in range(0, 36, 3)]), 12)
    assert capsys.readouterr().out == f"{path}: {len(load(path)[0])} n-grams of 12 items\n"
    assert any("</s>" in ngram for ngram in load(path)[0])


def test_some_documents_of_another_split(folder):
    command = ["frequencies", str(folder), "--split", "valid", "--documents", "2"]
    assert main(command) in (None, 0)
    lines = words_of(folder / "valid", folder / "dict.txt")
    items = [lines[i : i + 3] for i in (0, 9)]
    assert load(folder / "valid.document_frequencies.npz") == (naive(items), 2)


def test_of_visual_stories_the_separator_is_no_word(tmp_path):
    folder = make_visual_stories_folder(tmp_path / "data")
    assert main(["frequencies", str(folder)]) in (None, 0)
    lines = words_of(folder / "train", folder / "dict.txt", ["<sent>"])
    items = [lines[i : i + 2] for i in range(0, 16, 2)]
    assert load(folder / "train.document_frequencies.npz") == (naive(items), 8)


@pytest.mark.parametrize(
    ("make", "base", "dictionary"),
    [
        (make_story_folder, "train.wp_source-wp_target.wp_target", "dict.wp_target.txt"),
        (make_videos_folder, "train.tran-desc.desc", "dict.desc.txt"),
    ],
)
def test_of_pairs_the_targets_are_counted(tmp_path, make, base, dictionary):
    folder = make(tmp_path / "data")
    assert main(["frequencies", str(folder)]) in (None, 0)
    lines = words_of(folder / base, folder / dictionary)
    assert load(folder / "train.document_frequencies.npz") == (naive([[x] for x in lines]), 8)


class Pieces:
    """Subwords that end where a word ends with an underscore."""

    kind = "gpt2"

    def decode(self, tokens):
        return tokens.replace(" ", "").replace("_", " ").strip()


def test_words_of_subwords_are_text(folder):
    dictionary = load_dictionary(str(folder / "dict.txt"))
    for symbol in ("do", "g_", "runs_"):
        dictionary.add_symbol(symbol)
    do, dog, runs = map(dictionary.index, ("do", "g_", "runs_"))
    text = RewardText(dictionary, subwords=Pieces())
    assert text.words([do, dog, runs, dictionary.eos()]) == ["dog", "runs", "</s>"]
    assert text.words([do, dog, runs]) == ["dog", "runs"]
    assert text.find(["dog"]) == ["dog"] == [text.spell("dog")]
    plain = RewardText(dictionary, ignored=[do])
    assert plain.words([dictionary.bos(), do, runs, dictionary.eos(), dictionary.pad()]) == [runs]
    assert plain.find(["runs_"]) == [runs]
    assert plain.spell(runs) == "runs_"


def test_subwords_of_videos_are_joined_by_the_command_and_by_the_task(tmp_path, monkeypatch):
    folder = make_videos_folder(tmp_path / "data")
    monkeypatch.setattr(Subwords, "load", lambda _: Pieces())
    assert main(["frequencies", str(folder)]) in (None, 0)
    counts, _ = load(folder / "train.document_frequencies.npz")
    # no symbol of these texts ends a word, so each text is one word, with its end
    assert {len(ngram) for ngram in counts} == {1, 2}
    task = Namespace(dictionary=load_dictionary(str(folder / "dict.desc.txt")), subwords=Pieces())
    assert VideoSummarizationTask.reward_text(task).subwords is task.subwords
    task.subwords = Subwords()
    assert VideoSummarizationTask.reward_text(task).subwords is None


def test_an_interrupted_command_leaves_the_old_file(folder, monkeypatch, capsys):
    assert main(["frequencies", str(folder)]) in (None, 0)
    path = folder / "train.document_frequencies.npz"
    before, files = path.read_bytes(), sorted(folder.iterdir())

    def fail(file, **arrays):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with path.open("rb") as reader:
        with monkeypatch.context() as patch:
            patch.setattr(np, "savez_compressed", fail)
            assert status(folder, "--documents", "2") == 2
        assert "cannot be written (No space left on device)" in capsys.readouterr().err
        assert path.read_bytes() == before
        assert sorted(folder.iterdir()) == files
        # a reader of the old file is not disturbed by the new one
        assert status(folder, "--documents", "2") in (None, 0)
        assert reader.read() == before != path.read_bytes()


def read(folder, split="train"):
    return read_frequencies(str(folder), split, find=list, texts="digest")


def test_a_folder_without_the_file_names_the_command(folder):
    with pytest.raises(UserError, match=rf"needs: run fairseq-mm frequencies {folder}$"):
        read(folder)
    with pytest.raises(UserError, match=rf"fairseq-mm frequencies {folder} --split valid$"):
        read(folder, "valid")


@pytest.mark.parametrize("damage", ["cut", "text", "ngrams", "counts"])
def test_a_damaged_file_is_one_line(folder, damage):
    assert main(["frequencies", str(folder)]) in (None, 0)
    path = folder / "train.document_frequencies.npz"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-200])
    elif damage == "text":
        path.write_text("no archive\n")
    else:
        with np.load(path) as file:
            content = dict(file)
        # the number after the last word's, and one document more than there are
        words = content["words"].tobytes().decode().split("\n")
        wrong = {"ngrams": len(words), "counts": content["documents"] + 1}[damage]
        content[damage].flat[0] = wrong
        np.savez(path, **content)
    with pytest.raises(UserError, match="is no file of document frequencies, or damaged: run"):
        read(folder)


def test_other_texts_are_noticed(folder):
    assert main(["frequencies", str(folder)]) in (None, 0)
    with pytest.raises(UserError, match="was counted from other texts than the folder has: run"):
        read(folder)


def status(*arguments):
    try:
        return main(["frequencies", *map(str, arguments)])
    except SystemExit as error:
        return error.code


def test_what_cannot_be_counted_is_one_line(folder, tmp_path, capsys):
    for arguments in (
        [tmp_path / "nowhere"],
        [folder, "--split", "test"],
        [folder, "--documents", "0"],
    ):
        assert status(*arguments) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    (folder / "train.visual_ids").write_text("a\n")
    assert status(folder) == 2
    assert "train.visual_ids" in capsys.readouterr().err
    assert not list(folder.glob("*frequencies*"))
