"""Train with `memfit.Step` on a real GPU: equality, real out-of-memory errors, and what memfit tells of them.

    python scripts/gpu/training.py -o training.json [--jobs 4]
    python scripts/gpu/training.py --page measurements/training-on-gpu.json

Each part is a process of its own:
- `equality`: the training loops of `tests/python/test_step_equivalence.py` in float64 on the GPU, whole and
  in parts; `Step` must give the same weights, or refuse before any weight moves
- `limits`: trainings under a memory limit (`set_per_process_memory_fraction`) that the same loop without
  `Step` exceeds: the steps completed, the retries, and the difference to the weights without a limit
- `explained`: an out-of-memory error of the GPU itself, recorded by `memfit.record`, and its traceback, both
  read by `memfit explain`
- `overhead`: `benches/step.py` on the GPU
- `followed`: steps alone and under `memfit run --gpu local`, in turns
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from compare import memfit_command

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = "memfit.training-on-gpu/1"
SECONDS = 300
EQUALITY_SECONDS = 150  # What is not judged by then is counted as such.
SHARES = (0.9, 0.75, 0.6, 0.45, 0.35)
STEPS = 4


def equality(half: int) -> dict[str, Any]:
    """Judge each loop on the GPU, as the test judges it on the host."""
    sys.path.insert(0, str(ROOT / "tests/python"))
    import test_step_equivalence as test
    import torch
    from torch.utils._pytree import tree_map_only

    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    began = time.monotonic()
    for name in list(test.ALL)[half::2]:
        if time.monotonic() - began > EQUALITY_SECONDS:
            found[name] = "not judged"
            continue
        loop = test.ALL[name]

        def data(generator: torch.Generator, size: int, made: Any = loop.data) -> Any:
            return tree_map_only(torch.Tensor, torch.Tensor.cuda, made(generator, size))

        def build(made: Any = loop.build) -> Any:
            return made().cuda()

        moved = dataclasses.replace(loop, data=data, build=build)
        for micro in (1, 3):
            try:
                generator = torch.Generator().manual_seed(3)
                model = build().double()
                test.plain(moved, copy.deepcopy(model), [data(generator, size) for size in test.SIZES])
            except Exception as error:
                found[name] = f"runs on the host only: {type(error).__name__}: {str(error)[:100]}"
                break
            try:
                found[f"{name}, parts of {micro}"] = test.judge(moved, micro, 3, name in test.DRAWS)
            except Exception as error:
                found[f"{name}, parts of {micro}"] = f"failed: {type(error).__name__}: {str(error)[:300]}"
    return found


def limited(model_name: str, share: float | None, step_used: bool, limit: int = 0) -> dict[str, Any]:
    """Train some steps, with or without `Step` and a limit; return the weights' file and the peak."""
    import measure
    import memfit
    import torch

    torch.manual_seed(0)
    batch = {
        "language": lambda: (torch.randint(32_000, (32, 512), device="cuda"),) * 2,
        "convolutional": lambda: measure.pictures(128),
    }[model_name]
    model = (measure.Language(4) if model_name == "language" else measure.convolutional()).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    capacity = torch.cuda.mem_get_info()[1]
    if limit:
        torch.cuda.set_per_process_memory_fraction(limit / capacity)

    def loss(module: Any, given: Any) -> Any:
        inputs, labels = given
        outputs = module(inputs)
        return torch.nn.functional.cross_entropy(outputs.flatten(0, -2), labels.flatten())

    step = memfit.Step(model, optimizer, loss, allow="changes-training") if step_used else None
    losses: list[float] = []
    parts = 0
    for number in range(STEPS):
        torch.manual_seed(number)
        given = batch()
        if step is None:
            optimizer.zero_grad()
            value = loss(model, given)
            value.backward()
            optimizer.step()
            losses.append(float(value))
            parts += 1
        else:
            result = step(given)
            losses.append(float(result.loss))
            parts += result.micro_batches
    stats = torch.cuda.memory_stats()
    weights = torch.cat([p.detach().double().flatten().cpu() for p in model.parameters()])
    torch.save(weights, weights_file(model_name, share, step_used))
    return {
        "reserved": stats["reserved_bytes.all.peak"],
        "allocated": stats["allocated_bytes.all.peak"],
        "ooms": stats["num_ooms"],
        "losses": losses,
        "parts": parts,
    }


