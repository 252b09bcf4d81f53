"""Run training scripts whose speed NVIDIA has published on virtual GPUs; write
../../measurements/throughput.md.

    python scripts/accuracy/throughput.py [WORDS]

`MEMFIT_COMMAND` names the command; `MEMFIT_PYTHON` the interpreter with torch, which has to be built for CUDA
12 (12.8 and earlier still know Volta). With words, only the rows that contain them are run again; the
others keep their results in throughput.json.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MEASUREMENTS = HERE.parents[1] / "measurements"
VISION = "NVIDIA DeepLearningExamples, PyTorch/Classification/ConvNets"
TEXT = "NVIDIA DeepLearningExamples, PyTorch/LanguageModeling/BERT, pytorch:19.07"


@dataclass(frozen=True)
class Row:
    """One published figure: samples a second on one card."""

    network: str
    gpu: str
    precision: str
    batch: int
    published: float
    length: int | None = None

    @property
    def name(self) -> str:
        length = f", {self.length} tokens" if self.length else ""
        return f"{self.network}, {self.gpu}, {self.precision}, batch {self.batch}{length}"


# resnet50v1.5/README.md (pytorch-21.03) and resnext101-32x4d/README.md (2020), batches by configs.yml;
# BERT/README.md (2019).
ROWS = (
    Row("resnet50", "a100-80gb", "amp", 256, 2470),
    Row("resnet50", "a100-80gb", "tf32", 256, 938),
    Row("resnet50", "v100-16gb", "amp", 256, 1200),
    Row("resnet50", "v100-16gb", "fp32", 112, 367),
    Row("resnet50", "v100-32gb", "amp", 256, 1156),
    Row("resnext101-32x4d", "a100-40gb", "amp", 128, 908.4),
    Row("resnext101-32x4d", "a100-40gb", "tf32", 128, 300.42),
    Row("resnext101-32x4d", "v100-16gb", "amp", 128, 534.91),
    Row("resnext101-32x4d", "v100-16gb", "fp32", 64, 150.05),
    Row("bert-large", "v100-16gb", "fp32", 8, 33.36, 128),
    Row("bert-large", "v100-16gb", "amp", 16, 125.44, 128),
    Row("bert-large", "v100-32gb", "fp32", 32, 40.32, 128),
    Row("bert-large", "v100-32gb", "amp", 64, 171.52, 128),
    Row("bert-large", "v100-32gb", "fp32", 4, 8.36, 512),
    Row("bert-large", "v100-32gb", "amp", 8, 30.08, 512),
)

HEAD = """# Published training throughput compared with estimates

Written by `python scripts/accuracy/throughput.py`. Samples per second on one GPU: as NVIDIA published them with its PyTorch
examples ({vision}; {text}),
and as `memfit run` estimates them for the same networks, batch sizes and precisions, rebuilt in
`scripts/accuracy/published_training.py`. *Inside*: the published figure is inside the estimate's interval.

- NVIDIA's code has fused kernels that are not rebuilt (apex's layer norm, and LAMB in BERT). It ran with PyTorch and cuDNN
  of 2019 to 2021, and loaded real data.
- No constant of the time model was fitted to these figures. But its model of convolutions was changed twice after it was
  seen to miss them, so they are not a held-out test.
- Nothing was measured on a real GPU here.

| case | published | estimate | interval | error | inside |
|---|---|---|---|---|---|
"""


def run(row: Row) -> dict[str, Any]:
    command, python = os.environ.get("MEMFIT_COMMAND", "memfit"), os.environ.get("MEMFIT_PYTHON", "python")
    words = [
        command,
        "run",
        "--gpu",
        row.gpu,
        "--steps",
        "4",
        "--timeout",
        "0",
        "--format",
        "json",
        "--",
        python,
    ]
    words += [
        str(HERE / "published_training.py"),
        row.network,
        "--batch",
        str(row.batch),
        "--precision",
        row.precision,
    ]
    words += ["--length", str(row.length)] if row.length else []
    report = json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=False).stdout)
    time = report["time"]
    return {
        "verdict": report["verdict"],
        "torch": report["torch"],
        "step_ms": [time["step_ms_low"], time["step_ms_estimate"], time["step_ms_high"]],
        "busy_ms": time["busy_ms"],
    }


def line(row: Row, found: dict[str, Any]) -> tuple[str, float | None]:
    if found["step_ms"][1] is None:
        return f"| {row.name} | {row.published:g} | {found['verdict']} | | | |", None
    most, estimate, least = (row.batch * 1000 / length for length in found["step_ms"])
    error = estimate / row.published - 1
    inside = "yes" if least <= row.published <= most else "no"
    numbers = f"{row.published:g} | {estimate:.4g} | {least:.4g} to {most:.4g} | {error:+.0%} | {inside}"
    return f"| {row.name} | {numbers} |", error


def page(results: dict[str, Any]) -> str:
    lines = [line(row, results[row.name]) for row in ROWS if row.name in results]
    errors = [abs(error) for _, error in lines if error is not None]
    torch = sorted({result["torch"] for result in results.values() if result["torch"]})
    hits = sum(text.endswith("yes |") for text, _ in lines)
    # The order and the ratio of two rows with the same network.
    rates = {
        row: row.batch * 1000 / results[row.name]["step_ms"][1]
        for row in ROWS
        if row.name in results and results[row.name]["step_ms"][1]
    }
    pairs = [(a, b) for a in rates for b in rates if a.network == b.network and a.published > b.published]
    right = sum(rates[a] > rates[b] for a, b in pairs)
    tail = [
        "",
        f"- error: median {statistics.median(errors):.0%}, maximum {max(errors):.0%}",
        f"- the published figure is inside the interval in {hits} of {len(lines)} rows",
        f"- of two rows with the same network, the one estimated to be faster is the faster one in {right} of {len(pairs)} pairs",
        "",
        f"With torch {', '.join(torch)}.",
    ]
    left = [row.name for row in ROWS if row.name not in results]
    if left:
        tail.insert(-2, f"- not run: {'; '.join(left)}")
    return HEAD.format(vision=VISION, text=TEXT) + "\n".join([text for text, _ in lines] + tail) + "\n"


def main() -> None:
    kept = MEASUREMENTS / "throughput.json"
    results = json.loads(kept.read_text()) if kept.is_file() else {}
    words = " ".join(sys.argv[1:])
    for row in ROWS:
        if words in row.name:
            results[row.name] = run(row)
            print(line(row, results[row.name])[0], flush=True)
            kept.write_text(json.dumps(results, indent=1) + "\n")
    (MEASUREMENTS / "throughput.md").write_text(page(results))


if __name__ == "__main__":
    main()
