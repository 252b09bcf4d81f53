"""Write the atlas's pages, docs/atlas.md and docs/atlas-table.html, from measurements/atlas.json.

python scripts/atlas/atlas_page.py
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import tomllib
from atlas import MODELS, PRECISIONS, RESULT, ROOT

GUIDE = ROOT / "docs/atlas.md"
TABLE = ROOT / "docs/atlas-table.html"
TEMPLATE = Path(__file__).with_name("table.html")
MARK = "@ATLAS@"
GIB = 1 << 30
#: The command of a cell, with the names of its fields.
COMMAND = (
    "memfit run --gpu {gpu} -- "
    "python scripts/atlas/train.py --model {model} --precision {precision} --batch {batch}"
)
#: Columns of the guide's table: GPUs that most people ask about, as far as they are computed.
SHOWN = ("t4", "rtx-3060", "rtx-3090", "rtx-4090", "a100-40gb", "a100-80gb", "h100-sxm", "rtx-5090")


def command(cell: dict[str, Any], batch: int) -> list[str]:
    """Return the command that tries one batch of a cell."""
    return shlex.split(COMMAND.format(**{**cell, "batch": batch}))


def evidence(cell: dict[str, Any]) -> str:
    """Return how a cell's two verdicts are known."""
    sides = [(word, cell[word]["evidence"]) for word in ("fits", "fails") if cell[word]]
    kinds = {kind for _, kind in sides}
    return kinds.pop() if len(kinds) == 1 else ", ".join(f"{word}: {kind}" for word, kind in sides)


def row(cell: dict[str, Any], memory: int) -> list[Any]:
    """Return a cell as the table's script reads it; the order is that of `COLUMNS`."""
    fits, fails = cell["fits"], cell["fails"]
    return [
        cell["model"],
        cell["precision"],
        cell["gpu"],
        round(memory / GIB, 2),
        None if cell["unknown"] else fits["batch"] if fits else 0,
        round(fits["device_upper"] / GIB, 2) if fits else None,
        round(fits["samples_per_s"], 1) if fits and fits["samples_per_s"] else None,
        fails["batch"] if fails else None,
        cell["unknown"] or evidence(cell),
    ]


COLUMNS = (
    "model",
    "precision",
    "GPU",
    "memory, GiB",
    "largest batch",
    "peak, GiB",
    "samples/s",
    "does not fit",
    "known by",
)


def table(result: dict[str, Any]) -> str:
    """Return the page with the searchable table."""
    data = {
        "columns": COLUMNS,
        "command": COMMAND,
        "date": result["date"],
        "torch": result["environment"].get("torch"),
        "cells": [row(cell, result["gpus"][cell["gpu"]]["memory"]) for cell in result["cells"]],
    }
    # A script ends at the first `</`, whatever it is in.
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return TEMPLATE.read_text().replace(MARK, text)


def compared(
    result: dict[str, Any], published: dict[str, Any]
) -> list[tuple[str, list[int], dict[str, Any]]]:
    """Return the published batches whose cell is computed, with the cell."""
    found = {
        cell["model"]: cell
        for cell in result["cells"]
        if (cell["gpu"], cell["precision"]) == (published["gpu"], published["precision"])
    }
    return [(name, batches, found[name]) for name, batches in published["batches"].items() if name in found]


def comparison(result: dict[str, Any], published: dict[str, Any]) -> str:
    """Return the section on published batches."""
    pairs = compared(result, published)
    text = f"""## Beside published batches

{published["source"]} has the largest batch that ran, and the next one that failed, of {len(published["batches"])} models of
the list. The atlas trains with AdamW instead of SGD, and with a recent PyTorch. """
    if not pairs:
        return text + "None of these cells is computed yet.\n"
    rows = []
    for name, (fits, fails), cell in pairs:
        batch = cell["fits"]["batch"] if cell["fits"] else 0
        rows.append(
            f"| {name} | {fits} | {fails} | {batch} | {'agrees' if fits <= batch < fails else 'differs'} |"
        )
    agree = sum(line.endswith("agrees |") for line in rows)
    return (
        text
        + f"""{len(pairs)} are computed, and {agree} agree.

| model | published: fits | fails | atlas: fits | |
|---|---|---|---|---|
"""
        + "\n".join(rows)
        + "\n"
    )


