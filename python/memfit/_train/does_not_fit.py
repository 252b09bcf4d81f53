"""The errors of a step that cannot be run, with the way out."""

from __future__ import annotations

from .faults import Fault, StepDoesNotFit

_WHY = {
    "one-sample": "a single sample does not fit into the device's memory",
    "whole": "the batch does not fit whole, and `optimizer-in-backward` cannot run it in parts",
    "too-often": "memory did not suffice, however small the parts were",
}


def of_ranks(rank: int, lost: str) -> StepDoesNotFit:
    """The error of a step that failed on `rank`; `lost` is what this rank saw of it, if it was its own."""
    if lost:
        return StepDoesNotFit(
            f"{lost}; parameters are as they were before the step\n"
            "hint: every rank has to come to the same collectives, as often as it runs the model"
        )
    return StepDoesNotFit(
        f"rank {rank} cannot go on; this rank's parameters are as they were before the step\n"
        "hint: its own error says why"
    )


def of_division(text: str, *, asked: bool, message: str = "") -> StepDoesNotFit:
    """The error of a batch that would have to be divided, which changes the training."""
    why = "`micro_batch` asks for a divided batch" if asked else "the batch does not fit whole"
    return StepDoesNotFit(
        f"{why}, and {text}\nparameters, buffers and random numbers are as they were before the step"
        + (f"\n{message}" if message else "")
    )


def of_memory(reason: str, fault: Fault, found: str, can_retry: bool) -> StepDoesNotFit:
    """The error of a step that found no memory; `found` is what would help this model."""
    why = _WHY.get(reason, "memory did not suffice")
    if not can_retry:
        why += ", and with this PyTorch, FSDP2 cannot go on after a failure (2.15 has `FSDPModule.reset_iter_state`)"
    return StepDoesNotFit(
        f"{why}; parameters, buffers and random numbers are as they were before the step\n"
        + (f"{found}\n" if found else "")
        + 'hint: `memfit.Step(..., levers={"checkpointing": "blocks"})` applies a lever to this model, and `memfit plan --gpu '
        f"NAME -- python train.py` looks for the fastest that fit\n{fault.message}"
    )
