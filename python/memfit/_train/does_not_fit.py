"""Errors of a step that cannot be run, with hints."""

from __future__ import annotations

from .faults import Fault, StepDoesNotFit

_REASONS = {
    "one-sample": "a single sample does not fit into the device's memory",
    "whole": (
        "the whole batch does not fit, and `optimizer-in-backward` cannot be combined with micro-batches"
    ),
    "too-often": "out of memory even with the smallest micro-batches",
}


def ranks_error(rank: int, lost: str) -> StepDoesNotFit:
    """Return the error of a step that failed on `rank`; `lost` is this rank's own error message, if it has
    one.
    """
    if lost:
        return StepDoesNotFit(
            f"{lost}; parameters are as they were before the step\n"
            "hint: let every rank call the model the same number of times, with the same collectives in the same order"
        )
    return StepDoesNotFit(
        f"rank {rank} cannot continue; this rank's parameters are as they were before the step\n"
        "hint: see the error of that rank"
    )


# Why a batch has to be split.
ASKED = "`micro_batch` asks to split the batch"
TOO_LARGE = "the whole batch does not fit"
PIPED = "a pipeline splits the batch"
SHARED = "the plan splits the batch over ranks"


def division_error(text: str, why: str, message: str = "") -> StepDoesNotFit:
    """Return the error of a batch that has to be split, where that changes training results."""
    return StepDoesNotFit(
        f"{why}, but {text}\nparameters, buffers and random numbers are as they were before the step"
        + (f"\n{message}" if message else "")
    )


def memory_error(reason: str, fault: Fault, found: str, can_retry: bool) -> StepDoesNotFit:
    """Return the error of a step that ran out of memory; `found` says what would help this model."""
    why = _REASONS.get(reason, "out of memory")
    if not can_retry:
        why += (
            ", and with this PyTorch version, FSDP2 cannot continue after a failure (2.15 has "
            "`FSDPModule.reset_iter_state`)"
        )
    return StepDoesNotFit(
        f"{why}; parameters, buffers and random numbers are as they were before the step\n"
        + (f"{found}\n" if found else "")
        + 'hint: `memfit.Step(..., levers={"checkpointing": "blocks"})` applies a lever to this model, and '
        "`memfit plan --gpu NAME -- python train.py` searches for the fastest plan that fits\n"
        f"{fault.message}"
    )
