"""Reads `einsum` equations of attention: the letters of batch, queries, keys and features."""

from __future__ import annotations

from typing import Any

import torch


def scores(equation: str, operands: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return queries and keys as (batch…, rows, features) if the equation is their product with the keys'
    rows last, else `None`.
    """
    read = _read(equation, operands)
    if read is None:
        return None
    (one, first), (other, second), out = read
    rows, columns = _only(one, other), _only(other, one)
    over = [letter for letter in one if letter in other and letter not in out]
    if len(rows) != 1 or len(columns) != 1 or len(over) != 1:
        return None
    batch = [letter for letter in out if letter in one and letter in other]
    if out == [*batch, *columns, *rows]:
        (one, first), (other, second), rows, columns = (other, second), (one, first), columns, rows
    if out != [*batch, *rows, *columns]:
        return None
    return _ordered(first, one, [*batch, *rows, *over]), _ordered(second, other, [*batch, *columns, *over])


def attended(equation: str, weights: int, operands: tuple[Any, ...]) -> tuple[torch.Tensor, list[int]] | None:
    """Return values as (batch…, keys, features) and the order of the result's dimensions, if the equation
    multiplies the weights (operand number `weights`) with values, else `None`.
    """
    read = _read(equation, operands)
    if read is None:
        return None
    pairs, out = read[:2], read[2]
    (mine, _), (other, values) = pairs[weights], pairs[1 - weights]
    *batch, rows, over = mine
    features = _only(other, mine)
    whole = [*batch, over, *features]
    if (
        len(features) != 1
        or sorted(other) != sorted(whole)
        or sorted(out) != sorted([*batch, rows, *features])
    ):
        return None
    made = [*batch, rows, *features]
    return _ordered(values, other, whole), [made.index(letter) for letter in out]


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


def _only(one: list[str], other: list[str]) -> list[str]:
    return [letter for letter in one if letter not in other]


def _ordered(tensor: torch.Tensor, letters: list[str], wanted: list[str]) -> torch.Tensor:
    return tensor if letters == wanted else tensor.permute([letters.index(letter) for letter in wanted])
