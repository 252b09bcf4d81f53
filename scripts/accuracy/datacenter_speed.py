"""Compare published times on an A100 (bfloat16, fused attention, compiled) with estimates for a virtual one;
write ../../measurements/datacenter-speed.md.

    python scripts/accuracy/datacenter_speed.py [--label after] [--no-run] [WORDS]

The rows were listed before any was run, with every setting that their sources state. A row is held out
(never used for fitting) if the first eight hexadecimal digits of the SHA-256 of its name are an odd number.
`MEMFIT_COMMAND` names the command; `MEMFIT_PYTHON` the interpreter, which needs torch and transformers. Each
run is kept in datacenter-speed.json under its label. With --no-run only the page is written. With WORDS, only
the row of that name, or the rows that contain them, are run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MEASUREMENTS = HERE.parents[1] / "measurements"
RESULTS = MEASUREMENTS / "datacenter-speed.json"
SOURCES = {
    "video": "A. Karpathy, Let's reproduce GPT-2 (124M), June 2024, chapters of the video and the commits of"
    " karpathy/build-nanogpt from 5265b20 to 3a148e4: A100 SXM 80 GB, batch 16 x 1024",
    "blog": "PyTorch blog, Accelerating Large Language Models with Accelerated Transformers, April 2023: torch"
    " 2.0, A100 SXM 80 GB, karpathy/nanoGPT at b3c17c6 and 77e7e04, batch 12 x 1024",
    "nanogpt": "README.md of karpathy/nanoGPT at 5a725d90, December 2022: a nightly build before torch 2.0;"
    " batch 8 x 1024 as in its bench.py; a node with A100 40 GB",
    "bert": "huggingface/transformers, docs/source/en/model_doc/bert.md: torch 2.2.0, A100 80 GB, float16,"
    " forward and backward without an optimizer, or forward only; training times are rounded to milliseconds",
    "compile": "huggingface/transformers, docs on torch.compile (dataset docs-benchmarks/compile-benchmarks):"
    " torch 2.0, A100, float32, forward",
    "gpt-fast": "README.md of pytorch-labs/gpt-fast at 0f925b5: A100 80 GB with a power limit of 330 W, batch 1, one token",
    "torchao": "torchao/quantization/README.md of pytorch/ao at 03d01ad: A100, batch 1, one token",
}


@dataclass(frozen=True)
class Row:
    """A published time in milliseconds."""

    name: str
    source: str
    published: float
    script: str
    words: str
    gpu: str = "a100-80gb"

    @property
    def held_out(self) -> bool:
        return int(hashlib.sha256(self.name.encode()).hexdigest()[:8], 16) % 2 == 1


def gpt2(source: str, name: str, published: float, words: str, gpu: str = "a100-80gb") -> Row:
    batch = {"video": 16, "blog": 12, "nanogpt": 8}[source]
    return Row(f"{source} {name}", source, published, "gpt2_training.py", f"--batch {batch} {words}", gpu)


def bert() -> list[Row]:
    """The two tables, each with times of both kinds of attention."""
    train = {(4, 256): (23, 17), (4, 512): (23, 18), (8, 256): (23, 18)}
    train |= {(8, 512): (35, 25), (16, 256): (30, 24), (16, 512): (64, 44)}
    infer = {(1, 128): (5.736, 4.987), (1, 256): (5.689, 4.945), (2, 128): (6.154, 4.982)}
    infer |= {(2, 256): (6.201, 4.949), (4, 128): (6.049, 4.987), (4, 256): (6.285, 5.364)}
    return [
        Row(name, "bert", time, "hub_network.py", name)
        for mode, table in (("train", train), ("infer", infer))
        for (batch, length), times in table.items()
        for attention, time in zip(("eager", "sdpa"), times, strict=True)
        for name in [f"bert {mode} {attention} {batch} {length}"]
    ]


def images() -> list[Row]:
    times = {("vit", 4): (14.832, 14.499), ("vit", 16): (40.944, 40.01), ("resnet", 16): (7.018, 5.024)}
    return [
        Row(name, "compile", time, "hub_network.py", name)
        for (network, batch), pair in times.items()
        for way, time in zip(("plain", "compiled"), pair, strict=True)
        for name in [f"{network} infer {way} {batch} 224"]
    ]


def llama(source: str, words: str, rate: float) -> Row:
    return Row(f"{source} llama {words}", source, 1000 / rate, "llama_decoding.py", words)


ROWS = (
    gpt2("video", "fp32", 1000, "--attention plain --precision fp32"),
    gpt2("video", "tf32", 333, "--attention plain --precision tf32"),
    gpt2("video", "bf16", 300, "--attention plain"),
    gpt2("video", "bf16, compiled", 130, "--attention plain --compile"),
    gpt2("video", "bf16, compiled, flash", 96, "--attention flash --compile"),
    gpt2("video", "bf16, compiled, flash, padded", 93, "--attention flash --compile --vocabulary 50304"),
    gpt2(
        "video",
        "bf16, compiled, flash, padded, clipped, fused",
        90,
        "--attention flash --compile --vocabulary 50304 --clip --fused",
    ),
    gpt2("blog", "bf16, compiled", 143, "--attention plain --compile --clip --no-bias"),
    gpt2("blog", "bf16, compiled, math", 134, "--attention math --compile --clip --no-bias"),
    gpt2("blog", "bf16, compiled, efficient", 119, "--attention efficient --compile --clip --no-bias"),
    gpt2("blog", "bf16, compiled, flash", 113, "--attention flash --compile --clip --no-bias"),
    gpt2(
        "blog",
        "bf16, compiled, flash, padded",
        87,
        "--attention flash --compile --clip --no-bias --vocabulary 50304",
    ),
    gpt2("nanogpt", "bf16", 250, "--attention plain", "a100-40gb"),
    gpt2("nanogpt", "bf16, compiled", 135, "--attention plain --compile", "a100-40gb"),
    *bert(),
    *images(),
    llama("gpt-fast", "7b bf16", 104.9),
    llama("gpt-fast", "7b int8", 155.58),
    llama("torchao", "7b bf16", 107.38),
    llama("torchao", "7b int8", 170.83),
    llama("torchao", "8b bf16", 95.64),
    llama("torchao", "8b int8", 153.03),
)

HEAD = """# Published times on an A100 compared with estimates

