"""What was run."""

import hashlib
import json
import re
from types import SimpleNamespace

from fairseq_mm.cli.report import System, card_section


def make_card(path):
    system = System("", str(path), {}, {})
    references = SimpleNamespace(path=str(path))
    return card_section(SimpleNamespace(data=path.parent), [system], references)


def test_files_stand_with_their_hashes(tmp_path):
    path = tmp_path / "generate.txt"
    path.write_text("a text\n")
    section = make_card(path)
    digest = hashlib.sha256(b"a text\n").hexdigest()[:16]
    assert f"generate.txt, 7 bytes, sha256 {digest}" in section.body
    assert "dictionary" not in section.body
    assert "torch" in section.body


def test_checkpoints_and_stores_of_the_hypotheses_stand_beside_them(tmp_path):
    path, store = tmp_path / "captions.jsonl", tmp_path / "features.h5"
    store.write_bytes(b"12345")
    options = {"path": "absent.pt", "features": str(store), "beam": 3}
    path.write_text(json.dumps({"id": 1, "options": options}) + "\n")
    body = make_card(path).body
    for role, value in (
        ("checkpoints", r"absent\.pt \(No such file or directory\)"),
        ("stores", r"\S+features\.h5, 5 bytes, sha256 \w{16}"),
        ("decoding", r".*&#34;beam&#34;: 3.*"),
    ):
        assert re.search(rf">{role}<.*?>\s*(<\w+>)?{value}\s*<", body, re.DOTALL)
