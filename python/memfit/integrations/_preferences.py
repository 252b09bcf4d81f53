"""Batches of TRL's preference trainers, whose samples are pairs of answers."""

from __future__ import annotations

from typing import Any

import torch


def has_pairs(trainer: Any) -> bool:
    """Return `True` if a batch's rows are chosen answers followed by rejected ones, as in newer
    `DPOTrainer`s.
    """
    collator = getattr(trainer, "data_collator", None)
    return type(collator).__name__ in (
        "DataCollatorForPreference",
        "DataCollatorForVisionPreference",
    ) and any(each.__name__ == "DPOTrainer" for each in type(trainer).__mro__)


def _is_concatenated(inputs: Any) -> bool:
    return "input_ids" in inputs and "chosen_input_ids" not in inputs


def count_pairs(inputs: Any) -> int:
    if _is_concatenated(inputs):
        return int(inputs["input_ids"].size(0)) // 2
    return int(inputs["chosen_input_ids"].size(0))


def split_pairs(inputs: Any, start: int, stop: int) -> Any:
    """Return the pairs from start to stop."""
    pairs = count_pairs(inputs)

    def cut(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() == 0:
            return value
        if _is_concatenated(inputs) and value.size(0) == 2 * pairs:
            return torch.cat([value[start:stop], value[pairs + start : pairs + stop]])
        return value[start:stop] if value.size(0) == pairs else value

    return {name: cut(value) for name, value in inputs.items()}