def summary(result: dict[str, Any]) -> str:
    """Return the guide's table: the largest batch of each model on a few GPUs."""
    by_key = {(cell["model"], cell["precision"], cell["gpu"]): cell for cell in result["cells"]}
    shown = [gpu for gpu in SHOWN if any(key[2] == gpu for key in by_key)]
    lines = [f"| model | | {' | '.join(shown)} |", "|---|---|" + "---|" * len(shown)]
    for model in dict.fromkeys(cell["model"] for cell in result["cells"]):
        for precision in PRECISIONS:
            found = [by_key.get((model, precision, gpu)) for gpu in shown]
            if any(found):
                lines.append(f"| {model} | {precision} | {' | '.join(map(largest, found))} |")
    return "\n".join(lines) if len(lines) > 2 else "No model is computed on the GPUs of this table yet."


def largest(cell: dict[str, Any] | None) -> str:
    """Return a cell's largest batch; nothing if it is not computed."""
    if cell is None:
        return ""
    return "unknown" if cell["unknown"] else str(cell["fits"]["batch"]) if cell["fits"] else "none"


def guide(result: dict[str, Any], listed: dict[str, Any]) -> str:
    """Return docs/atlas.md."""
    found, models = result["cells"], len({cell["model"] for cell in result["cells"]})
    gpus = len({cell["gpu"] for cell in found})
    sides = [cell[side]["evidence"] for cell in found for side in ("fits", "fails") if cell[side]]
    seconds = sum(each["wall_s"] for each in result["effort"])
    runs = sum(each["runs"] for each in result["effort"])
    versions = ", ".join(f"{name} {version}" for name, version in result["environment"].items())
    each = ", ".join(
        f"{len({cell['model'] for cell in found if cell['precision'] == precision})} in {precision}"
        for precision in PRECISIONS
    )
    example = next(cell for cell in found if cell["fits"])
    tried = COMMAND.format(**{**example, "batch": example["fits"]["batch"]})
    return f"""# Atlas: the largest batch of common models on each GPU

How large a batch of a model fits on a GPU, and how fast does it train there?
**[Search and sort all cells](atlas-table.html)**: the largest batch that fits, its peak, estimated throughput, the next
batch that does not fit, and the command for each.

{models} of {len(listed["model"])} models of the list are computed so far ({each}), on {gpus} of {len(result["gpus"])} GPUs of the
catalogue: {len(found)} cells. What is not computed is not on this page.

{summary(result)}

*none*: not even one sample fits. *unknown*: memfit cannot tell; the table says why. An empty cell is not computed.

## Try a cell

```console
$ {tried}
FITS  …
…
```

## How it is computed

`make atlas` computes it, with [`memfit cards`](cards.md): no GPU is needed. [train.py](../scripts/atlas/train.py) builds each model
from its configuration with random weights and trains it for three steps with AdamW and synthetic data; `bf16` is autocast
with weights, gradients and optimizer state in fp32. [models.toml](../scripts/atlas/models.toml) has the configurations and the shapes of
samples: tokens and pixels count as much as the batch.

- **Batches** are those of a series ({", ".join(map(str, result["series"][:8]))}, …, {result["series"][-1]}), so the exact largest batch lies between
  the one that fits and the one that does not.
- **Each edge** is two verdicts of `memfit cards`, for the batch that fits and the next one. Of {len(sides)} verdicts here,
  {sides.count("run")} are runs on that virtual GPU, and {sides.count("replayed")} follow from runs on other GPUs of its architecture
  ([how](cards.md#how-a-few-runs-decide-for-all-gpus)).
- **Peak** is that of the device, with everything outside PyTorch's allocator at its upper bound. **Samples/s** is an
  [estimate](time.md); nothing was measured on a GPU.

This state: {result["date"]}, memfit at commit {", ".join(result["commits"])}; {versions}. It took {runs} runs in
{seconds / 60:.0f} minutes of `memfit cards`, on two cores that other programs used at the same time. [measurements/atlas.json](../measurements/atlas.json) has all cells.

{comparison(result, listed["published"])}
## Limits

- Other settings have other batches: the optimizer, gradient checkpointing, compiled models, longer sequences.
  `memfit cards --batch 8,16,32 -- YOUR COMMAND` computes them for your script.
- PyTorch has fused attention in bf16 from Ampere on: on a T4, autocast to bf16 needs more memory for attention than fp32
  does.
- The atlas does not search for plans yet. [`memfit plan`](plan.md) makes larger batches fit.
- Models whose memory depends on values, such as detectors, are computed with two objects in each image.
"""


def main() -> None:
    result = json.loads(RESULT.read_text())
    listed = tomllib.loads(MODELS.read_text())
    GUIDE.write_text(guide(result, listed))
    TABLE.write_text(table(result))


if __name__ == "__main__":
    main()
