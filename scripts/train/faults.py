"""Inject an out-of-memory error at each allocation and at each operation of a step.

    python scripts/train/faults.py    continues where it stopped, and writes the counts into docs/training.md
    python scripts/train/faults.py --again    starts from the beginning
    python scripts/train/faults.py --print    runs the remaining cases, and does not change the page
    python scripts/train/faults.py --so-far   runs nothing, and writes the counts found so far

On a virtual GPU, each device allocation of a step fails in turn. The caching allocator is off, so that each
tensor is an allocation of its own. A step survives a fault if its successful attempt had all samples of its
batches, the optimizer stepped once, and no more memory is in use afterwards than without the fault.

On the CPU, where values are real, each operation of a step fails in turn. A step survives a fault if
parameters, buffers and optimizer state are then bit-identical to those of a training run with the same split.

Both tests run in the first step of training, in which the optimizer creates its state, and in the second.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "training.md"
BEGIN, END = "<!-- faults: scripts/train/faults.py -->", "<!-- end of faults -->"
SAMPLES = 8
COUNTS = ("faults", "retried", "declared", "lost", "left", "different")
# Faults after which what was found is written down.
_OFTEN = 20
# A step that meets more faults than this before it is done does not end by itself.
_MOST = 5000


def kept(place: str) -> Path:
    """Return the file for the results of a place."""
    return ROOT / "target" / f"faults-{place}.json"


def models() -> dict[str, Callable[[], Any]]:
    """A model, a batch and the settings of `memfit.Step`, by what they have in them."""
    import torch
    from torch import nn

    def tokens() -> Any:
        return torch.randint(0, 50, (SAMPLES, 8)), torch.randint(0, 5, (SAMPLES,))

    def pictures() -> Any:
        return torch.randn(SAMPLES, 3, 12, 12), torch.randint(0, 5, (SAMPLES,))

    def rows() -> Any:
        return torch.randn(SAMPLES, 16), torch.randint(0, 5, (SAMPLES,))

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.body = nn.Embedding(50, 16), nn.LSTM(16, 16, 1, batch_first=True)
            self.head = nn.Linear(16, 5)

        def forward(self, x: Any) -> Any:
            return self.head(self.body(self.embed(x))[0][:, -1])

    class Attentive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 16)
            layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True)
            self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(16, 5)

        def forward(self, x: Any) -> Any:
            return self.head(self.body(self.embed(x)).mean(1))

    def dense() -> Any:
        return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 5))

    def normalised() -> Any:
        return nn.Sequential(
            *(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            *(nn.Dropout(0.2), nn.Linear(4, 5)),
        )

    def grouped() -> Any:
        return nn.Sequential(
            *(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.GELU(), nn.Flatten(), nn.Linear(4 * 100, 5))
        )

    half = {"precision": "fp16", "clip_grad_norm": 1.0}
    return {
        "dense layers, dropout": lambda: (dense(), rows(), {}),
        "convolution, batch normalisation, dropout, fp16 with GradScaler, clipping": lambda: (
            *(normalised(), pictures(), half),
        ),
        "convolution, group normalisation, bf16": lambda: (grouped(), pictures(), {"precision": "bf16"}),
        "LSTM, two batches a step": lambda: (Recurrent(), tokens(), {"accumulate": 2}),
        "attention, dropout, fp16 with GradScaler": lambda: (Attentive(), tokens(), half),
        "attention, dropout, checkpointed blocks": lambda: (
            *(Attentive(), tokens(), {"levers": {"checkpointing": "blocks"}}),
        ),
    }


@dataclass
class Training:
    """One model's training, at the step that is to fail."""

    step: Any
    model: Any
    optimizer: Any
    batch: Any
    length: int
    attempts: list[int]
    broken: bool = False

    def window(self) -> list[Any]:
        """Run the batches of one optimizer step, and return their results."""
        return [self.step(self.batch) for _ in range(self.length)]

    def whole_after(self) -> list[Any]:
        """Run a window. Return no results if it failed with an error that guarantees unchanged state."""
        import memfit

        try:
            return self.window()
        except memfit.MemfitError:
            return []
        except Exception:
            # After a memory fault, a step may not fail with any other error.
            traceback.print_exc()
            self.broken = True
            return []


