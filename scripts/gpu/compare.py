"""Check a file of `measure.py`, and compare it with the virtual GPU of the same kind.

    python scripts/gpu/compare.py ground-truth.json [--gpu NAME] [--memfit COMMAND] [--page]

The file is checked first: its shape, and whether its figures can be what a GPU gave. Then `measure.py` runs
the same cases on the virtual GPU, and the figures are compared. `--page` writes
measurements/ground-truth-CARD.md, and keeps the file next to it. The exit status is 1 if a figure differs by
more than 1 % (allocated) or 2 % (reserved), and 2 if the file is refused.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MIB = 1024**2
SCHEMA = "memfit.ground-truth/1"
SHAPE: dict[str, dict[str, type | tuple[type, ...]]] = {
    "card": {"name": str, "capacity": int, "capability": str, "multiprocessors": int},
    "software": {"torch": str, "cuda": str, "cudnn": int, "python": str, "system": str, "allocator": str},
}
COUNTS = (
    "allocated",
    "reserved",
    "requested",
    "allocations",
    "retries",
    "ooms",
    "in_use",
    "reserved_at_end",
)
NOT_RUN = {"error": "not run"}
# Largest relative differences that count as close.
TOLERANCES = {"allocated": 0.01, "reserved": 0.02}


def memfit_command() -> str:
    """Return the `memfit` of this environment."""
    return shutil.which("memfit") or str(Path(sys.executable).with_name("memfit"))


def wrong_shape(found: Any) -> list[str]:
    """Return what is missing in a file, or has another type than it should."""
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        return [f"`schema` is not `{SCHEMA}`"]
    wrong = []
    for part, fields in SHAPE.items():
        for name, kind in fields.items():
            if not isinstance((found.get(part) or {}).get(name), kind):
                wrong.append(f"`{part}.{name}` is missing or of another type")
    if not isinstance(found.get("cases"), dict) or not found["cases"]:
        return [*wrong, "`cases` is empty"]
    for name, case in found["cases"].items():
        if not isinstance(case, dict):
            wrong.append(f"{name}: not an object")
        elif "error" not in case:
            missing = [key for key in COUNTS if not isinstance(case.get(key), int) or case[key] < 0]
            wrong += [f"{name}: `{key}` is missing or no size" for key in missing]
    return wrong


def implausible(found: dict[str, Any]) -> list[str]:
    """Return figures that no GPU can give."""
    capacity, wrong = found["card"]["capacity"], []
    for name, case in found["cases"].items():
        if "error" in case:
            continue
        if not 0 < case["requested"] <= case["allocated"] <= case["reserved"] <= capacity:
            wrong.append(f"{name}: requested, allocated, reserved and capacity are not in this order")
        # PyTorch's allocator rounds tensors up to 512 bytes, and takes segments of 2 MiB or more.
        if case["allocated"] % 512 or case["reserved"] % (2 * MIB):
            wrong.append(f"{name}: not sizes of PyTorch's allocator")
        if case["reserved_at_end"] > case["in_use"] or case["in_use"] > capacity:
            wrong.append(f"{name}: the driver saw less in use than PyTorch had reserved")
        if case.get("step_ms") is not None and not case["step_ms"] > 0:
            wrong.append(f"{name}: a step takes no time")
    counted = [case for case in found["cases"].values() if "error" not in case]
    if len(counted) > 3 and len({case["allocated"] for case in counted}) == 1:
        wrong.append("all cases allocate the same")
    return wrong


def card_name(found: dict[str, Any], memfit: str) -> str:
    """Return the name of the catalogue's GPU whose own name and capacity are nearest."""
    listed = json.loads(subprocess.check_output([memfit, "gpus", "--format", "json"], text=True))["gpus"]
    own = found["card"]["name"].lower().removeprefix("nvidia ").removeprefix("tesla ")
    words = set(own.replace("-", " ").split())

    def distance(gpu: dict[str, Any]) -> tuple[int, int]:
        other = set(f"{gpu['id']} {gpu['name']}".lower().replace("-", " ").split())
        return -len(words & other), abs(gpu["memory"] - found["card"]["capacity"])

    best = min(listed, key=distance)
    if not words & set(f"{best['id']} {best['name']}".lower().replace("-", " ").split()):
        sys.exit(f"no GPU of the catalogue has a name like {found['card']['name']}: pass --gpu")
    return str(best["id"])


def virtual(gpu: str, memfit: str, cases: list[str]) -> dict[str, Any]:
    """Run the cases on the virtual GPU."""
    with tempfile.TemporaryDirectory() as temporary:
        target = Path(temporary) / "virtual.json"
        command = [memfit, "run", "--gpu", gpu, "--steps", "0", "--timeout", "0", "--no-prove", "--"]
        command += [sys.executable, str(HERE / "measure.py"), "-o", str(target), "--only", " ".join(cases)]
        if any(" " in name for name in cases):
            command += ["--workloads", str(ROOT / "workloads")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not target.exists():
            sys.exit(f"the virtual GPU gave no figures:\n{done.stderr[-2000:]}")
        return json.loads(target.read_text())


def difference(real: dict[str, Any], other: dict[str, Any], name: str) -> float | None:
    """Return the relative difference of a figure; `None` where one side has none."""
    if not real.get(name) or other.get(name) is None:
        return None
    return other[name] / real[name] - 1


def verdict(real: dict[str, Any], other: dict[str, Any]) -> str:
    """Return `equal` if both figures are, `close` if within the tolerances, or the figures that are off."""
    if "error" in real or "error" in other:
        return "not measured" if "error" in real else "**failed here**"
    apart = {name: abs(difference(real, other, name) or 0.0) for name in TOLERANCES}
    off = [name for name, most in TOLERANCES.items() if apart[name] > most]
    return f"**{', '.join(off)}**" if off else "close" if any(apart.values()) else "equal"


def outside(case: dict[str, Any]) -> int | None:
    """Return what a process held outside PyTorch's allocator at the end of a case."""
    process = case.get("process")
    return process - case["reserved_at_end"] if process else None


def outside_upper(case: dict[str, Any]) -> int:
    """Return the upper bound that a virtual GPU uses for memory outside PyTorch's allocator."""
    return case["in_use"] - case["reserved_at_end"]


def cudnn_version(number: int) -> str:
    """Return cuDNN's version with dots: `91900` is 9.19.0, and `8907` is 8.9.7."""
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}"


