"""Compute the atlas: each model's largest batch on each GPU, with its peak and estimated throughput.

    python scripts/atlas/atlas.py [--python PATH] [--minutes N] [--only NAME,…] [--gpu NAME,…] [--anew]

Batches are those of a fixed series (1, 2, 3, 4, 6, 8, 12, …). For each model and precision, two small batches
on one GPU give a straight line of peak against batch, which predicts the largest batch of every GPU. Then
`memfit cards` is asked for that batch and the next one of the series, until for every GPU one batch fits and
the next does not. No cell is taken from the line. `memfit cards` runs the script once for each architecture
and replays that run on the other GPUs, except where a replay could be wrong; each verdict says which of the
two it is. On the GPUs that `proven` names in models.toml, both verdicts of the edge are runs.

Answers are kept in --store as soon as they are there, so that an interrupted computation goes on where it
stopped; without that file it goes on from the committed result. The result is measurements/atlas.json;
atlas_page.py writes the pages from it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomllib
from edges import SERIES, Answer, Ask, Gpu, Known, OutOfTimeError, search

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MODELS = HERE / "models.toml"
STORE = ROOT / "target/atlas/answers.jsonl"
RESULT = ROOT / "measurements/atlas.json"
SCRIPT = "scripts/atlas/train.py"
SCHEMA = "memfit.atlas/1"
PRECISIONS = ("fp32", "bf16")
LIBRARIES = ("torch", "torchvision", "timm", "transformers", "diffusers")
PRINTED_VERSIONS = f"""import json, importlib.metadata as metadata
print(json.dumps({{name: metadata.version(name) for name in {LIBRARIES!r}}}))"""


def cells(model: str, precision: str, gpus: list[Gpu], known: Known) -> list[dict[str, Any]]:
    """Return the cells of one model in one precision: GPUs whose edge is known."""
    found = []
    for gpu in gpus:
        if not known.settled(gpu.id):
            continue
        fits, fails = known.edge(gpu.id)
        unknown = known.unknown(gpu.id)
        if unknown:
            fits = fails = None
        found.append(
            {
                "model": model,
                "precision": precision,
                "gpu": gpu.id,
                "fits": asdict(fits) if fits else None,
                "fails": asdict(fails) if fails else None,
                "unknown": (unknown.note or "no reason given") if unknown else None,
            }
        )
        for side in ("fits", "fails"):
            for key in ("gpu", "verdict", "note"):
                (found[-1][side] or {}).pop(key, None)
    return found


def training(python: str, model: str, precision: str, batch: int | str) -> list[str]:
    """Return the command that trains."""
    return [python, SCRIPT, "--model", model, "--precision", precision, "--batch", str(batch)]


class Memfit:
    """Asks `memfit cards`, and keeps the answers in a file of JSON lines."""

    def __init__(
        self,
        store: Path,
        python: str,
        deadline: float,
        environment: dict[str, str],
        result: Path | None = None,
    ) -> None:
        self.store, self.python, self.deadline, self.environment = store, python, deadline, environment
        self.answers: dict[tuple[str, str], Known] = defaultdict(Known)
        self.seconds: dict[tuple[str, str], float] = defaultdict(float)
        self.runs: dict[tuple[str, str], int] = defaultdict(int)
        self.commits: set[str] = set()
        self.commit = commit()
        if not store.exists() and result is not None and result.exists():
            self._resume(json.loads(result.read_text()))
        for line in store.read_text().splitlines() if store.exists() else ():
            self._take(json.loads(line))

    def _resume(self, result: dict[str, Any]) -> None:
        """Start the store with the edges of an earlier result, if the same versions gave it."""
        if result["environment"] != self.environment:
            return
        edges: dict[tuple[str, str], list[Answer]] = defaultdict(list)
        for cell in result["cells"]:
            key = (cell["model"], cell["precision"])
            if cell["unknown"]:
                answer = Answer(cell["gpu"], SERIES[0], "unknown", "run", *[None] * 4, cell["unknown"])
                edges[key].append(answer)
            for side, verdict in (("fits", "fits-as-is"), ("fails", "does-not-fit")):
                if cell[side]:
                    answer = Answer(gpu=cell["gpu"], verdict=verdict, note=None, **cell[side])
                    edges[key].append(answer)
        self.store.parent.mkdir(parents=True, exist_ok=True)
        with self.store.open("w") as file:
            for effort in result["effort"]:
                record = {
                    **effort,
                    "environment": self.environment,
                    "commit": ", ".join(result["commits"]),
                    "answers": [asdict(each) for each in edges[effort["model"], effort["precision"]]],
                }
                file.write(json.dumps(record) + "\n")

    def _take(self, record: dict[str, Any]) -> None:
        """Add a line of the store, unless other versions of the libraries answered."""
        if record["environment"] != self.environment:
            return
        key = (record["model"], record["precision"])
        self.answers[key].add(Answer(**each) for each in record["answers"])
        self.seconds[key] += record["wall_s"]
        self.runs[key] += record["runs"]
        self.commits.update(record["commit"].split(", "))

    def asker(self, model: str, precision: str) -> Ask:
        """Return the function that asks about one model in one precision."""

        def ask(batches: tuple[int, ...], gpus: tuple[str, ...], prove: bool) -> list[Answer]:
            if time.monotonic() > self.deadline:
                raise OutOfTimeError
            document = self.cards(model, precision, batches, gpus, prove)
            # A batch of one is a row of its own, too.
            found = [Answer.from_row(row, row["batch"]) for row in document["rows"]]
            record = {
                "environment": self.environment,
                "commit": self.commit,
                "model": model,
                "precision": precision,
                "answers": [asdict(each) for each in found],
                "runs": document["runs"],
                "wall_s": document["wall_s"],
            }
            self.store.parent.mkdir(parents=True, exist_ok=True)
            with self.store.open("a") as file:
                file.write(json.dumps(record) + "\n")
            self._take(record)
            print(
                f"{model} {precision}: batches {', '.join(map(str, batches))} on {len(gpus)} GPUs"
                f"{' (runs)' if prove else ''}: {document['runs']} runs in {document['wall_s']:.0f} s",
                flush=True,
            )
            return found

        return ask

    def cards(
        self, model: str, precision: str, batches: tuple[int, ...], gpus: tuple[str, ...], prove: bool
    ) -> dict[str, Any]:
        """Return the answer of one `memfit cards`; raises if there is none."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "cards.json"
            words = [
                memfit_command(),
                "cards",
                "--quiet",
                "--isolated",
                "--timeout",
                "0",
                "--json",
                str(file),
            ]
            words += ["--prove"] if prove else []
            words += [word for gpu in gpus for word in ("--gpu", gpu)]
            words += ["--batch", ",".join(map(str, batches)), "--"]
            words += training(self.python, model, precision, "{batch}")
            done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
            document: dict[str, Any] = (
                json.loads(file.read_text()) if file.exists() else {"problem": done.stderr}
            )
        if document["problem"]:
            raise RuntimeError(f"{model}: {document['problem']}")
        return document


