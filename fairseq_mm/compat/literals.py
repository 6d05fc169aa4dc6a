"""Reads options that fairseq would evaluate as Python, without evaluating them.

These options need only literals, sums of lists, and products of a list and a number, such as
``[(512, 4)] * 4 + [(768, 4)] * 2``.
"""

import ast
import operator
import sys
from typing import Any

from fairseq_mm.errors import UserError

_OPERATORS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def parse_literal(text: str) -> Any:
    """Return the value of a Python literal, which may contain the operators + - * / //. Raise
    ValueError if the text is anything else."""
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, TypeError, RecursionError, MemoryError, ArithmeticError):
        raise ValueError("no literal") from None


def _value(node: ast.AST) -> Any:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, (ast.List, ast.Tuple)):
        items = [_value(item) for item in node.elts]
        return items if isinstance(node, ast.List) else tuple(items)
    return ast.literal_eval(node)


def evaluate_literal(text: Any, *scopes: Any) -> Any:
    """Return the value of a literal; replaces ``eval`` in fairseq's modules."""
    if not isinstance(text, str):
        raise TypeError("eval() arg 1 must be a string")
    try:
        return parse_literal(text)
    except ValueError:
        raise UserError(
            "an option that fairseq evaluates must be a literal (numbers, strings, True, False, "
            f"None, and lists, tuples and dictionaries of them), but is {text[:100]!r}."
        ) from None


def guard_evaluation() -> None:
    """Replace ``eval`` in all modules of fairseq, which evaluate options of checkpoints with it and
    would run any code in them."""
    for name, module in list(sys.modules.items()):
        if name.startswith("fairseq."):
            vars(module)["eval"] = evaluate_literal
