"""Mutants: each is another program, and stands at its place in the source."""

import ast

import pytest
import run_mutants

SOURCE = '''
"""Strings with ä are longer in bytes."""

LIMIT = 3  # outside of functions: no test of one function sees it


def count(words, least=2):
    """Count é."""
    total = 0
    for word in words:
        if not word or len(word) >= least and word != "ä":
            total += 1 if word.islower() else 2 * len(word)
    if total > 10:
        raise ValueError(f"{total + 1} is above {10}")
    return total - 1
'''


@pytest.fixture
def mutants(tmp_path):
    (tmp_path / "fairseq_mm" / "metrics").mkdir(parents=True)
    (tmp_path / "fairseq_mm" / "metrics" / "a.py").write_text(SOURCE, encoding="utf-8")
    return run_mutants.list_mutants(tmp_path, "metrics")


def test_each_mutant_is_another_program(mutants):
    programs = set()
    for mutant in mutants:
        end = mutant.place + len(mutant.before)
        assert SOURCE[mutant.place : end] == mutant.before
        changed = SOURCE[: mutant.place] + mutant.after + SOURCE[end:]
        programs.add(ast.dump(ast.parse(changed)))
    assert len(programs) == len(mutants) > 15
    assert ast.dump(ast.parse(SOURCE)) not in programs


def test_every_kind_of_change_is_made_but_none_in_messages_and_defaults(mutants):
    changes = {(mutant.before, mutant.after) for mutant in mutants}
    assert changes >= {
        ("total > 10", "(total >= 10)"),
        ("total > 10", "(not (total > 10))"),
        ("not word", "bool(word)"),
        ("total - 1", "((total) + (1))"),
        ("2 * len(word)", "((2) / (len(word)))"),
        ("0", "1"),
    }
    assert {mutant.function for mutant in mutants} == {"count"}
    assert not any("above" in mutant.before or mutant.line == 5 for mutant in mutants)
    assert all(mutant.line > 7 for mutant in mutants)


def test_the_tests_of_a_module_come_first():
    first, *_ = run_mutants.choose_tests(run_mutants.ROOT, "fairseq_mm/metrics/cider.py")
    assert first == "tests/metrics/test_cider.py"
    chosen = run_mutants.choose_tests(run_mutants.ROOT, "fairseq_mm/modules/linear.py")
    assert "tests/models/test_contracts.py" in chosen
