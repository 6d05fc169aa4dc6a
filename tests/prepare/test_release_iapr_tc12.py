"""IAPR TC-12's annotation files, in the official layout and encoding."""

import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.prepare.releases.iapr_tc12 import read_iapr_tc12


@pytest.fixture
def annotations(tmp_path):
    descriptions = {
        "00/25": "a yellow building with white columns;\n two palms & a caf\xe9 in front of it;",
        "00/112": "a boat on a lake",
        "31/31120": " ; ",
        "31/31500": "three llamas; a boat;",
    }
    for name, description in descriptions.items():
        path = tmp_path / "annotations_complete_eng" / f"{name}.eng"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            f"<DOC>\n<DOCNO>annotations/{name}.eng</DOCNO>\n<TITLE>Plaza</TITLE>\n"
            f"<DESCRIPTION>{description}</DESCRIPTION>\n<NOTES></NOTES>\n"
            f"<LOCATION>Cochabamba, Bolivia</LOCATION>\n<DATE>1 February 2002</DATE>\n"
            f"<IMAGE>images/{name}.jpg</IMAGE>\n<THUMBNAIL>thumbnails/{name}.jpg</THUMBNAIL>\n"
            "</DOC>\n".encode("iso-8859-1")
        )
    return tmp_path / "annotations_complete_eng"


@pytest.fixture
def lists(tmp_path):
    files = {"train": tmp_path / "train_list.txt", "test": tmp_path / "test_list.txt"}
    files["train"].write_text("31/31500\n00/25\n31/31120\n")
    files["test"].write_text("images/00/112.jpg\n")
    return files


def test_every_sentence_of_a_description_is_a_caption(annotations, lists):
    corpus = read_iapr_tc12(annotations, lists)
    found = {split: [item.id for item in items] for split, items in corpus.splits.items()}
    assert found == {"train": ["31500.jpg", "25.jpg"], "test": ["112.jpg"]}
    assert corpus.splits["train"][1].texts["captions"] == [
        "a yellow building with white columns",
        "two palms & a caf\xe9 in front of it",
    ]


def test_images_without_description_and_counts_are_listed(annotations, lists):
    corpus = read_iapr_tc12(annotations, lists)
    assert corpus.exceptions == {"listed without captions": ["31120.jpg"]}
    assert corpus.deviations() == [
        "train: 2 images found, 17,665 expected (iapr_tc12, split guillaumin)",
        "test: 1 images found, 1,962 expected (iapr_tc12, split guillaumin)",
    ]


def test_malformed_input_is_refused(annotations, lists, tmp_path):
    with pytest.raises(UserError, match="none: has captions of none of the 3 images"):
        read_iapr_tc12(tmp_path / "none", lists)
    lists["test"].write_text("00/112\nimages/00/112.jpg\n")
    with pytest.raises(UserError, match=r"test_list.txt:2: image 112.jpg .*, at .*list.txt:1"):
        read_iapr_tc12(annotations, lists)
    path = annotations / "40"
    path.mkdir()
    (path / "40000.eng").write_text("<IMAGE>images/00/25.jpg</IMAGE><DESCRIPTION></DESCRIPTION>")
    (path / "40001.eng").write_text("<IMAGE>images/40/40001.jpg</IMAGE>")
    with pytest.raises(UserError, match=r"40000.eng: image 25.jpg was given before, at .*25.eng"):
        read_iapr_tc12(annotations, lists)
    (path / "40000.eng").unlink()
    with pytest.raises(UserError, match=r"40001.eng: field <DESCRIPTION> is missing"):
        read_iapr_tc12(annotations, lists)
