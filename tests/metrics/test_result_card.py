"""The record of how a result was computed."""

import hashlib
import json

from fairseq_mm.metrics.hypotheses import decoding_settings
from fairseq_mm.metrics.result_card import result_card


def test_the_card_names_the_files_that_were_used(tmp_path):
    texts = tmp_path / "texts.jsonl"
    texts.write_text(json.dumps({"hypothesis": "a dog", "options": {"beam": 3}}) + "\n")
    card = result_card(
        command="fairseq-mm score", files={"texts": str(texts), "tags": None}, generated=str(texts)
    )
    assert card["command"] == "fairseq-mm score"
    assert card["files"] == {
        "texts": {
            "path": str(texts),
            "bytes": texts.stat().st_size,
            "sha256": hashlib.sha256(texts.read_bytes()).hexdigest(),
        }
    }
    assert card["decoding"] == {"beam": 3}
    assert {"python", "fairseq-mm", "torch"} <= set(card["versions"])
    assert "decoding" not in result_card(command="x", files={}, generated=None)


def test_settings_are_read_from_the_first_line(tmp_path):
    path = tmp_path / "texts"
    for content, expected in (
        ('{"options": {"beam": 5}}\n{"options": {"beam": 7}}\n', {"beam": 5}),
        ('{"options": [1]}\n', {}),
        ('{"hypothesis": "a dog"}\n', {}),
        ('{"options": \n', {}),
        ("a dog runs\n", {}),
        ("", {}),
    ):
        path.write_text(content)
        assert decoding_settings(str(path)) == expected