def weights_file(model_name: str, share: float | None, step_used: bool) -> str:
    return f"weights-{model_name}-{share}-{step_used}.pt"


def limits(model_name: str) -> dict[str, Any]:
    """Train below shares of the reserved peak that the plain loop has."""
    import torch

    def train(share: float | None, step_used: bool, limit: int = 0) -> dict[str, Any]:
        return child("limited", model_name, str(share), str(int(step_used)), str(limit))

    plain = train(None, False)
    found: dict[str, Any] = {"plain": plain, "whole": train(None, True), "weights": {}}
    expected = torch.load(weights_file(model_name, None, False))
    for share in SHARES:
        limit = int(plain["reserved"] * share)
        without = "out of memory" if "failed" in train(share, False, limit) else "fits"
        step = train(share, True, limit)
        found[str(share)] = {"limit": limit, "plain": without, "step": step}
        if "failed" not in step:
            weights = torch.load(weights_file(model_name, share, True))
            relative = float((weights - expected).norm() / expected.norm())
            found["weights"][str(share)] = {"relative": relative}
    return found


def explained() -> dict[str, Any]:
    """Run out of memory on the GPU, and let memfit explain it."""
    failing = Path("failing.py")
    failing.write_text(
        "import memfit, sys, torch\n"
        f"sys.path.insert(0, {str(ROOT / 'scripts/gpu')!r})\n"
        "import measure\n"
        "torch.cuda.set_per_process_memory_fraction(0.05)\n"
        "model = measure.Language(6).cuda()\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "def train():\n"
        "    kept = []\n"
        "    for number in range(1000):\n"
        "        inputs, labels = measure.words(8, 512)\n"
        "        outputs = model(inputs)\n"
        "        loss = torch.nn.functional.cross_entropy(outputs.flatten(0, -2), labels.flatten())\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
        "        optimizer.zero_grad()\n"
        "        kept.append(outputs)\n"
        "with memfit.record('oom.memfit'):\n"
        "    train()\n"
    )
    ran = subprocess.run([sys.executable, "failing.py"], capture_output=True, text=True, check=False)
    Path("oom.log").write_text(ran.stderr)
    found: dict[str, Any] = {"traceback": ran.stderr[-3000:]}
    for name in ("oom.memfit", "oom.log"):
        done = subprocess.run(
            [memfit_command(), "explain", name, "--isolated"], capture_output=True, text=True, check=False
        )
        found[name] = {"status": done.returncode, "text": done.stdout[-4000:], "errors": done.stderr[-1000:]}
    run = [memfit_command(), "run", "--gpu", "local", "--steps", "0", "--", sys.executable, "failing.py"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    found["run --gpu local"] = {
        "status": done.returncode,
        "text": done.stdout[-5000:],
        "errors": done.stderr[-2000:],
    }
    done = subprocess.run([memfit_command(), "doctor"], capture_output=True, text=True, check=False)
    found["doctor"] = {"status": done.returncode, "text": done.stdout[-5000:], "errors": done.stderr[-1000:]}
    return found


def overhead() -> list[dict[str, Any]]:
    """Measure what `Step` adds to a step on the GPU."""
    command = [sys.executable, str(ROOT / "benches/step.py"), "--device", "cuda", "--rounds", "5"]
    done = subprocess.run([*command, "--steps", "40"], capture_output=True, text=True, check=True)
    lines = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    # The first line has the names of the columns.
    return [
        {
            "loop": loop,
            "plain_us": int(plain),
            "added_us": int(added),
            "quartiles_us": [int(low), int(high)],
        }
        for loop, plain, added, low, high, _ in lines[1:]
    ]


def followed() -> list[dict[str, Any]]:
    """Time steps alone and followed by memfit, in turns."""
    follow = [memfit_command(), "run", "--gpu", "local", "--isolated", "--steps", "0", "--"]
    rows = []
    for layers, samples in ((6, 8), (2, 1)) * 2:
        for how, before in (("plain", []), ("watched", follow)):
            timed = child("steps", str(layers), str(samples), before=before)
            if "failed" in timed:
                raise RuntimeError(timed["failed"])
            rows.append({"how": how, "layers": layers, "samples": samples} | timed)
    return rows


def steps(layers: int, samples: int) -> dict[str, Any]:
    """Time two hundred steps of a language model by the clock, after thirty others."""
    import measure
    import torch

    model = measure.Language(layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    inputs, labels = measure.words(samples)
    times = []
    for _ in range(230):
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            outputs = model(inputs)
            loss = torch.nn.functional.cross_entropy(outputs.flatten(0, -2), labels.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - began))
    low, median, high = statistics.quantiles(times[30:], n=4)
    return {"median_ms": round(median, 4), "quartiles_ms": [round(low, 4), round(high, 4)]}


def page(found: dict[str, Any]) -> str:
    """Return what was found as a page."""
    judged = Counter(found["equality"].values())
    ran = sum(judged[name] for name in ("equal", "refused", "refused though equal", "silent"))
    lines = [
        "# Training with `memfit.Step` on a real GPU",
        "",
        f"Written by `python scripts/gpu/training.py --page`: {found['card']}, torch {found['torch']}, {found['date']}.",
        "",
        "## Micro-batches",
        "",
        "The loops of `tests/python/test_step_equivalence.py` in float64 on the GPU, in micro-batches of 1 and of 3 samples.",
        "`Step` has to give the weights of the plain loop, or to refuse: 0 is right in the last two columns.",
        "",
        "| judged | equal weights | refused: weights would differ | refused: weights would be equal | weights differ, not refused |",
        "|--:|--:|--:|--:|--:|",
        f"| {ran} | {judged['equal']} | {judged['refused']} | {judged['refused though equal']} | {judged['silent']} |",
        "",
        f"{len(found['equality']) - ran} other loops were not judged: their losses have tensors on the host.",
        "",
        "## Below a memory limit",
        "",
        f"{STEPS} steps with a memory limit (`set_per_process_memory_fraction`): a share of the memory that the plain loop",
        "reserves. The difference is relative: the Euclidean norm of all weights' differences from those of the plain",
        "loop without a limit, divided by the norm of these weights, in fp32. It is not 0 with `Step` and without a limit",
        "either, since kernels sum in another order. `convolutional` has batch normalisation, which sees smaller batches;",
        "`Step` warned of that.",
        *found.get("notes", []),
        "",
        "| model | limit, MiB | plain loop | with `Step` | out-of-memory errors survived | relative difference of the weights |",
        "|---|--:|---|---|--:|--:|",
    ]
    for model, rows in found["limits"].items():
        for share, row in rows.items():
            if "step" in row:
                step, cells = row["step"], [model, f"{row['limit'] / 2**20:,.0f}", row["plain"]]
                if "failed" in step:
                    cells += [step["failed"].strip().splitlines()[-1], "", ""]
                else:
                    apart = rows["weights"][share]["relative"]
                    cells += [f"{len(step['losses'])} steps", str(step["ooms"]), f"{apart:.1e}"]
                lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "## What it costs",
        "",
        "CPU time that `Step` adds to a step (`benches/step.py --device cuda`), in microseconds:",
        "",
        "| loop | handwritten loop | added, median | quartiles |",
        "|---|--:|--:|--:|",
    ]
    for row in found["overhead"]:
        low, high = row["quartiles_us"]
        lines.append(f"| {row['loop']} | {row['plain_us']:,} | {row['added_us']:,} | {low:,} to {high:,} |")
    lines += [
        "",
        "## Following a run with `memfit run --gpu local`",
        "",
        "Milliseconds of a step of `measure.py`'s language model (bf16, 512 tokens). Each size ran twice alone and twice",
        "under memfit, in turns:",
        "",
        "| layers | samples | run | median | quartiles |",
        "|--:|--:|---|--:|--:|",
    ]
    for row in found["followed"]:
        low, high = row["quartiles_ms"]
        cells = [row["layers"], row["samples"], "alone" if row["how"] == "plain" else "followed"]
        lines.append(f"| {' | '.join(map(str, cells))} | {row['median_ms']:.1f} | {low:.1f} to {high:.1f} |")
    for name, why in found.get("failed", {}).items():
        lines += ["", f"{name} was not measured: {why.strip().splitlines()[-1]}"]
    return "\n".join(lines) + "\n"


