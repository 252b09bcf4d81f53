"""Remarks that the probe makes of its own failures."""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
from typing import Any

import pytest
import torch
from runs import ROOT
from test_remarks import rows


class Session:
    """A session for the probe's parts, with a torch that does nothing."""

    def __init__(self) -> None:
        self.remarks: list[str] = []
        self.torch, self.watch, self.steps = Broken(), None, None

    def remark(self, name: str, *_: Any, **__: Any) -> None:
        self.remarks.append(name)


class Broken:
    """Whatever is asked of it fails."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name} is broken")


class Items:
    """A data set of which no more can be looked at than time allows."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> list[int]:
        return [index]


class Unlike(Items):
    """The same, of items that differ in size."""

    def __getitem__(self, index: int) -> list[int]:
        return [index] * (index % 7)


def no_watcher(probe: Any, session: Session) -> None:
    session.setup, session.host = {}, None
    probe("session").Session.arm(session)


def no_sizes(probe: Any, session: Session) -> None:
    sizes = probe("sizes").Sizes.__new__(probe("sizes").Sizes)
    sizes.session, sizes.theirs, sizes.record = session, False, Broken().__getattr__
    sizes._start()


def no_place(probe: Any, session: Session) -> None:
    probe("oom").OutOfMemory(session)._attach()


def probe_label(probe: Any, session: Session) -> None:
    modules = probe("modules").Modules.__new__(probe("modules").Modules)
    modules.session, modules.known = session, {}
    modules._meet(object())


def probe_failed(probe: Any, session: Session) -> None:
    probe("oom").OutOfMemory(session)._observe(0, 1, 2, 3)


def largest(probe: Any, session: Session, items: Any) -> None:
    sampler = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(items), 4, False)
    iterator = type("Iterator", (), {"_dataset_kind": 0, "_dataset": items, "_index_sampler": sampler})()
    iterator._auto_collation, iterator._collate_fn, iterator._pin_memory = True, list, False
    session.remark(probe("largest").largest_batch(iterator).remark)


def all_alike(probe: Any, session: Session) -> None:
    largest(probe, session, Items())


def largest_seen(probe: Any, session: Session) -> None:
    largest(probe, session, Unlike())


def probe_unarmed(probe: Any, session: Session) -> None:
    module = probe("session")
    module.channel.remark = session.remark
    module.channel.send_torch = lambda _: None
    module.begin(Broken())


def plan_failed(probe: Any, session: Session) -> None:
    probe("session").Session._begin_backward(session, (1, 2), True)


class Trainer:
    """As much of the Trainer of transformers as a plan's micro-batch needs."""

    def __init__(self, batch: Any) -> None:
        self._train_batch_size = batch
        self.args = type(
            "Args", (), {"gradient_accumulation_steps": 1, "per_device_train_batch_size": batch}
        )()

    def train(self) -> None:
        pass


class Planned:
    """A plan with a micro-batch of four."""

    def __init__(self, session: Session) -> None:
        self.session, self.micro_batch, self.by_name = session, 4, False
        self.accumulate, self.most, self.facts = 1, None, type("Facts", (), {})()
        self.library = None


def train(probe: Any, session: Session, batch: Any) -> None:
    kind = type("Kind", (Trainer,), {"train": Trainer.train})
    probe("trainers")._transformers(Planned(session), kind)
    kind(batch).train()


def trainer_settings(probe: Any, session: Session) -> None:
    train(probe, session, 16)


def trainer_kept(probe: Any, session: Session) -> None:
    train(probe, session, "sixteen")


BROUGHT_ABOUT = {
    "no-watcher": no_watcher,
    "no-sizes": no_sizes,
    "no-place": no_place,
    "probe-label": probe_label,
    "probe-failed": probe_failed,
    "probe-unarmed": probe_unarmed,
    "plan-failed": plan_failed,
    "trainer-kept": trainer_kept,
    "trainer-settings": trainer_settings,
    "all-alike": all_alike,
    "largest-seen": largest_seen,
}


@pytest.mark.parametrize("name", BROUGHT_ABOUT)
def test_failures_of_the_probe_are_reported(name: str, probe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    if name in ("all-alike", "largest-seen"):
        # The time for looking at items ends when enough of them have been seen.
        ticks = itertools.count()
        monkeypatch.setattr(probe("largest").time, "monotonic", lambda: next(ticks) / 100)
    with contextlib.suppress(AttributeError):
        BROUGHT_ABOUT[name](probe, session)
    assert session.remarks == [name]


def test_each_remark_of_the_probe_fills_its_text() -> None:
    """Every call of `remark` in the probe names a remark of the table, and each placeholder of its text."""
    texts = {name: text for name, text, _ in rows()}
    calls = 0
    for file in sorted((ROOT / "python/memfit/_probe").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            named = getattr(getattr(node, "func", None), "attr", None) == "remark"
            if not (named and isinstance(node.args[0], ast.Constant)):
                continue
            values = {keyword.arg for keyword in node.keywords} | ({"error"} if node.args[1:] else set())
            wanted = set(re.findall(r"{(\w+)}", texts[node.args[0].value]))
            assert values == wanted, f"{file.name}:{node.lineno}"
            calls += 1
    assert calls > 20
