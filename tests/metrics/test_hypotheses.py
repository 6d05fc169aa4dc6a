"""Output of fairseq-generate that is not what it seems is refused."""

import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.metrics.hypotheses import read_hypotheses, read_settings

IDS = [f"{i}.jpg" for i in range(12)]
REFERENCES = [f"a dog number{i} <<unk>>" for i in range(12)]


def written(tmp_path, hypotheses, last="Generate valid with beam=1: BLEU4 = 9.9"):
    path = tmp_path / "generated.txt"
    lines = [
        f"T-{i}\t{reference}\nH-{i}\t-0.5\t{hypothesis}\n"
        for i, (reference, hypothesis) in enumerate(zip(REFERENCES, hypotheses))
    ]
    path.write_text("".join(lines) + last + "\n")
    return path


def read(path):
    return read_hypotheses(str(path), item_ids=IDS, visual_ids=IDS, split="valid")


def test_texts_that_all_equal_their_references_are_scored_and_named(tmp_path):
    """An overfitted model generates them; without the log, --score-reference looks the same."""
    repeated = [text.replace("<<unk>>", "<unk>") for text in REFERENCES]
    found = read(written(tmp_path, repeated))
    assert list(found.texts.values()) == repeated
    assert found.equal_to_targets == IDS
    log = "| fairseq_cli.generate | {'score_reference': False}\n"
    assert read(written(tmp_path, repeated, last=log)).equal_to_targets == []


def test_text_of_another_split_is_refused_by_the_last_line(tmp_path):
    path = written(tmp_path, ["a cat"] * 12, last="Generate test with beam=3: BLEU4 = 9.9")
    with pytest.raises(UserError, match="generated for the split test, but --split is valid"):
        read(path)


def test_lines_of_id_tab_and_text_are_joined_by_id(tmp_path):
    path = tmp_path / "captions.txt"
    path.write_text("photos/3.jpg\ta cat\ta nearest caption\n1.jpg\ta dog\n1.jpg\ta pig\n")
    found = read(path)
    assert found.texts == {"photos/3.jpg": "a cat", "1.jpg": "a dog"}
    assert found.repeated == ["1.jpg"]


def test_lines_of_which_most_have_no_id_are_texts(tmp_path):
    path = tmp_path / "captions.txt"
    lines = [f"{i}.jpg\ta cat" for i in range(6)] + ["a dog"] * 6
    path.write_text("".join(f"{line}\n" for line in lines))
    assert read(path).texts == dict(zip(IDS, lines))


def test_a_list_of_ids_and_texts_that_is_cut_short_is_no_list_of_texts(tmp_path):
    path = tmp_path / "captions.txt"
    path.write_text("".join(f"photos/{i}.jpg\ta cat\n" for i in range(11)) + "photos/1")
    with pytest.raises(UserError, match=r"captions.txt:12: must be an id, a tab and a text, as"):
        read(path)


@pytest.mark.parametrize("text", ['{"id": "1.jpg", "caption": "a cat"}\n', "1.jpg\ta cat\n"])
def test_a_byte_order_mark_is_no_text(tmp_path, text):
    path = tmp_path / "captions.txt"
    path.write_text(f"\ufeff{text}", encoding="utf-8")
    assert read(path).texts == {"1.jpg": "a cat"}


def test_settings_of_a_log_are_literals_or_stay_text():
    log = "{'beam': 5, 'sampling': False, 'gen_subset': 'test', 'temperature': inf, 'seed': 1}"
    settings = read_settings(log, ["beam", "sampling", "gen_subset", "temperature", "lenpen"])
    assert settings == {"beam": 5, "sampling": False, "gen_subset": "test", "temperature": "inf"}
    assert read_settings("Namespace(beam=2, nbest=1)", ["beam"]) == {"beam": 2}
