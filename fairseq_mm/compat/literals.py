"""Parses options whose text fairseq would evaluate as Python, without evaluating it.

Such options need only literals, sums of lists and products of a list and a number, such as
``[(512, 4)] * 4 + [(768, 4)] * 2``.
"""

import ast
from typing import Any

LONGEST_TEXT = 4000  # Python's parser runs out of stack on much longer texts
# a short text, such as [[0] * 1000] * 1000, could otherwise fill the memory
_LONGEST_SEQUENCE = 1000
_MOST_VALUES = 20_000
_LARGEST_NUMBER = 2**63


def parse_literal(text: str, *, computes: bool = True) -> Any:
    """Return the value of a Python literal.

    Args:
        text: Number, string, True, False, None, or a list, tuple or dictionary of such values; also
            sums of lists or tuples, and products of a list or tuple and a number.
        computes: If True, the text may also have ``+``, ``-``, ``*``, ``/`` and ``//`` of numbers.

    Raises:
        ValueError: if the text is not such a literal or has more than 4000 characters, or if its
            value has a list or tuple of more than 1000 items, or more than 20,000 values in all.
    """
    if len(text) > LONGEST_TEXT:
        raise ValueError("too long")
    # not ast.literal_eval, which knows no products and no sums of lists
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body, computes)
    except (SyntaxError, TypeError, RecursionError, MemoryError, ArithmeticError):
        raise ValueError("no literal") from None
    if _count(value) > _MOST_VALUES:
        raise ValueError("too many values")
    return value


def _value(node: ast.AST, computes: bool) -> Any:
    if isinstance(node, ast.Constant):
        return _constant(node.value)
    if isinstance(node, ast.List):
        return [_value(item, computes) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_value(item, computes) for item in node.elts)
    if isinstance(node, ast.Dict):
        # a key is None for ``**other``; such a text is no literal
        keys = [_value(key, computes) for key in node.keys if key is not None]
        values = [_value(value, computes) for value in node.values]
        if len(keys) == len(values):
            return dict(zip(keys, values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        number = _value(node.operand, computes)
        if _is_number(number):
            return -number if isinstance(node.op, ast.USub) else number
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, computes), _value(node.right, computes)
        if _is_number(left) and _is_number(right):
            if computes:
                return _constant(_compute(node.op, left, right))
        else:
            return _combine_sequences(node.op, left, right)
    raise ValueError("no literal")


def _constant(value: Any) -> Any:
    if type(value) in (bool, str, float, type(None)):
        return value
    if type(value) is int and abs(value) < _LARGEST_NUMBER:
        return value
    raise ValueError("no literal")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _compute(operator: ast.operator, left: Any, right: Any) -> Any:
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    if isinstance(operator, ast.Mult):
        return left * right
    if isinstance(operator, ast.Div):
        return left / right
    if isinstance(operator, ast.FloorDiv):
        return left // right
    raise ValueError("no literal")


def _combine_sequences(operator: ast.operator, left: Any, right: Any) -> Any:
    if isinstance(operator, ast.Mult):
        items, times = (right, left) if type(left) is int else (left, right)
        if isinstance(items, (list, tuple)) and type(times) is int:
            if times > _LONGEST_SEQUENCE or len(items) * times > _LONGEST_SEQUENCE:
                raise ValueError("too long")
            return items * times
    are_alike = isinstance(left, (list, tuple)) and type(left) is type(right)
    if isinstance(operator, ast.Add) and are_alike:
        if len(left) + len(right) > _LONGEST_SEQUENCE:
            raise ValueError("too long")
        return left + right
    raise ValueError("no literal")


def _count(value: Any) -> int:
    """Count the values in nested containers; stop counting above the number that is allowed."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if not isinstance(value, (list, tuple)):
        return 1
    total = 1
    for item in value:
        total += _count(item)
        if total > _MOST_VALUES:
            break
    return total
