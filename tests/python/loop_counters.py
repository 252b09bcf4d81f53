"""Places where people keep a count of calls, for `test_step_counters.py`."""

from __future__ import annotations

import collections
import dataclasses
import functools
import queue
import types
from collections.abc import Callable
from typing import Any

import numpy

# What counts a call and returns the count, and what reads the count.
Count = tuple[Callable[[], float], Callable[[], float]]

calls = 0


def variable() -> Count:
    count = 0

    def call() -> float:
        nonlocal count
        count += 1
        return count

    return call, lambda: count


def of_container(container: Any, key: Any) -> Count:
    """A number in a container that a closure refers to."""

    def call() -> float:
        container[key] += 1
        return float(container[key])

    return call, lambda: float(container[key])


def inner_list() -> Count:
    state = {"schedule": {"steps": [0]}}

    def call() -> float:
        state["schedule"]["steps"][0] += 1
        return state["schedule"]["steps"][0]

    return call, lambda: state["schedule"]["steps"][0]


def list_of_losses() -> Count:
    kept: dict[str, list[float]] = {"loss": []}

    def call() -> float:
        kept["loss"].append(0.5)
        return len(kept["loss"])

    return call, lambda: len(kept["loss"])


def of_object(holder: Any) -> Count:
    def call() -> float:
        holder.count += 1
        return holder.count

    return call, lambda: holder.count


class Plain:
    def __init__(self) -> None:
        self.count = 0

    def step(self) -> float:
        self.count += 1
        return self.count


class Slotted:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


@dataclasses.dataclass
class Recorded:
    count: int = 0


def of_class() -> Count:
    return of_object(type("Schedule", (Plain,), {"count": 0, "__module__": __name__}))


def method() -> Count:
    schedule = Plain()
    return schedule.step, lambda: schedule.count


def in_list() -> Count:
    schedules = [Plain()]
    return lambda: schedules[0].step(), lambda: schedules[0].count


def of_function() -> Count:
    def call() -> float:
        call.count += 1  # type: ignore[attr-defined]
        return call.count  # type: ignore[attr-defined]

    call.count = 0  # type: ignore[attr-defined]
    return call, lambda: call.count  # type: ignore[attr-defined]


def default() -> Count:
    def call(box: list[int] = [0]) -> float:  # noqa: B006
        box[0] += 1
        return box[0]

    return call, lambda: call.__defaults__[0][0]  # type: ignore[index]


def argument() -> Count:
    def call(box: list[int]) -> float:
        box[0] += 1
        return box[0]

    box = [0]
    return functools.partial(call, box), lambda: box[0]


def of_queue() -> Count:
    kept: queue.Queue[int] = queue.Queue()

    def call() -> float:
        kept.put(1)
        return kept.qsize()

    return call, kept.qsize


def of_module() -> Count:
    def call() -> float:
        import loop_counters

        loop_counters.calls += 1
        return loop_counters.calls

    global calls
    calls = 0
    return call, lambda: calls


COUNTS: dict[str, Callable[[], Count]] = {
    "a variable": variable,
    "a dictionary": lambda: of_container({"step": 0}, "step"),
    "a counter": lambda: of_container(collections.Counter(), "step"),
    "an array": lambda: of_container(numpy.zeros(1), 0),
    "a list in dictionaries": inner_list,
    "a list of losses in a dictionary": list_of_losses,
    "a namespace": lambda: of_object(types.SimpleNamespace(count=0)),
    "an object with slots": lambda: of_object(Slotted()),
    "a data class": lambda: of_object(Recorded()),
    "a class": of_class,
    "a method": method,
    "an object in a list": in_list,
    "a function": of_function,
    "a default argument": default,
    "an argument": argument,
    "a queue": of_queue,
    "a module": of_module,
}
