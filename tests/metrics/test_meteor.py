"""METEOR's process: what it is asked, and that a missing, failing or hanging Java is one line."""

import shutil
import sys

import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.metrics.meteor import meteor

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


def test_failing_java_is_one_line_with_its_message(java_that):
    java_that("print('Error: out of memory', file=sys.stderr); sys.exit(3)")
    with pytest.raises(
        UserError, match=r"ended with status 3 after 0 of 2 lines: Error: out of memory$"
    ):
        meteor(HYPOTHESES, REFERENCES)


def test_killed_java_is_one_line(java_that):
    java_that("sys.stdin.readline(); print('1 2', flush=True); os.kill(os.getpid(), 9)")
    with pytest.raises(UserError, match=r"ended with status -9 after 1 of 2 lines: it left no"):
        meteor(HYPOTHESES, REFERENCES)


def test_hanging_java_is_ended(java_that):
    java_that("time.sleep(60)")
    with pytest.raises(UserError, match=r"no answer for 0.5 s after 0 of 2 lines and was ended"):
        meteor(HYPOTHESES, REFERENCES, timeout=0.5)


def test_answer_that_is_no_number_is_one_line(java_that):
    java_that(ANSWERS.replace('"0.25"', '"Exception: x"'))
    with pytest.raises(UserError, match=r"must answer with numbers, but said 'Exception: x'"):
        meteor(HYPOTHESES, REFERENCES)


def test_missing_java_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="METEOR needs Java, but no `java` is on the PATH"):
        meteor(HYPOTHESES, REFERENCES)


def test_java_that_cannot_start_is_one_line(java_that, tmp_path):
    java_that("")
    (tmp_path / "java").write_text("#!/nowhere/at/all\n")
    with pytest.raises(UserError, match=r"METEOR's Java could not be started: .*java: "):
        meteor(HYPOTHESES, REFERENCES)


def test_missing_package_names_the_extra(monkeypatch):
    if shutil.which("java") is None:
        pytest.skip("no java on the PATH: the message about Java comes first")
    monkeypatch.setitem(sys.modules, "pycocoevalcap", None)
    with pytest.raises(UserError, match=r"METEOR needs the package pycocoevalcap.*\[eval\]"):
        meteor(HYPOTHESES, REFERENCES)


def test_missing_jar_is_one_line(java_that, monkeypatch, tmp_path):
    java_that("")
    import pycocoevalcap

    monkeypatch.setattr(pycocoevalcap, "__path__", [str(tmp_path)])
    with pytest.raises(UserError, match=r"jar must be meteor/meteor-1.5.jar in .* is not there"):
        meteor(HYPOTHESES, REFERENCES)


def test_wrong_arguments_are_refused():
    with pytest.raises(UserError, match=r"`task` must be one of rank, .* but is 'coco' instead"):
        meteor(HYPOTHESES, REFERENCES, task="coco")
    with pytest.raises(UserError, match="2 hypotheses, 1 lists of references"):
        meteor(HYPOTHESES, REFERENCES[:1])
    assert meteor([], []) == (0.0, [])


def test_several_references_score_as_the_best_of_each_alone():
    """Real answers of the jar, for the protocol of VIST: one start of Java for all."""
    if shutil.which("java") is None:
        pytest.skip("no java on the PATH: METEOR's jar cannot run")
    pytest.importorskip("pycocoevalcap")
    story = "the dog ran home . we had fun ."
    references = ["a dog runs away . [male] laughed .", "we had fun . the dog ran .", "nobody came"]
    _, (best, *alone, wordless) = meteor(
        [story] * 4 + [""],
        [references, *([text] for text in references), ["a"]],
        task="hter",
        normalize=False,
    )
    assert best == max(alone) == alone[1]
    assert 0 < alone[0] < best
    assert alone[2] == wordless == 0
