"""Runs the reference cases of `memfit plan`: the plans, their confirmation, and the cost of common manual
choices.

    python scripts/plan/reference.py [CASE...] [--most N]

Each case is planned for, then run once more with its plan on the same virtual GPU, then with one sample more
in the micro-batch (if the plan splits the batch). The manual choices, on the same GPU: halving the batch with
accumulation until it fits, and recomputing every block, with as many halvings as that needs. Both run in the
script's own precision, and with those levers of the plan that neither split nor recompute; and, for cases
planned for with `--compile`, PyTorch's own `activation_memory_budget`, in both ways.

The result of each run is added to measurements/plan.json at once and is not run again, so the script can be
stopped and resumed at any time. The table is measurements/plan.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STORE = ROOT / "measurements" / "plan.json"
TABLE = ROOT / "measurements" / "plan.md"
GIB = 1024**3
# With this much of the activations kept, a compiled graph is looked at.
BUDGETS = (1.0, 0.5, 0.2)

# Name: GPU, how far the training may change, and the command.
CASES = {
    "ResNet-50, batch 192": ("t4", "precision", "resnet.py --batch-size 192"),
    "ResNet-50, batch 192, on 12 GB": ("rtx-3060", "precision", "resnet.py --batch-size 192"),
    "LSTM, batch 512": ("rtx-4060", "precision", "lstm.py --batch-size 512 --sequence 256"),
    "GPT-2 124M, batch 32": ("rtx-3090", "precision", "gpt2.py --batch-size 32"),
    "Diffusion U-Net, batch 64": ("rtx-3060", "precision", "diffusion.py --batch-size 64"),
    "U-Net, 1024 x 1024, batch 4": ("rtx-4060", "precision", "unet.py --batch-size 4"),
    "U-Net, 1024 x 1024, batch 4, in micro-batches": (
        "rtx-4060",
        "changes-training",
        "unet.py --batch-size 4",
    ),
    "Faster R-CNN, batch 16": ("rtx-3060", "precision", "detection.py --batch-size 16"),
    "ViT-L, batch 128": (
        "rtx-3090",
        "precision",
        "vit.py --layers 24 --width 1024 --heads 16 --batch-size 128",
    ),
    "BERT-large, batch 32": (
        "rtx-4060",
        "precision",
        "bert.py --layers 24 --hidden 1024 --heads 16 --batch-size 32 --sequence 384",
    ),
    "GPT-2 350M, batch 16": (
        "rtx-3090",
        "precision",
        "gpt2.py --layers 24 --hidden 1024 --heads 16 --batch-size 16",
    ),
    "3B with adapters, batch 8": (
        "rtx-4060-ti-16gb",
        "precision",
        "llama.py --layers 28 --hidden 3072 --heads 24 --bf16 --lora 16 --batch-size 8",
    ),
    "Llama-like 1B, batch 4": ("rtx-3090", "precision", "llama.py --batch-size 4"),
    "GPT-2 1.5B, batch 8": (
        "rtx-3090",
        "changes-training",
        "gpt2.py --layers 48 --hidden 1600 --heads 25 --batch-size 8",
    ),
}
# The same with `--compile`, beside which stands PyTorch's own budget: cases small enough to be compiled for
# every share.
COMPILED = {
    f"{name}, compiled": CASES[name]
    for name in (
        "ResNet-50, batch 192",
        "GPT-2 124M, batch 32",
        "U-Net, 1024 x 1024, batch 4, in micro-batches",
        "ViT-L, batch 128",
        "BERT-large, batch 32",
        "GPT-2 350M, batch 16",
        "Llama-like 1B, batch 4",
    )
}
CASES |= COMPILED
# Levers that divide the batch or say what becomes of activations; the others go with a habit as well.
OF_SIZE = ("micro-batch", "checkpointing", "activation-offload")
# Levers whose effect a run with that budget reports itself.
OF_COMPILED = ("compile", "activation-budget")


class Store:
    """The results so far."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Any]] = json.loads(STORE.read_text()) if STORE.exists() else {}

    def results_of(self, name: str) -> dict[str, Any]:
        return self.known.setdefault(name, {})

    def save(self, name: str, key: str, result: Any) -> None:
        """Writes a result, and keeps those that other processes have written meanwhile."""
        self.known = Store().known
        self.results_of(name)[key] = result
        STORE.write_text(
            json.dumps({name: self.known[name] for name in CASES if self.known.get(name)}, indent=1) + "\n"
        )


