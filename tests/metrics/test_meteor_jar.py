"""METEOR's jar, for checks: what it is asked, that a missing, failing or hanging Java is one line,
and that its answers are the frozen ones."""

import shutil
from functools import partial

import pytest
from meteor_cases import ALIGNMENTS, ITEMS, SCORES, parse_alignment

from fairseq_mm.errors import UserError
from fairseq_mm.metrics.meteor import Match, align
from fairseq_mm.metrics.meteor import meteor as any_meteor

meteor = partial(any_meteor, jar=True)
HYPOTHESES = ["a dog", "two|||cats"]
REFERENCES = [["a dog", "the dog"], ["two cats"]]


ANSWERS = """
for line in sys.stdin:
    open(os.path.join(os.path.dirname(__file__), "asked"), "a").write(line)
    if line.startswith("SCORE"):
        print("1 2 3", flush=True)
    else:
        print("0.25", "0.5", "0.4", sep="\\n", flush=True)
"""


def test_last_answer_is_the_corpus_score_and_the_others_the_items(java_that, tmp_path):
    java_that(ANSWERS)
    assert meteor(HYPOTHESES, REFERENCES) == (0.4, [0.25, 0.5])
    assert (tmp_path / "asked").read_text().split("\n") == [
        "SCORE ||| a dog ||| the dog ||| a dog",
        "SCORE ||| two cats ||| two cats",
        "EVAL ||| 1 2 3 ||| 1 2 3",
        "",
    ]


def test_task_and_normalisation_reach_the_jar(java_that, tmp_path):
    java_that("open(__file__ + '.arguments', 'w').write(' '.join(sys.argv))" + ANSWERS)
    meteor(HYPOTHESES, REFERENCES, task="hter", normalize=False)
    assert (tmp_path / "java.arguments").read_text().endswith("- - -stdio -l en -t hter")
    meteor(HYPOTHESES, REFERENCES)
    assert (tmp_path / "java.arguments").read_text().endswith("-stdio -l en -t rank -norm")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "print('Error: out of memory', file=sys.stderr); sys.exit(3)",
            r"ended with status 3 after 0 of 2 lines: Error: out of memory$",
        ),
        (
            "sys.stdin.readline(); print('1 2', flush=True); os.kill(os.getpid(), 9)",
            r"ended with status -9 after 1 of 2 lines: it left no",
        ),
        ("time.sleep(60)", r"no answer for 0.5 s after 0 of 2 lines and was ended"),
        (
            ANSWERS.replace('"0.25"', '"Exception: x"'),
            r"must answer with numbers, but said 'Exception: x'",
        ),
    ],
)
def test_broken_java_that_scores_is_one_line(java_that, code, message):
    java_that(code)
    with pytest.raises(UserError, match=message):
        meteor(HYPOTHESES, REFERENCES, timeout=0.5)


def test_missing_java_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="METEOR's jar needs Java, but no `java` is on the PATH"):
        meteor(HYPOTHESES, REFERENCES)


def test_java_that_cannot_start_is_one_line(java_that, tmp_path):
    java_that("")
    (tmp_path / "java").write_text("#!/nowhere/at/all\n")
    with pytest.raises(UserError, match=r"METEOR's Java could not be started: .*java: "):
        meteor(HYPOTHESES, REFERENCES)


@pytest.fixture
def needs_jar():
    if shutil.which("java") is None:
        pytest.skip("no java on the PATH: METEOR's jar cannot run")
    pytest.importorskip("pycocoevalcap")


def test_jar_gives_the_frozen_numbers(needs_jar):
    """One start of Java, a few seconds."""
    hypotheses, references = zip(*ITEMS)
    corpus, scores = meteor(hypotheses, references)
    assert [corpus, *scores] == pytest.approx(SCORES["rank", True], abs=1e-8)


@pytest.mark.slow
def test_jar_gives_the_frozen_numbers_of_all_tasks_and_alignments(needs_jar):
    hypotheses, references = zip(*ITEMS)
    for (task, normalize), expected in SCORES.items():
        corpus, scores = meteor(hypotheses, references, task=task, normalize=normalize)
        assert [corpus, *scores] == pytest.approx(expected, abs=1e-8)
    pairs = [(text.split(), other.split()) for text, texts in ITEMS for other in texts]
    found = align(*zip(*pairs), jar=True)
    assert found == [[Match(*m) for m in parse_alignment(text)] for text in ALIGNMENTS]


def test_alignment_is_asked_for_files_without_normalisation(java_that, tmp_path):
    java_that(
        f"""
open({str(tmp_path / "asked")!r}, "w").write(open(sys.argv[5]).read() + open(sys.argv[6]).read())
open({str(tmp_path / "options")!r}, "w").write(" ".join(sys.argv[7:-1]))
with open(sys.argv[-1] + "-align.out", "w") as out:
    out.write("Alignment\\t1\\t0\\t0\\t0\\t0\\nb a\\na c b\\nLine2Start:Length\\n")
    out.write("0:1\\t\\t\\t1:1\\t\\t\\t0\\t\\t1.0\\n1:2\\t\\t\\t0:1\\t\\t\\t3\\t\\t0.5\\n\\n")
    out.write("Alignment\\t2\\t0\\t0\\t0\\t0\\n\\nz\\nLine2Start:Length\\n\\n")
"""
    )
    found = align([["b", "a"], []], [["a", "c", "b"], ["z"]], jar=True)
    assert found == [[Match(0, 1, 1, 1), Match(1, 2, 0, 1)], []]
    assert (tmp_path / "asked").read_text() == "b a\n\na c b\nz\n"
    assert (tmp_path / "options").read_text() == "-l en -writeAlignments -q -f"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "sys.exit(print('Error: full', file=sys.stderr) or 3)",
            "status 3 .* Error: full",
        ),
        ("", r"an alignment for each of 2 pairs, but after 0 of them there is none \(.*align.out"),
        (
            "open(sys.argv[-1] + '-align.out', 'w').write('A\\nb a\\na c b\\nL\\n0:1 1:1\\n\\n')",
            r"but after 1 of them there is none \(another pair's texts\)",
        ),
        (
            "open(sys.argv[-1] + '-align.out', 'w').write('A\\nb a\\na c b\\nL\\nx:1 1:1\\n\\n')",
            r"but after 0 of them there is none \(invalid literal",
        ),
        ("time.sleep(60)", "had not aligned all pairs after 1.5 s and was ended"),
    ],
)
def test_broken_java_is_one_line(java_that, code, message):
    java_that(code)
    with pytest.raises(UserError, match=message):
        align([["b", "a"], ["z"]], [["a", "c", "b"], ["z"]], timeout=0.5, jar=True)
