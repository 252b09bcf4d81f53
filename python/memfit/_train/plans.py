"""Applies a plan's levers to a step's model, optimizer and loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from memfit import _core
from memfit._levers import Applied, CannotApply, Target, apply
from memfit._levers.saying import warn
from memfit._parallel import Parallel, start
from memfit._parallel.world import check_world

from .optimizers import members

# Levers that set a precision, with its name.
PRECISION_LEVERS = {"autocast-bf16": "bf16", "autocast-fp16": "fp16"}

Plan = "str | os.PathLike[str] | Mapping[str, Any]"


class Planned:
    """A plan combined with the keyword arguments; these take precedence."""

    def __init__(
        self,
        plan: Any,
        levers: Mapping[str, Any] | None,
        target: Target,
        *,
        micro_batch: int | None,
        accumulate: int | None,
        precision: str | None,
    ) -> None:
        read = read_plan(plan, target.place())
        chosen = levers_of(read, levers)
        self.parallel = _start(read, target.place())
        if self.parallel is not None:
            chosen["shard"] = dict(read["parallel"])
        chosen = {name: value for name, value in chosen.items() if value is not False and value is not None}
        of_plan = [PRECISION_LEVERS[name] for name in list(chosen) if name in PRECISION_LEVERS]
        if precision is not None:
            chosen = {
                name: value for name, value in chosen.items() if name not in (*PRECISION_LEVERS, "tf32")
            }
            of_plan = []
        conflict = _core.lever_conflict(list(chosen))
        if conflict is not None:
            raise ValueError(f"{conflict}\nhint: add what is needed, or leave one of them out")
        self.precision = precision if precision is not None else (of_plan[0] if of_plan else None)
        size = chosen.pop("micro-batch", None)
        self.micro_batch = micro_batch if micro_batch is not None else read.get("micro_batch", size)
        self.accumulate = accumulate if accumulate is not None else int(read.get("accumulate", 1))
        # The changes the plan permits, dividing the batch included.
        labels = {each["name"]: each.get("label") for each in read.get("lever", ())}
        self.allow = "changes-training" if labels.get("micro-batch") == "changes-training" else "rounding"
        self.target = target
        if chosen.pop("gradient-as-bucket-view", None):
            target.note(
                "`gradient-as-bucket-view` is not needed: `memfit.Step` frees its all-reduce buckets after "
                "the exchange"
            )
        here = [(name, value) for name, value in chosen.items() if name not in PRECISION_LEVERS]
        try:
            self._applied = apply(target, here)
        except CannotApply as error:
            hint = (
                "change its value, or leave it out of `levers=`"
                if error.lever in (levers or {})
                else "leave it out of the plan, or make a plan for this model"
            )
            raise CannotApply(error.lever, f"{error.why}\nhint: {hint}") from None
        self.names = tuple(chosen)
        self.model = target.model
        self.changed = tuple(
            f"the plan's `{name}` changes the training"
            for name in chosen
            if _core.lever_label(name) == "changes-training"
        )

    @property
    def applied(self) -> Applied:
        return self._applied

    def close(self) -> None:
        """Undo all levers."""
        self._applied.undo()


def _start(plan: Mapping[str, Any], place: torch.device) -> Parallel | None:
    """Return the parallel part of a plan, and start the process group for it."""
    parallel = parallel_of(plan)
    if parallel is not None:
        start(place)
        check_world(parallel)
    return parallel


def parallel_of(plan: Mapping[str, Any]) -> Parallel | None:
    """Return the parallel part of a plan; `None` if the plan is for one process."""
    table = plan.get("parallel")
    parallel = Parallel.from_table(table) if table is not None else None
    return parallel if parallel is not None and parallel.world > 1 else None


def levers_of(plan: Mapping[str, Any], levers: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the levers of a plan that was read, and the given ones, which take precedence."""
    chosen = {each["name"]: each["value"] for each in plan.get("lever", ()) if each.get("value") is not False}
    return {**chosen, **(levers or {})}


def read_plan(plan: Any, place: torch.device) -> Mapping[str, Any]:
    """Read a plan file and show its warnings about this device; return a mapping unchanged, and an empty one
    without a plan.
    """
    if plan is None:
        return {}
    if isinstance(plan, Mapping):
        return plan
    card, capacity = None, None
    if place.type == "cuda":
        properties = torch.cuda.get_device_properties(place)
        card, capacity = str(properties.name), int(properties.total_memory)
    read: Mapping[str, Any] = _core.read_plan(plan, torch=str(torch.__version__), gpu=card, capacity=capacity)
    for text in read["warnings"]:
        warn(text)
    made_for = read["made_for"].get("gpu")
    if card is None and made_for:
        warn(f"the plan was made for {made_for}, but this training runs on the {place.type.upper()}")
    return read


def target_of(model: nn.Module, optimizer: Any, device: torch.device) -> Target:
    """Return the object that a step's levers are applied to."""
    return Target(model, list(members(optimizer)), device=device, in_step=True)