# Parts that need the GPU for themselves come last.
PARTS: dict[str, Any] = {
    "equality-0": lambda: equality(0),
    "equality-1": lambda: equality(1),
    "limits-language": lambda: limits("language"),
    "limits-convolutional": lambda: limits("convolutional"),
    "explained": explained,
    "overhead": overhead,
    "followed": followed,
}
ALONE = ("overhead", "followed")


def answer(name: str, *rest: str) -> Any:
    """Run a part, or a piece of one, in this process."""
    if name == "steps":
        return steps(int(rest[0]), int(rest[1]))
    if name == "limited":
        share = None if rest[1] == "None" else float(rest[1])
        return limited(rest[0], share, rest[2] == "1", int(rest[3]))
    return PARTS[name]()


def child(*arguments: str, before: Sequence[str] = ()) -> Any:
    """Run a part in a process of its own, in this folder; `before` are the words that start it."""
    target = Path(f"answer-{'-'.join(arguments)}.json").resolve()
    target.unlink(missing_ok=True)
    command = [*before, sys.executable, str(Path(__file__).resolve()), "--part", *arguments]
    environment = os.environ | {"MEMFIT_ANSWER": str(target)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {SECONDS} s"}
    if target.exists():
        return json.loads(target.read_text())
    return {"failed": done.stderr[-1500:], "status": done.returncode}


def whole(parts: dict[str, Any]) -> dict[str, Any]:
    """Return the file of these parts."""
    import torch

    found: dict[str, Any] = {
        "schema": SCHEMA,
        "card": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "date": str(datetime.date.today()),
        "equality": {},
        "limits": {},
        "overhead": [],
        "followed": [],
        "failed": {},
    }
    for name, part in parts.items():
        kind, _, which = name.partition("-")
        if "failed" in part:
            found["failed"][name] = part["failed"]
        elif kind == "equality":
            found[kind] |= part
        elif kind == "limits":
            found[kind][which] = part
        else:
            found[name] = part
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("training.json"))
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--only", default="", help="names of parts, separated by commas")
    parser.add_argument("--page", type=Path, help="write the page of this file, beside it")
    parser.add_argument("--part", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        try:
            found = answer(*given.part)
        except Exception:
            traceback.print_exc()
            sys.exit(1)
        Path(os.environ["MEMFIT_ANSWER"]).write_text(json.dumps(found))
        return
    if given.page:
        text = page(json.loads(given.page.read_text()))
        given.page.with_suffix(".md").write_text(text)
        print(text)
        return
    output = given.output.resolve()
    names = given.only.split(",") if given.only else list(PARTS)
    with tempfile.TemporaryDirectory() as temporary:
        os.chdir(temporary)
        together = [name for name in names if name not in ALONE]
        with ThreadPoolExecutor(given.jobs) as pool:
            parts = dict(zip(together, pool.map(child, together), strict=True))
        parts |= {name: child(name) for name in names if name in ALONE}
        os.chdir("/")
    output.write_text(json.dumps(whole(parts), indent=1) + "\n")
    print(f"written to {output.name}")


if __name__ == "__main__":
    main()
