"""Soak and fault injection of every part, one after the other; writes measurements/torture.md.

    python scripts/torture.py [--only WORDS] [--scale 1.0]

Each part is a command that injects faults or runs for long, and fails if anything is lost: a step that
differs after an out-of-memory error, memory still counted after processes were killed, a checkpoint that does
not load, a wrong answer, a crash of a parser. `--scale 0.1` asks for a tenth of the repetitions. A part's row
is replaced when it is run again.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "measurements/torture.json"
TARGET = ROOT / "measurements/torture.md"
# Stands for the number of repetitions in a command.
TIMES = "{times}"


@dataclass(frozen=True)
class Part:
    """A command, with the number of its repetitions in a whole run."""

    name: str
    faults: str
    command: str
    times: int
    environment: tuple[tuple[str, str], ...] = ()

    def filled(self, scale: float) -> tuple[str, dict[str, str]]:
        times = str(max(1, round(self.times * scale)))
        filled = {name: value.replace(TIMES, times) for name, value in self.environment}
        return self.command.replace(TIMES, times), filled


PYTHON = "{python}"
PARTS = (
    Part(
        "`memfit.Step`",
        "an out-of-memory error at each allocation and at each operation of a step",
        f"{PYTHON} scripts/train/faults.py --again --print",
        1,
    ),
    Part(
        "ranks",
        "an out-of-memory error on a random rank of four, in DDP and FSDP2",
        f"{PYTHON} scripts/faults/ranks.py --runs {TIMES} --world 4",
        100,
    ),
    Part(
        "parallel plans",
        "ranks killed in a step, a collective and a checkpoint; an out-of-memory error on a random rank",
        f"{PYTHON} scripts/distributed/numerics.py --faults {TIMES}",
        1,
    ),
    Part(
        "device and ledger",
        "a million allocations at once, ten million calls, processes killed while they hold memory",
        "cargo test --locked -p memfit-vgpu --test device load::",
        50,
        (("MEMFIT_TEST_SCALE", TIMES),),
    ),
    Part(
        "process exit",
        "a process that ends while autograd's thread runs",
        f"memfit run --gpu t4 --steps 0 --timeout 0 --show-output -- {PYTHON} -I scripts/faults/exits.py {TIMES}",
        100,
    ),
    Part(
        "accounting",
        "random allocator programs on full GPUs, PyTorch's books beside the device's",
        f"memfit run --gpu t4:2 --memory 1GiB --steps 0 --timeout 0 --no-prove --show-output -- {PYTHON} "
        f"scripts/replay/agreement.py --programs {TIMES} --steps 100",
        20,
    ),
    Part("parsers", "mutated files", "sh scripts/fuzz.sh {times}", 20),
    Part(
        "properties",
        "other random cases than those of `make test`",
        f"{PYTHON} scripts/properties.py --seeds {TIMES}",
        20,
    ),
    Part(
        "`memfit ci`",
        "a commit that adds 300 MiB in each tenth run",
        f"{PYTHON} scripts/ci/flakes.py --runs {TIMES}",
        100,
    ),
    Part(
        "`memfit.data`",
        "a soak; memory must not grow after the first tenth",
        f"{PYTHON} benches/data_memory.py --soak {TIMES} -o measurements/data-soak",
        1_000_000,
    ),
)


def run(part: Part, scale: float) -> dict[str, object]:
    """Run a part; return its row."""
    command, environment = part.filled(scale)
    beside = Path(sys.executable).parent
    environment |= {"PATH": f"{beside}{os.pathsep}{os.environ['PATH']}"}
    began = time.monotonic()
    done = subprocess.run(
        command.replace(PYTHON, sys.executable),
        shell=True,
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode:
        print(done.stdout[-4000:], file=sys.stderr)
    settings = "".join(f"{name}={value} " for name, value in environment.items() if name != "PATH")
    return {
        "command": settings + command.replace(PYTHON, "python"),
        "seconds": round(time.monotonic() - began),
        "status": done.returncode,
        "closing": lines[-1][:160] if lines else "",
        "date": str(datetime.date.today()),
    }


def page(results: dict[str, dict[str, object]]) -> str:
    """Return the text of the page."""
    lines = [
        "# Soak and fault injection",
        "",
        "Written by `make torture` (`scripts/torture.py`). Each command fails if anything is lost, and then ends with",
        "another status than 0. The closing line is the command's own.",
        "",
        "| part | faults | command | date | seconds | status | closing line |",
        "|---|---|---|---|--:|--:|---|",
    ]
    for part in PARTS:
        row = results.get(part.name)
        if row is None:
            lines.append(f"| {part.name} | {part.faults} | not run | | | | |")
            continue
        closing = str(row["closing"]).replace("|", "\\|")
        lines.append(
            f"| {part.name} | {part.faults} | `{row['command']}` | {row['date']} | {row['seconds']} | {row['status']} | {closing} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="parts whose names hold one of these words")
    parser.add_argument("--scale", type=float, default=1.0)
    given = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    words = given.only.split()
    failed = 0
    for part in PARTS:
        if words and not any(word in part.name for word in words):
            continue
        results[part.name] = row = run(part, given.scale)
        failed += row["status"] != 0
        print(f"{part.name}: status {row['status']} after {row['seconds']} s: {row['closing']}", flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        TARGET.write_text(page(results))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