def memfit(*arguments: str) -> tuple[int, dict[str, Any]]:
    command = os.environ.get("MEMFIT_COMMAND") or shutil.which("memfit") or "memfit"
    done = subprocess.run(
        [command, arguments[0], "--format", "json", *arguments[1:]],
        cwd=ROOT / "workloads",
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout.startswith("{"):
        raise SystemExit(done.stderr)
    return done.returncode, json.loads(done.stdout)


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def plan(name: str) -> dict[str, Any]:
    gpu, allow, words = CASES[name]
    with tempfile.TemporaryDirectory(prefix="memfit-reference-") as folder:
        path = Path(folder) / "plan.toml"
        before = processor_seconds()
        compiled = ("--compile",) if name in COMPILED else ()
        _, report = memfit(
            *("plan", "--gpu", gpu, "--allow", allow, *compiled, "-o", str(path)),
            *("--", sys.executable, *words.split()),
        )
        # The path of the interpreter is specific to this machine.
        text = path.read_text().replace(sys.executable, "python") if path.exists() else None
    return {
        "verdict": report["verdict"],
        "problem": (report["problem"] or {}).get("message"),
        "baseline": short(report["baseline"]),
        "chosen": short(report["chosen"]),
        "limit": report["limit"],
        "budget": report["budget"],
        "rejected": report["rejected"],
        "advice": report["advice"],
        "evaluations": report["evaluations"],
        "wall_s": report["wall_s"],
        "processor_s": round(processor_seconds() - before, 1),
        "load": os.getloadavg()[0],
        "file": text,
    }


def short(run: dict[str, Any] | None) -> dict[str, Any] | None:
    wanted = ("levers", "micro_batch", "micro_batches_per_step", "peak", "step_ms_estimate")
    return None if run is None else {key: run[key] for key in wanted}


def run(name: str, levers: str, *, micro_batch: int | None = None, prefix: tuple[str, ...] = ()) -> Any:
    """The case with a plan of our own making: the milliseconds of a step, or nothing where it does not
    fit.
    """
    gpu, _, words = CASES[name]
    known = Store().results_of(name)["plan"]
    text = known["file"] or "[made_for]\n"
    head = f"micro_batch = {micro_batch}\n" if micro_batch else ""
    made_for = text[text.index("[made_for]") :].split("\n[expected]")[0]
    with tempfile.TemporaryDirectory(prefix="memfit-reference-") as folder:
        path = Path(folder) / "plan.toml"
        path.write_text(f"{head}{levers}\n{made_for}")
        status, report = memfit(
            *("run", "--gpu", gpu, "--memory", f"{known['budget'] >> 10}KiB", "--no-prove"),
            *("--steps", "3", "--plan", str(path)),
            *("--", sys.executable, *prefix, *words.split()),
        )
    return {"fits": status == 0, "verdict": report["verdict"], "ms": report["time"]["step_ms_estimate"]}


def toml(levers: list[dict[str, Any]]) -> str:
    return "".join(
        f'[[lever]]\nname = "{lever["name"]}"\nvalue = {json.dumps(lever["value"])}\nlabel = "{lever["label"]}"\n'
        for lever in levers
    )


def again(name: str) -> Any:
    chosen = Store().results_of(name)["plan"]["chosen"]
    levers = [lever for lever in chosen["levers"] if lever["name"] != "micro-batch"]
    batch = Store().results_of(name)["plan"]["baseline"]["micro_batch"]
    size = chosen["micro_batch"]
    return run(name, toml(levers), micro_batch=size if size != batch else None)


def more(name: str) -> Any:
    known = Store().results_of(name)["plan"]
    levers = [lever for lever in known["chosen"]["levers"] if lever["name"] != "micro-batch"]
    return run(name, toml(levers), micro_batch=known["limit"]["refuted"])


def habit(name: str, full: bool, helped: bool) -> Any:
    """Halved until it fits, with everything computed again or nothing."""
    known = Store().results_of(name)["plan"]
    levers = [each for each in known["chosen"]["levers"] if helped and each["name"] not in OF_SIZE]
    if full:
        levers.append({"name": "checkpointing", "value": "blocks", "label": "exact"})
    batch = known["baseline"]["micro_batch"] or 1
    size, tried = batch, []
    while True:
        tried.append(run(name, toml(levers), micro_batch=size if size != batch else None) | {"size": size})
        if tried[-1]["fits"] or size == 1 or batch % size or size % 2:
            return tried
        size //= 2


def budgeted(name: str, helped: bool) -> Any:
    """Compiled, with a share of what would be kept; the batch halved where that does not fit."""
    known = Store().results_of(name)["plan"]
    others = [each for each in known["chosen"]["levers"] if each["name"] not in (*OF_SIZE, *OF_COMPILED)]
    levers = others if helped else []
    levers.append({"name": "compile", "value": True, "label": "rounding"})
    helper = str(Path(__file__).with_name("budget.py"))
    batch = known["baseline"]["micro_batch"] or 1
    tried, fitting = [], batch
    # Recomputed random numbers would differ, and gradients would be wrong.
    draws = any(
        each["lever"] == "activation-budget" and "at random" in each["why"] for each in known["rejected"]
    )
    for budget in BUDGETS[:1] if draws else BUDGETS:
        # A batch that fitted with more activations fits with fewer; so may up to four times the samples.
        size = min(batch, 4 * fitting)
        while size >= 1:
            result = run(
                name,
                toml(levers),
                micro_batch=size if size != batch else None,
                prefix=(helper, str(budget)),
            )
            tried.append(result | {"size": size, "budget": budget})
            if result["fits"]:
                fitting = size
            if result["fits"] or size % 2:
                break
            size //= 2
    return tried


def jobs(name: str, known: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the remaining jobs of a case, in order."""
    if "plan" not in known:
        yield "plan", plan
        return
    if known["plan"]["verdict"] != "fits-with-plan":
        return
    todo: dict[str, Any] = {"again": again}
    if (known["plan"]["limit"] or {}).get("refuted"):
        todo["more"] = more
    if name in COMPILED:
        # The other habits stand with the case itself.
        todo["budget, helped"] = lambda name: budgeted(name, helped=True)
        todo["budget"] = lambda name: budgeted(name, helped=False)
    else:
        todo["halved, helped"] = lambda name: habit(name, full=False, helped=True)
        todo["full, helped"] = lambda name: habit(name, full=True, helped=True)
        todo["halved"] = lambda name: habit(name, full=False, helped=False)
        todo["full"] = lambda name: habit(name, full=True, helped=False)
    yield from ((key, job) for key, job in todo.items() if key not in known)


HEAD = (
    *("case", "GPU", "as it is", "the plan", "with it", "fits when run", "one sample more", "step"),
    *("halved", "halved, same levers", "all recomputed", "all recomputed, same levers"),
    *("compiled, budget", "compiled, budget, same levers"),
    *("runs", "s", "CPU s"),
)


def row(name: str, known: dict[str, Any]) -> list[str]:
    gpu, allow, _ = CASES[name]
    found = known["plan"]
    start = [name + (f" (`--allow {allow}`)" if allow != "precision" else ""), gpu]
    if found["verdict"] != "fits-with-plan":
        outcome = found["problem"] or found["verdict"].replace("-", " ")
        advice = f": {'; '.join(found['advice'])}" if found["advice"] else ""
        middle = [size(found["baseline"]), outcome + advice, *[""] * (len(HEAD) - 7)]
    else:
        chosen = found["chosen"]
        levers = ", ".join(words(lever) for lever in chosen["levers"])
        refuted = (found["limit"] or {}).get("refuted")
        more_fits = known.get("more", {}).get("fits")
        beyond = (
            f"{refuted} do not fit, in the search"
            if more_fits is None
            else "**fits**"
            if more_fits
            else f"{refuted} do not fit"
        )
        middle = [
            size(found["baseline"]),
            levers,
            size(chosen),
            yes(known.get("again")) or "in the search",
            beyond if refuted else "no batch divided" if not found["limit"] else "the whole batch fits",
            f"{chosen['step_ms_estimate']:.0f} ms",
            *(
                best_fit(known.get(key), found["baseline"]["micro_batch"])
                for habit in ("halved", "full", "budget")
                for key in (habit, f"{habit}, helped")
            ),
        ]
    return [
        *start,
        *middle,
        f"{found['evaluations']}",
        f"{found['wall_s']:.0f}",
        f"{found['processor_s']:.0f}",
    ]


def words(lever: dict[str, Any]) -> str:
    value = lever["value"]
    if isinstance(value, list):
        return f"{lever['name']} of {len(value)}"
    return lever["name"] if value is True else f"{lever['name']} {value}"


def size(run: dict[str, Any] | None) -> str:
    return "" if run is None else f"{run['peak']['device_upper'] / GIB:.2f} GiB"


def yes(result: dict[str, Any] | None) -> str:
    return "" if result is None else "yes" if result["fits"] else f"**no**: {result['verdict']}"


def best_fit(tried: list[dict[str, Any]] | None, batch: int | None) -> str:
    """Return the fastest of the runs that fit; `batch` is the script's, `None` if memfit did not find it."""
    if tried is None:
        return ""
    fitting = [each for each in tried if each["fits"] and each["ms"] is not None]
    if not fitting:
        wrong = {each["verdict"] for each in tried} - {"oom"}
        return f"no answer ({', '.join(sorted(wrong))})" if wrong else "does not fit"
    best = min(fitting, key=lambda each: each["ms"])
    budget = f", budget {best['budget']}" if "budget" in best else ""
    # Without the batch's size it was never divided.
    parts = "whole batch in 1 pass" if batch is None else f"micro-batch {best['size']}"
    return f"{best['ms']:.0f} ms ({parts}{budget})"


def write_table(store: Store) -> None:
    TABLE.write_text(page(store.known))


def page(known: dict[str, dict[str, Any]]) -> str:
    """Format the results so far as a page."""
    rows = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    rows += [
        "| " + " | ".join(row(name, known[name])) + " |" for name in CASES if "plan" in known.get(name, {})
    ]
    return TEXT + "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--most", type=int, help="so many runs, and then the end")
    options = parser.parse_args()
    store, left = Store(), options.most
    while left is None or left > 0:
        # The case with the least progress comes first, so that each has some results.
        waiting = [
            (len(store.results_of(name)), name, key, job)
            for name in options.cases or CASES
            for key, job in itertools.islice(jobs(name, store.results_of(name)), 1)
        ]
        if not waiting:
            break
        _, name, key, job = min(waiting, key=lambda each: each[0])
        begin = time.monotonic()
        store.save(name, key, job(name))
        write_table(store)
        print(f"{name}: {key}, {time.monotonic() - begin:.0f} s", flush=True)
        left = None if left is None else left - 1
    write_table(store)


TEXT = """# Plans for the reference cases

Written by `scripts/plan/reference.py`: `memfit plan` plans for each case, and the plan is compared with what people change by
hand. All runs are on virtual GPUs: nothing here was measured on a real one.

- *As it is*, *with it*: the peak of the whole GPU, without and with the plan, with everything outside PyTorch's allocator at
  its upper bound. 3 % of the GPU's memory stays reserved.
- *Fits when run*: another run of the script with the plan fits.
- *One sample more*: the first size of micro-batches above the plan's that was tried, and does not fit.
- *Step*: the estimated time of one optimizer step with the plan, at the script's global batch.
- *Halved*: the batch is halved until it fits, with gradient accumulation, in the script's own precision.
- *All recomputed*: activation checkpointing of every block, and the batch halved as often as that needs.
- *Compiled, budget*: `torch.compile` with PyTorch's `activation_memory_budget` of 1.0, 0.5 or 0.2, the fastest of these. A model
  with dropout gets only 1.0: below that its gradients would be wrong ([why](../docs/plan.md)).
- *Same levers*: the same by hand, with those levers of the plan that neither divide the batch nor recompute or offload
  activations.
- *Runs*, *s* and *CPU s*: the runs of the search, its seconds and its CPU seconds on a busy machine with two cores.

An empty cell was not run.

"""

if __name__ == "__main__":
    main()
