"""Published figures and the cases that rebuild them: the data files under cases/, and what the runs found."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CASES = HERE / "cases"
RESULTS = ROOT / "measurements" / "accuracy.json"
KINDS = ("allocated", "reserved", "device", "fits", "time")
MIB = 1 << 20
BYTES = {"MiB": 1 << 20, "GiB": 1 << 30, "GB": 10**9, "1000 MiB": 1000 << 20, "MB": 10**6, "B": 1}
REQUIRED = ("name", "repository", "card", "card_stated", "torch", "torch_stated", "code", "derivation", "run")
# `authors`: the published code itself runs. `package`: the model is the published package's own, the loop is
# rebuilt. `rebuilt`: both are rebuilt from what the source states.
CODE = ("authors", "package", "rebuilt")


@dataclass(frozen=True)
class Figure:
    """A published figure and memfit's: bytes, milliseconds, or 1 for a run that fits."""

    source: str
    repository: str
    case: str
    name: str
    kind: str
    published: float
    # Half a unit of the last published digit.
    rounding: float
    found: float | None
    low: float | None
    high: float | None
    code: str
    torch_stated: str
    torch_used: str
    card_stated: str
    card_used: str
    same_release: bool
    problem: str = ""

    @property
    def matches(self) -> bool:
        """Return `True` if the authors' own code ran, with the release that they state."""
        return self.code == "authors" and self.same_release

    @property
    def error(self) -> float | None:
        """Return the relative error; `None` for verdicts and where nothing was found."""
        if self.found is None or self.kind == "fits":
            return None
        return self.found / self.published - 1


def release(version: str) -> tuple[int, int]:
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def same_release(stated: str, used: str) -> bool:
    return bool(stated and used) and release(stated) == release(used)


def sources(folder: Path = CASES) -> list[dict[str, Any]]:
    """Return all sources of the data files, checked for what each one has to state."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.toml")):
        data = tomllib.loads(path.read_text())
        for source in data["source"]:
            merged = {**data.get("common", {}), **source}
            missing = [name for name in REQUIRED if name not in merged]
            if missing or merged["code"] not in CODE:
                raise ValueError(f"{path.name}: {merged.get('name')}: {missing or merged['code']}")
            for case in merged["run"]:
                names = [row["name"] for row in rows_of(case)]
                if len(set(names)) < len(names):
                    raise ValueError(
                        f"{path.name}: {merged['name']}: {case['name']}: two figures of one name"
                    )
            found.append(merged)
    return found


def rows_of(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a case's published figures, each with its name, value, unit, and where the run reports it."""
    found = []
    for table in case["figures"]:
        unit = table.get("unit", "MiB")
        for key, value in table["rows"].items():
            words = key.split()
            found.append(
                {
                    "name": table["name"].format(*words),
                    "kind": table["kind"],
                    "published": float(value),
                    "unit": unit,
                    "decimals": table.get("decimals", 2),
                    "read": table["read"].format(*words),
                }
            )
    return found


def scale(kind: str, unit: str) -> float:
    """Return the bytes or milliseconds of a unit; verdicts have none."""
    if kind == "fits":
        return 1.0
    return {"ms": 1.0, "s": 1000.0}[unit] if kind == "time" else float(BYTES[unit])


def key_of(source: dict[str, Any], case: dict[str, Any]) -> str:
    """Return the name under which a case's result is kept."""
    return f"{source['name']} | {case['name']}"


def found_value(
    row: dict[str, Any], result: dict[str, Any]
) -> tuple[float | None, float | None, float | None]:
    """Return a figure's value in a result, and its interval where there is one.

    `report:NAME` is a field of memfit's answer; anything else was read from what the script printed.
    """
    if row["read"].startswith("report:"):
        value = result.get("report", {}).get(row["read"].removeprefix("report:"))
        if isinstance(value, list):
            low, estimate, high = value
            return estimate, low, high
        return value, None, None
    return result.get("read", {}).get(row["name"]), None, None


def read_output(case: dict[str, Any], output: str, measured: dict[str, int]) -> dict[str, float]:
    """Return the figures that a script printed, in bytes or milliseconds, by the figure's name."""
    found: dict[str, float] = {}
    for row in rows_of(case):
        read = row["read"]
        if read.startswith("report:"):
            continue
        if read.startswith("measured:"):
            value = measured.get(read.removeprefix("measured:"))
            if value is not None:
                found[row["name"]] = float(value)
            continue
        matches = re.findall(read, output)
        if matches:
            found[row["name"]] = float(matches[-1]) * scale(row["kind"], row["unit"])
    return found


def from_cases(results: dict[str, Any], folder: Path = CASES) -> list[Figure]:
    """Return the figures of all cases that have a result."""
    figures = []
    for source in sources(folder):
        for case in source["run"]:
            result = results.get(key_of(source, case))
            if result is None:
                continue
            for row in rows_of(case):
                factor = scale(row["kind"], row["unit"])
                found, low, high = found_value(row, result)
                figures.append(
                    Figure(
                        source=source["name"],
                        repository=source["repository"],
                        case=case["name"],
                        name=row["name"],
                        kind=row["kind"],
                        published=row["published"] * factor,
                        rounding=0.0 if row["kind"] == "fits" else 0.5 * 10.0 ** -row["decimals"] * factor,
                        found=found,
                        low=low,
                        high=high,
                        code=case.get("code", source["code"]),
                        torch_stated=source["torch_stated"],
                        torch_used=result["torch"],
                        card_stated=case.get("card_stated", source["card_stated"]),
                        card_used=case.get("card", source["card"]),
                        same_release=same_release(source["torch"], result["torch"]),
                        problem="" if found is not None else result.get("problem", "") or "not printed",
                    )
                )
    return figures


def results(path: Path = RESULTS) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found
