"""Commands that write a page print their own lines on standard error, and nothing of libraries."""

import re
import subprocess

import pytest
from golden_commands import fairseq_mm

STORED = "--data data/captions --split valid"
COMMANDS = {
    "report": f"report {STORED} --hypotheses {{out}}/h.jsonl --metrics bleu,rouge_l,cider "
    "--images data/images --output {out}/page.html",
    "retrieve plot": "retrieve plot --store {out}/v.h5 --checkpoint captions/vse_gru --near dog "
    "--word red --word blue --top 2 --device cpu --output {out}/page.html",
    "tell": "tell data/stories --checkpoint stories/glac --split valid --limit 1 "
    "--max-words-per-sentence 3 --device cpu --html {out}/page.html --output {out}/o.txt",
    "summarize": "summarize --checkpoint videos/pointer_generator --beam 1 --max-len-b 4 --device "
    "cpu data/videos/valid.transcripts.jsonl --html {out}/page.html --output {out}/o.txt",
}
OWN = re.compile(
    r"(wrote|embedded|read|loaded|\S*(/h\.jsonl|page\.html): ).*|\S+: .*(line|summar|stor|text).*"
)


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_but_our_lines_is_on_stderr(started_python, root, tmp_path, name):
    (tmp_path / "h.jsonl").write_text('{"id": "valid0.jpg", "hypothesis": "a red dog"}\n')
    if name == "retrieve plot":
        words = f"--checkpoint {root}/captions/vse_gru --device cpu --output {tmp_path}/v.h5"
        embed = f"embed {root}/data/captions --split valid {words}"
        assert fairseq_mm(*embed.split()).status == 0
    words = COMMANDS[name].format(out=tmp_path).split()
    command = [started_python, "-m", "fairseq_mm", *words]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").stat().st_size > 1000
    lines = done.stderr.splitlines()
    assert not re.search(r"^(DEBUG|INFO|WARNING):|\bWarning\b|Traceback", done.stderr, re.MULTILINE)
    assert [line for line in lines if not OWN.fullmatch(line)] == []
