"""A step under an out-of-memory error at every allocation in turn, on a virtual card, for several models.

    python scripts/train/faults.py            writes the counts into docs/training.md
    python scripts/train/faults.py --print    only prints them

Each model's training step is run once for every device allocation that it makes, and that one fails. The caching allocator is
off, so that each tensor is an allocation of the device's. A fault is survived if the step came to its end, with all samples of
its batch in the attempt that counted, one step of the optimizer's, and as much memory in use afterwards as without the fault.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "training.md"
BEGIN, END = "<!-- faults: scripts/train/faults.py -->", "<!-- end of faults -->"
SAMPLES = 8


def models() -> dict[str, Callable[[], Any]]:
    import torch
    from torch import nn

    def tokens() -> Any:
        return torch.randint(0, 100, (SAMPLES, 12)), torch.randint(0, 5, (SAMPLES,))

    def pictures() -> Any:
        return torch.randn(SAMPLES, 3, 16, 16), torch.randint(0, 5, (SAMPLES,))

    def rows() -> Any:
        return torch.randn(SAMPLES, 32), torch.randint(0, 5, (SAMPLES,))

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.body = nn.Embedding(100, 16), nn.LSTM(16, 16, 1, batch_first=True)
            self.head = nn.Linear(16, 5)

        def forward(self, x: Any) -> Any:
            return self.head(self.body(self.embed(x))[0][:, -1])

    class Attentive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(100, 32)
            layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True)
            self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
            self.head = nn.Linear(32, 5)

        def forward(self, x: Any) -> Any:
            return self.head(self.body(self.embed(x)).mean(1))

    def dense() -> Any:
        return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 5))

    def convolutional() -> Any:
        blocks = [
            (nn.Conv2d(3 if i == 0 else 8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for i in range(1)
        ]
        return nn.Sequential(
            *(layer for block in blocks for layer in block),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 5),
        )

    def grouped() -> Any:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.GELU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 5)
        )

    fp16 = {"precision": "fp16", "clip_grad_norm": 1.0}
    return {
        "dense layers with dropout, AdamW": lambda: (dense(), rows(), {}),
        "batch normalisation, fp16 with GradScaler, clipping": lambda: (convolutional(), pictures(), fp16),
        "convolutions with group normalisation, bf16": lambda: (grouped(), pictures(), {"precision": "bf16"}),
        "LSTM, two batches a step": lambda: (Recurrent(), tokens(), {"accumulate": 2}),
        "attention with dropout, fp16 with GradScaler": lambda: (
            Attentive(),
            tokens(),
            {"precision": "fp16"},
        ),
        "attention, checkpointed blocks": lambda: (
            Attentive(),
            tokens(),
            {"levers": {"checkpointing": "blocks"}},
        ),
    }


def on_device() -> list[dict[str, Any]]:
    """In the process that has the virtual card."""
    import warnings

    import memfit
    import torch
    from torch.nn import functional

    warnings.simplefilter("ignore")
    fail = ctypes.CDLL("libcuda.so.1").memfit_vgpu_fail_allocations
    fail.restype = ctypes.c_uint64
    fail.argtypes = [ctypes.c_uint64, ctypes.c_uint64]

    def free() -> int:
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0]

    found = []
    for name, build in models().items():
        attempts: list[int] = []

        def loss(model: Any, batch: Any, attempts: list[int] = attempts) -> Any:
            inputs, labels = batch
            attempts.append(len(inputs))
            return functional.cross_entropy(model(inputs), labels)

        def begin(build: Callable[[], Any] = build, loss: Any = loss) -> tuple[Any, Any, int]:
            torch.manual_seed(0)
            model, batch, settings = build()
            model.cuda()
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
            return (
                memfit.Step(model, optimizer, loss, backup=True, **settings),
                batch,
                settings.get("accumulate", 1),
            )

        def window(step: Any, batch: Any, length: int) -> Any:
            return [step(batch) for _ in range(length)][-1]

        counts = {"allocations": 0, "survived": 0, "declared": 0, "lost": 0, "left": 0, "retries": 0}
        # Once without a fault: as much memory has to be free after every other one.
        step, batch, length = begin()
        window(step, batch, length)
        expected = free()
        at = 0
        while True:
            step = None
            step, batch, length = begin()
            attempts.clear()
            before = fail(at, 1)
            try:
                result = window(step, batch, length)
            except memfit.MemfitError:
                result = None
            if fail(0, 0) - before <= at:
                break
            counts["allocations"] += 1
            if result is None:
                counts["declared"] += 1
                # It is as it was, and goes on.
                result = window(step, batch, length)
            else:
                counts["retries"] += result.retries
            last = sum(attempts[-result.micro_batches :])
            whole = last == SAMPLES and result.stepped and step.steps == 1
            counts["survived" if whole else "lost"] += 1
            result = None
            counts["left"] += int(free() < expected)
            at += 1
        found.append({"model": name, **counts})
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    return found


def table(found: list[dict[str, Any]]) -> str:
    head = (
        "| model | faults | the step whole in the end | of these declared first, state as before | samples lost | memory left behind |\n"
        "|---|---|---|---|---|---|\n"
    )
    lines = [
        f"| {row['model']} | {row['allocations']} | {row['survived']} | {row['declared']} | {row['lost']} | {row['left']} |"
        for row in found
    ]
    total = [
        str(sum(row[key] for row in found)) for key in ("allocations", "survived", "declared", "lost", "left")
    ]
    return head + "\n".join([*lines, f"| all | {' | '.join(total)} |"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--print", action="store_true", help="leave the page alone")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        Path(arguments.child).write_text(json.dumps(on_device()))
        return
    command = os.environ.get("MEMFIT_COMMAND") or shutil.which("memfit") or "memfit"
    answer = ROOT / "target" / "faults.json"
    answer.parent.mkdir(exist_ok=True)
    run = [
        command,
        "run",
        "--gpu",
        "t4",
        "--steps",
        "0",
        "--timeout",
        "0",
        "--",
        sys.executable,
        __file__,
        "--child",
        str(answer),
    ]
    answer.unlink(missing_ok=True)
    # The run's own verdict is about the faults that were asked for, so the answer alone counts.
    done = subprocess.run(
        run,
        check=False,
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        capture_output=True,
        text=True,
    )
    if not answer.is_file():
        sys.exit(f"the run gave no answer:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    text = table(json.loads(answer.read_text()))
    print(text)
    if not arguments.print:
        page = PAGE.read_text()
        inside = re.compile(re.escape(BEGIN) + ".*" + re.escape(END), re.DOTALL)
        PAGE.write_text(inside.sub(lambda _: f"{BEGIN}\n{text}\n{END}", page))


if __name__ == "__main__":
    main()