Written by `python scripts/accuracy/datacenter_speed.py`. Milliseconds of a training step or a forward pass on one A100: as
published (sources below), and as `memfit run` estimates them for rebuilt versions of the same networks. The script has every
setting. Nothing was measured on a real GPU here.

Before any row was run, the rows were listed, and a hash of their names divided them into *fitted* and *held-out* rows. Two
constants of the time model were fitted, to the fitted rows only:

- the host time per PyTorch operator, from 12 to 28 microseconds (BERT's forward passes, whose time does not grow with the
  batch size);
- the share of the memory bandwidth that Inductor's reductions reach, from 0.88 to 0.63 (compiled GPT-2).

*Before* and *after* are the estimates with the old and the new model. Its other changes have sources of their own: the rates
of matrix products, CUDA cores and elementwise kernels on an A100, matrix products whose rows are aligned to only 2 bytes,
and matrix-vector products, which use kernels of their own. By then, the errors of all rows with the old model had been
printed, and some with the new one. So the held-out rows are not a blind test, and most have the same networks as fitted rows.

- PyTorch releases differ: the published times are from torch 2.0 to 2.4, the estimates from the release below. GPT-2 with
  torch 2.0 and earlier (`blog`, `nanogpt`) took 25 to 50 % longer per sample than in mid-2024 (`video`) on the same GPU. The
  estimate covers the kernels of the installed release only, and stays too low there.