class Case:
    """A model, and the number of steps before the fault."""

    def __init__(self, build: Callable[[], Any], before: int, device: str) -> None:
        import torch

        self.before = before
        torch.manual_seed(0)
        self._model, self._batch, self._settings = build()
        self._model.to(device)
        self._device = device

    def begin(self, micro_batch: int | None = None) -> Training:
        """Train some steps in whole batches, and continue with this micro-batch size."""
        import memfit
        import torch
        from torch.nn import functional

        attempts: list[int] = []

        def loss(model: Any, batch: Any) -> Any:
            inputs, labels = batch
            attempts.append(len(inputs))
            return functional.cross_entropy(model(inputs), labels)

        model = copy.deepcopy(self._model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
        settings = {**self._settings, "backup": True}
        if settings.get("precision") == "fp16":
            settings["scaler"] = torch.amp.GradScaler(self._device)
        length = int(settings.get("accumulate", 1))
        step = memfit.Step(model, optimizer, loss, **settings)
        training = Training(step, model, optimizer, self._batch, length, attempts)
        torch.manual_seed(1)
        for _ in range(self.before):
            training.window()
        attempts.clear()
        if micro_batch is not None:
            step.close()
            training.step = memfit.Step(model, optimizer, loss, micro_batch=micro_batch, **settings)
        return training


def outcome(training: Training, results: list[Any] | None) -> tuple[dict[str, int], Any]:
    """Return the effects of a fault so far, and the final result of the window: none if the training is
    broken. A window that was declared unchanged runs once more.
    """
    found = dict.fromkeys(COUNTS, 0)
    found["faults"], found["declared"] = 1, int(not results)
    if training.broken:
        found["lost"] = found["different"] = 1
        return found, None
    results = results or training.window()
    found["retried"] = int(any(result.retries for result in results))
    return found, results[-1]


def on_card() -> Callable[[Case, int], Iterator[dict[str, int]]]:
    """Let each allocation of a step fail in turn, in the process with the virtual GPU."""
    import torch

    fail = ctypes.CDLL("libcuda.so.1").memfit_vgpu_fail_allocations
    fail.restype = ctypes.c_uint64
    fail.argtypes = [ctypes.c_uint64, ctypes.c_uint64]

    def free() -> int:
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0]

    def faults(case: Case, at: int) -> Iterator[dict[str, int]]:
        # Free memory after a window without a fault, as a reference.
        training: Training | None = case.begin()
        training.window()
        expected = free()
        while at < _MOST:
            training = None
            training = case.begin()
            before = fail(at, 1)
            results = training.whole_after()
            if fail(0, 0) - before <= at:
                return
            found, last = outcome(training, results)
            if last is not None:
                samples = sum(training.attempts[-last.micro_batches :])
                whole = samples == SAMPLES and last.stepped and training.step.steps == case.before + 1
                found["lost"] = int(not whole)
                results = last = None
                found["left"] = int(free() < expected)
            yield found
            at += 1

    return faults


