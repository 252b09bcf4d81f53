"""Reads `einsum` equations of attention: the letters of batch, queries, keys and features."""

from __future__ import annotations

from typing import Any

import torch


def scores(equation: str, operands: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Recognise `scores = queries @ keysᵀ`. Return queries and keys, both permuted to (batch…, rows,
    features); `None` if the equation is something else.
    """
    read = _read(equation, operands)
    if read is None:
        return None
    (left, queries), (right, keys), out = read
    rows, columns = _only(left, right), _only(right, left)
    contracted = [letter for letter in left if letter in right and letter not in out]
    if len(rows) != 1 or len(columns) != 1 or len(contracted) != 1:
        return None
    batch = [letter for letter in out if letter in left and letter in right]
    if out == [*batch, *columns, *rows]:
        (left, queries), (right, keys), rows, columns = (right, keys), (left, queries), columns, rows
    if out != [*batch, *rows, *columns]:
        return None
    return (
        _ordered(queries, left, [*batch, *rows, *contracted]),
        _ordered(keys, right, [*batch, *columns, *contracted]),
    )


def attended(equation: str, weights: int, operands: tuple[Any, ...]) -> tuple[torch.Tensor, list[int]] | None:
    """Return values as (batch…, keys, features) and the order of the result's dimensions, if the equation
    multiplies the weights (operand number `weights`) with values, else `None`.
    """
    read = _read(equation, operands)
    if read is None:
        return None
    pairs, out = read[:2], read[2]
    (weight_letters, _), (value_letters, values) = pairs[weights], pairs[1 - weights]
    *batch, rows, contracted = weight_letters
    features = _only(value_letters, weight_letters)
    expected = [*batch, contracted, *features]
    result = [*batch, rows, *features]
    if len(features) != 1 or sorted(value_letters) != sorted(expected) or sorted(out) != sorted(result):
        return None
    return _ordered(values, value_letters, expected), [result.index(letter) for letter in out]


Operand = tuple[list[str], torch.Tensor]


def _read(equation: str, operands: tuple[Any, ...]) -> tuple[Operand, Operand, list[str]] | None:
    """Return two operands with their letters and the result's letters. The equation must be explicit and must
    not sum within one operand; else return `None`.
    """
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    left, arrow, out = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != 2 or len(operands) != 2 or "." in equation:
        return None
    if not all(isinstance(operand, torch.Tensor) for operand in operands):
        return None
    for letters, operand in zip((*terms, out), (*operands, None), strict=True):
        if len(set(letters)) != len(letters) or (operand is not None and operand.dim() != len(letters)):
            return None
    return (list(terms[0]), operands[0]), (list(terms[1]), operands[1]), list(out)


def _only(letters: list[str], excluded: list[str]) -> list[str]:
    return [letter for letter in letters if letter not in excluded]


def _ordered(tensor: torch.Tensor, letters: list[str], wanted: list[str]) -> torch.Tensor:
    return tensor if letters == wanted else tensor.permute([letters.index(letter) for letter in wanted])