- 8-bit weights: the published times are of an Inductor kernel. Here a PyTorch kernel reads them, whose time is only a guess.
- The old model gave no time for training without an optimizer. *Held-out rows with an estimate before* leaves these out.
"""


def run(row: Row) -> dict[str, Any]:
    command, python = os.environ.get("MEMFIT_COMMAND", "memfit"), os.environ.get("MEMFIT_PYTHON", "python")
    # Inductor's cache takes graphs with different kernels of attention for the same.
    kernel = next((each for each in ("math", "efficient", "flash", "plain") if each in row.words), "none")
    cache = Path(tempfile.gettempdir()) / "datacenter-speed" / kernel
    asked = ["run", "--gpu", row.gpu, "--timeout", "0", "--format", "json", "--", python]
    done = subprocess.run(
        [command, *asked, str(HERE / row.script), *row.words.split()],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout.startswith("{"):
        sys.exit(done.stderr)
    report = json.loads(done.stdout)
    time = report["time"]
    return {name: time[f"step_ms_{name}"] for name in ("estimate", "low", "high")} | {
        "busy": time["busy_ms"],
        "torch": report["torch"],
    }


def error(row: Row, found: dict[str, Any]) -> float:
    return found["estimate"] / row.published - 1


def summary(rows: list[Row], results: dict[str, Any], label: str) -> str:
    """Return the accuracy of the estimates of a run."""
    found = [(row, results[row.name][label]) for row in rows if label in results.get(row.name, {})]
    found = [(row, each) for row, each in found if each["estimate"]]
    if not found:
        return "| | | | |"
    errors = [error(*each) for each in found]
    inside = sum(each["low"] <= row.published <= each["high"] for row, each in found)
    width = statistics.median(each["high"] / each["low"] for _, each in found)
    middle, signed = statistics.median(map(abs, errors)), statistics.median(errors)
    return f"{middle:.1%} | {signed:+.1%} | {inside} of {len(found)} | {width:.2f} |"


def page(results: dict[str, Any]) -> str:
    lines = [
        HEAD,
        "| | median error | median signed error | published within the interval | interval: median of high / low |",
    ]
    lines.append("|---|---|---|---|---|")
    kept = [row for row in ROWS if row.held_out]
    groups = {
        "fitted rows": [row for row in ROWS if not row.held_out],
        "held-out rows": kept,
        "held-out rows with an estimate before": [
            row for row in kept if results.get(row.name, {}).get("before", {}).get("estimate")
        ],
        "held-out rows except BERT": [row for row in kept if row.source != "bert"],
    }
    for title, chosen in groups.items():
        lines += [f"| {title}, {label} | {summary(chosen, results, label)}" for label in ("before", "after")]
    lines += ["", "| | published | before | after | interval | held out |", "|---|---|---|---|---|---|"]
    for row in ROWS:
        runs = results.get(row.name, {})
        told = []
        for label in ("before", "after"):
            each = runs.get(label)
            number = each and each["estimate"]
            told.append(f"{number:.4g} ({error(row, each):+.0%})" if number else "")
        after = runs.get("after")
        interval = f"{after['low']:.4g} to {after['high']:.4g}" if after and after["estimate"] else ""
        never = "yes" if row.held_out else ""
        lines.append(f"| {row.name} | {row.published:.4g} | {' | '.join(told)} | {interval} | {never} |")
    torch = sorted({each["torch"] for runs in results.values() for each in runs.values() if each["torch"]})
    lines += ["", f"Estimated with torch {', '.join(torch)}. Sources:", ""]
    lines += [f"- {name}: {text}" for name, text in SOURCES.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--label", default="after", choices=("before", "after"))
    parser.add_argument("--no-run", action="store_true")
    parser.add_argument("words", nargs="*")
    asked = parser.parse_args()
    words = " ".join(asked.words)
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    chosen = [row for row in ROWS if row.name == words] or [row for row in ROWS if words in row.name]
    runs: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in [] if asked.no_run else chosen:
        # Two sources may have published the same.
        key = (row.script, row.words, row.gpu)
        found = runs[key] = runs.get(key) or run(row)
        # Another run may have added to the file.
        results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
        results.setdefault(row.name, {})[asked.label] = found
        print(f"{row.name}: {row.published:.4g} published, {found['estimate']} here", flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    (MEASUREMENTS / "datacenter-speed.md").write_text(page(results))


if __name__ == "__main__":
    main()