def memfit_command() -> str:
    """Return the command named by MEMFIT_COMMAND, next to this interpreter, or on `PATH`."""
    beside = Path(sys.executable).with_name("memfit")
    return os.environ.get("MEMFIT_COMMAND") or (
        str(beside) if beside.is_file() else shutil.which("memfit") or "memfit"
    )


def catalogue() -> list[Gpu]:
    """Return the GPUs of memfit's catalogue."""
    done = subprocess.run(
        [memfit_command(), "gpus", "--format", "json"], capture_output=True, text=True, check=True
    )
    return [
        Gpu(each["id"], each["memory"], each["compute_capability"])
        for each in json.loads(done.stdout)["gpus"]
    ]


def environment(python: str) -> dict[str, str]:
    """Return the versions of the libraries and of memfit."""
    done = subprocess.run([python, "-c", PRINTED_VERSIONS], capture_output=True, text=True, check=True)
    memfit = subprocess.run([memfit_command(), "--version"], capture_output=True, text=True, check=True)
    return {**json.loads(done.stdout), "memfit": memfit.stdout.split()[1]}


def commit() -> str:
    """Return the last commit that changed memfit itself."""
    words = ["git", "log", "-1", "--format=%h", "--", "crates", "python/memfit"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def document(listed: dict[str, Any], gpus: list[Gpu], memfit: Memfit) -> dict[str, Any]:
    """Return the result: the cells of all models of the list that are known."""
    computed, effort = [], []
    for model in listed["model"]:
        for precision in PRECISIONS:
            key = (model["name"], precision)
            if key not in memfit.answers:
                continue
            computed += cells(*key, gpus, memfit.answers[key])
            effort.append(
                {
                    "model": key[0],
                    "precision": key[1],
                    "wall_s": round(memfit.seconds[key], 1),
                    "runs": memfit.runs[key],
                }
            )
    return {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commits": sorted(memfit.commits),
        "environment": memfit.environment,
        "series": SERIES,
        "effort": effort,
        "gpus": {gpu.id: {"memory": gpu.memory, "cc": gpu.compute_capability} for gpu in gpus},
        "cells": computed,
    }


def written(result: dict[str, Any]) -> str:
    """Return the result as JSON with a line for each cell, GPU and effort, so that changes are small."""
    parts = []
    for key, value in result.items():
        if key in ("cells", "effort"):
            lines = ",\n".join("  " + json.dumps(each) for each in value)
            parts.append(f' "{key}": [\n{lines}\n ]')
        elif key == "gpus":
            lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in value.items())
            parts.append(f' "{key}": {{\n{lines}\n }}')
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has the libraries")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after so long")
    parser.add_argument("--only", default="", help="models, separated by commas")
    parser.add_argument("--precision", default=",".join(PRECISIONS), help="precisions, separated by commas")
    parser.add_argument("--gpu", default="", help="GPUs, separated by commas [default: the catalogue]")
    parser.add_argument("--store", type=Path, default=STORE, help="the file of answers")
    parser.add_argument(
        "--no-prove", action="store_true", help="leave the edges of `proven` GPUs as replayed"
    )
    parser.add_argument("--anew", action="store_true", help="forget the answers of earlier computations")
    given = parser.parse_args()
    if given.anew:
        given.store.unlink(missing_ok=True)
    listed = tomllib.loads(MODELS.read_text())
    every = catalogue()
    gpus = [gpu for gpu in every if not given.gpu or gpu.id in given.gpu.split(",")]
    proven = frozenset() if given.no_prove else frozenset(listed["proven"])
    deadline = time.monotonic() + given.minutes * 60
    memfit = Memfit(
        given.store, given.python, deadline, environment(given.python), None if given.anew else RESULT
    )
    failed = 0
    try:
        for model in listed["model"]:
            if given.only and model["name"] not in given.only.split(","):
                continue
            for precision in given.precision.split(","):
                known = memfit.answers[model["name"], precision]
                try:
                    search(gpus, known, memfit.asker(model["name"], precision), proven)
                except RuntimeError as error:
                    print(error, file=sys.stderr)
                    failed += 1
    except OutOfTimeError:
        print("out of time: call again to go on", file=sys.stderr)
    finally:
        RESULT.write_text(written(document(listed, every, memfit)))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