def mebibytes(sizes: Sequence[int]) -> str:
    """Return one size or a range, in MiB."""
    low, high = (f"{each / MIB:,.0f}" for each in (min(sizes), max(sizes)))
    return f"{low} MiB" if low == high else f"{low} to {high} MiB"


def summary(real: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return how often and how well the figures agree."""
    both = [(case, other["cases"].get(name, NOT_RUN)) for name, case in real["cases"].items()]
    both = [pair for pair in both if not any("error" in side for side in pair)]
    lines = []
    for name in TOLERANCES:
        apart = sorted(abs(difference(case, beside, name) or 0.0) for case, beside in both)
        same = sum(not round(each, 6) for each in apart)
        lines.append(
            f"- {name}: {same} of {len(apart)} are equal; median difference {statistics.median(apart):.2%}, "
            f"9 of 10 within {apart[int(0.9 * (len(apart) - 1))]:.2%}, worst {apart[-1]:.2%}"
        )
    held = [found for case, _ in both if (found := outside(case)) is not None]
    if held:
        lines.append(
            f"- outside PyTorch's allocator, as the driver counts a process: {mebibytes(held)}, median "
            f"{statistics.median(held) / MIB:,.0f} MiB"
        )
    estimated = [found for _, beside in both if (found := outside(beside)) is not None]
    if held and estimated:
        upper = [outside_upper(beside) for _, beside in both]
        lines.append(
            f"- memfit's estimate of the same: {mebibytes(estimated)}; its upper bound: {mebibytes(upper)}"
        )
    return lines


def page(real: dict[str, Any], other: dict[str, Any], gpu: str) -> str:
    """Return the comparison as a page."""
    software = real["software"]
    lines = [
        f"# {real['card']['name']}: real and virtual",
        "",
        f"Written by `python scripts/gpu/compare.py --page` from a file of `measure.py` ({real['date']}; torch",
        f"{software['torch']}, cuDNN {cudnn_version(software['cudnn'])}, driver {real.get('driver') or 'not stated'}), beside "
        f"the virtual `{gpu}` with torch",
        f"{other['software']['torch']}. Sizes are in MiB, the times of a step in milliseconds. *Outside* is the memory of the process",
        "outside PyTorch's allocator. *Agreement*: `equal` if allocated and reserved memory are; `close` if allocated",
        "memory is within 1 % and reserved memory within 2 %; otherwise the figures that differ by more.",
        "",
        *summary(real, other),
        "",
        "| case | allocated, real | virtual | reserved, real | virtual | outside, real | step, real | virtual | agreement |",
        "|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for name, case in real["cases"].items():
        beside = other["cases"].get(name, NOT_RUN)
        cells = [name]
        for key in ("allocated", "reserved"):
            cells += [f"{side[key] / MIB:,.1f}" if key in side else "-" for side in (case, beside)]
        held = outside(case) if "error" not in case else None
        cells.append(f"{held / MIB:,.0f}" if held is not None else "-")
        cells += [f"{side['step_ms']:.2f}" if side.get("step_ms") else "-" for side in (case, beside)]
        lines.append("| " + " | ".join([*cells, verdict(case, beside)]) + " |")
    errors = [f"- {name}: {case['error']}" for name, case in real["cases"].items() if "error" in case]
    return "\n".join([*lines, *(["", "Not measured:", "", *errors] if errors else []), *notes(gpu)]) + "\n"


def notes(gpu: str) -> list[str]:
    """Return what is known of the differences on a GPU, from the file beside this one."""
    file = HERE / f"notes-{gpu}.md"
    return ["", file.read_text().rstrip()] if file.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--gpu", help="a name from `memfit gpus` [default: the one most like the card's name]"
    )
    parser.add_argument("--memfit", default=memfit_command())
    parser.add_argument(
        "--virtual", type=Path, help="what `measure.py` found on the virtual GPU [default: run it]"
    )
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    try:
        real = json.loads(given.file.read_text())
    except ValueError as error:
        print(f"{given.file.name} is not JSON: {error}", file=sys.stderr)
        return 2
    wrong = wrong_shape(real) or implausible(real)
    if wrong:
        print(f"{given.file.name} is refused:", *(f"  - {line}" for line in wrong), sep="\n", file=sys.stderr)
        return 2
    gpu = given.gpu or card_name(real, given.memfit)
    known = given.virtual and json.loads(given.virtual.read_text())
    other = known or virtual(gpu, given.memfit, list(real["cases"]))
    text = page(real, other, gpu)
    if given.page:
        (ROOT / f"measurements/ground-truth-{gpu}.md").write_text(text)
        for name, found in ((gpu, real), (f"{gpu}-virtual", other)):
            file = ROOT / f"measurements/ground-truth-{name}.json"
            file.write_text(json.dumps(found, indent=1) + "\n")
    print(text)
    apart = [
        name
        for name, case in real["cases"].items()
        if "**" in verdict(case, other["cases"].get(name, {"error": ""}))
    ]
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
