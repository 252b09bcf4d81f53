"""`step.probe(loader)`: what it runs, what it foresees, and that it leaves nothing behind."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import memfit
import pytest
import torch
from ragged import RAGGED
from support import on_device
from training import Transformer, flat, mean_loss

MIB = 2**20


def test_a_probe_restores_all_state() -> None:
    torch.manual_seed(0)
    model = Transformer(0.1)
    step = memfit.Step(model, torch.optim.AdamW(model.parameters()), mean_loss, micro_batch=2)
    data = [(torch.randint(0, 11, (4, length)), torch.randint(0, 5, (4,))) for length in (3, 5, 9, 4)]
    before, state = flat(model), torch.get_rng_state()
    probe = step.probe(data)
    assert (probe.batches, probe.complete, probe.shapes, probe.items, probe.micro_batch) == (4, True, 4, 4, 2)
    assert "[9]" in probe.largest
    assert "4 batches in 4 shapes" in str(probe)
    assert torch.equal(flat(model), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert step.steps == 0
    step(data[0])
    with pytest.raises(ValueError, match="no batch"):
        step.probe([])


class Drawn(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that are drawn and counted as they are read."""

    def __init__(self) -> None:
        self.read, self.cache = 0, {}
        self.numbers = torch.Generator().manual_seed(3)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.read += 1
        self.cache[index] = self.read
        return torch.randint(0, 11, (5,), generator=self.numbers), torch.tensor(index % 5)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_probe_leaves_its_loader_as_it_was(workers: int) -> None:
    """The training sees the batches that it would have seen without the probe."""

    def batches(probes: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Transformer(0.1)
        step = memfit.Step(model, torch.optim.AdamW(model.parameters()), mean_loss, micro_batch=2)
        data = Drawn()
        loader = torch.utils.data.DataLoader(
            data,
            4,
            shuffle=True,
            generator=torch.Generator().manual_seed(5),
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        if probes:
            step.probe(loader)
            assert (data.read, data.cache) == (0, {})
        return [torch.cat([inputs, labels[:, None]], 1) for inputs, labels in loader]

    for plain, probed in zip(batches(False), batches(True), strict=True):
        assert torch.equal(plain, probed)


def test_a_probe_refuses_an_iterator() -> None:
    model = Transformer()
    step = memfit.Step(model, torch.optim.AdamW(model.parameters()), mean_loss)
    data = [(torch.randint(0, 11, (4, 3)), torch.randint(0, 5, (4,)))]
    with pytest.raises(ValueError, match="is an iterator"):
        step.probe(iter(data))
    with pytest.raises(ValueError, match="is an iterator"):
        step.probe(each for each in data)


def test_ragged_sequences_run_to_the_end(tmp_path: Path) -> None:
    """The longest sequences of all come last, and the micro-batch of each batch follows its own length."""
    found = on_device(
        RAGGED
        + textwrap.dedent("""
        lengths = [64, 200, 120, 330, 512, 90, 700, 256, 900, 1000, 1100, 1200]
        data = [torch.randint(0, 8000, (48, length)) for length in lengths]
        runs = {}
        for way in ("probed", "unseen"):
            model, step = begin()
            before = ooms()
            told = None
            if way == "probed":
                told = step.probe(data)
            tried = ooms() - before
            parts = [step(batch).micro_batches for batch in data]
            runs[way] = dict(
                ooms=ooms() - before - tried, tried=tried, parts=parts, retries=step.retries, steps=step.steps,
                micro=told and told.micro_batch, peak=told and told.peak, budget=told and told.budget,
                most=torch.cuda.max_memory_allocated(),
            )
            del model, step
            memfit.release()
            torch.cuda.reset_peak_memory_stats()
        answer(**runs)
        """),
        tmp_path,
        "t4",
    ).said
    for way, run in found.items():
        assert (run["tried"], run["ooms"], run["retries"]) == (0, 0, 0), (way, json.dumps(run))
        assert run["steps"] == 12
        assert run["parts"][0] == 1 or way == "unseen"
        assert run["parts"][-1] > 2, "the longest do not fit whole"
    probed = found["probed"]
    assert probed["peak"] <= probed["budget"]
    # What was taken in the end is what was foreseen for the largest batch, or less.
    assert 0.8 * probed["peak"] < probed["most"] <= probed["peak"], json.dumps(probed)