def on_cpu() -> Callable[[Case, int], Iterator[dict[str, int]]]:
    """Let each operation of a step fail in turn, and compare the resulting values."""
    import torch

    sys.path.insert(0, str(ROOT / "tests/python"))
    from training import FailAt

    def state(training: Training) -> list[Any]:
        known = [each for entries in training.optimizer.state.values() for each in entries.values()]
        return [*training.model.state_dict().values(), *(each for each in known if torch.is_tensor(each))]

    def faults(case: Case, at: int) -> Iterator[dict[str, int]]:
        references = []
        for size in (None, SAMPLES // 2):
            training = case.begin(size)
            training.window()
            references.append(state(training))
        while at < _MOST:
            training = case.begin()
            with FailAt(at + 1) as fault:
                results = training.whole_after()
            if not fault.raised:
                return
            found, last = outcome(training, results)
            if last is not None:
                found["lost"] = int(not last.stepped or training.step.steps != case.before + 1)
                expected, now = references[min(last.micro_batches, 2) - 1], state(training)
                same = len(now) == len(expected) and all(map(torch.equal, now, expected))
                found["different"] = int(not same)
            yield found
            at += 1

    return faults


def search(place: str) -> None:
    """Goes on with all that was not finished, and writes down what it finds."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    device, faults = ("cuda", on_card()) if place == "card" else ("cpu", on_cpu())
    # Freeze modules imported with the first step and all current objects: otherwise garbage collection takes
    # far longer than a step.
    for build in models().values():
        Case(build, 1, device).begin().window()
    gc.collect()
    gc.freeze()
    for name, build in models().items():
        for before in (0, 1):
            known = read(place)
            key = f"{place}: {name}: {before}"
            row = known.setdefault(key, {**dict.fromkeys(COUNTS, 0), "done": False})
            if row["done"]:
                continue
            for found in faults(Case(build, before, device), row["faults"]):
                for count in COUNTS:
                    row[count] += found[count]
                if any(found[bad] for bad in ("lost", "left", "different")):
                    print(f"{key}: fault {row['faults']}: {found}", file=sys.stderr, flush=True)
                if row["faults"] % _OFTEN == 0:
                    keep(known, place)
            row["done"] = True
            keep(known, place)
            print(f"{key}: {row}", file=sys.stderr, flush=True)


def read(place: str) -> dict[str, Any]:
    """Return the results so far."""
    return json.loads(kept(place).read_text()) if kept(place).is_file() else {}


def keep(known: dict[str, Any], place: str) -> None:
    """Writes down what is known, whole or not at all."""
    fresh = kept(place).with_suffix(".new")
    fresh.write_text(json.dumps(known))
    fresh.replace(kept(place))


def table(known: dict[str, Any]) -> str:
    head = (
        "| model, with AdamW | allocations that failed | steps completed | samples lost | memory left behind "
        "| operations that failed on the CPU | bit-identical results |\n|---|---|---|---|---|---|---|\n"
    )
    lines, sums, missing = [], [0] * 6, []
    for name in models():
        here: dict[str, dict[str, int]] = {}
        if not all(
            known.get(f"{place}: {name}: {before}", {}).get("done")
            for place in ("card", "cpu")
            for before in (0, 1)
        ):
            missing.append(name)
            continue
        for place in ("card", "cpu"):
            rows = [known[f"{place}: {name}: {before}"] for before in (0, 1)]
            here[place] = {count: sum(row[count] for row in rows) for count in COUNTS}
        card, cpu = here["card"], here["cpu"]
        whole, equal = card["faults"] - card["lost"], cpu["faults"] - cpu["different"]
        numbers = [card["faults"], whole, card["lost"], card["left"], cpu["faults"], equal]
        sums = [sum_ + number for sum_, number in zip(sums, numbers, strict=True)]
        lines.append(f"| {name} | {' | '.join(f'{number:,}' for number in numbers)} |")
    text = head + "\n".join([*lines, f"| all | {' | '.join(f'{number:,}' for number in sums)} |"])
    return f"{text}\n\nNot run to the end yet: {'; '.join(missing)}." if missing else text


def child(place: str) -> None:
    """Runs one place's faults in a process of its own."""
    import tempfile

    run = [sys.executable, __file__, "--child", place]
    environment = dict(os.environ)
    if place == "card":
        command = os.environ.get("MEMFIT_COMMAND") or shutil.which("memfit") or "memfit"
        run = [command, "run", "--gpu", "t4", "--steps", "0", "--timeout", "0", "--", *run]
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    with tempfile.TemporaryFile("w+") as output:
        # The run's own verdict is about the faults that were asked for, so what was found alone counts.
        subprocess.run(run, check=False, env=environment, stdout=output)
        output.seek(0)
        said = output.read()
    known = read(place)
    missing = [
        name
        for name in models()
        for before in (0, 1)
        if not known.get(f"{place}: {name}: {before}", {}).get("done")
    ]
    if missing:
        sys.exit(f"not done on the {place}: {', '.join(dict.fromkeys(missing))}\n{said[-2000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--print", action="store_true", help="leave the page alone")
    parser.add_argument("--again", action="store_true", help="forget what was found before")
    parser.add_argument("--so-far", action="store_true", help="run nothing, write what was found")
    parser.add_argument("--child", choices=("card", "cpu"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        search(arguments.child)
        return
    (ROOT / "target").mkdir(exist_ok=True)
    places = ("cpu", "card")
    if arguments.again:
        for place in places:
            kept(place).unlink(missing_ok=True)
    for place in () if arguments.so_far else places:
        child(place)
    text = table({**read("cpu"), **read("card")})
    print(text)
    if not arguments.print:
        page = PAGE.read_text()
        inside = re.compile(re.escape(BEGIN) + ".*" + re.escape(END), re.DOTALL)
        PAGE.write_text(inside.sub(lambda _: f"{BEGIN}\n{text}\n{END}", page))


if __name__ == "__main__":
    main()
