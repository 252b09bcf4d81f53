"""Losses of the example's training with `memfit.data` beside those with torch's DataLoader and PIL.

    python scripts/data/curves.py            # fetches the photographs that benches/data.py fetches
    python scripts/data/curves.py --photographs FOLDER -o measurements/data-curves

The pictures are tiles of real photographs, and the class of a tile is the photograph that it was cut from.
Each loader trains with several seeds. Crops are drawn by each loader's own generator, so losses differ as
those of two seeds do: the curves are equal if, at the end, the means of the two loaders lie no farther apart
than what seeds do to one of them.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benches"))

LOADERS = ("memfit", "torch")


def classes(photographs: Path, root: Path) -> Path:
    """Tiles by the photograph that they were cut from."""
    import data

    data.prepare(photographs, root)
    for tile in (root / "small/a").iterdir():
        place = root / "classes" / tile.name.split("-")[0]
        place.mkdir(parents=True, exist_ok=True)
        tile.rename(place / tile.name)
    return root / "classes"


def train(folder: Path, loader: str, seed: int, given: argparse.Namespace) -> list[float]:
    """The mean loss of each pass."""
    command = [sys.executable, str(ROOT / "examples/photographs/train.py"), str(folder)]
    command += ["--loader", loader, "--seed", str(seed), "--model", given.model, "--size", str(given.size)]
    command += ["--batch-size", str(given.batch_size), "--epochs", str(given.epochs), "--workers", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{loader} with seed {seed} failed:\n{done.stderr[-3000:]}")
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", done.stdout)]
    print(loader, seed, losses, file=sys.stderr, flush=True)
    return losses


def written(found: dict[str, Any]) -> str:
    """Format the results as Markdown."""
    lines = [
        "# Training with `memfit.data` and with DataLoader",
        "",
        f"By `scripts/data/curves.py`: {found['model']} on the CPU, {found['size']}x{found['size']} pixels, batches of "
        f"{found['batch_size']}, {found['seeds']} seeds each; mean loss of each pass, and its deviation over the seeds.",
        "",
        "| pass | memfit.data | DataLoader + PIL | apart | deviation of both |",
        "|---|---|---|---|---|",
    ]
    for number, part in enumerate(found["passes"]):
        cells = [f"{part[name]['mean']:.3f} ± {part[name]['deviation']:.3f}" for name in LOADERS]
        lines.append(
            f"| {number} | {cells[0]} | {cells[1]} | {part['apart']:.3f} | {part['deviation']:.3f} |"
        )
    verdict = "are equal within noise" if found["equal"] else "are NOT equal within noise"
    return "\n".join([*lines, "", f"The curves {verdict}.", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photographs", type=Path)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    curves: dict[str, list[list[float]]] = {name: [] for name in LOADERS}
    with tempfile.TemporaryDirectory() as scratch:
        import data

        root = Path(scratch)
        folder = classes(given.photographs or data.fetch(root), root)
        for seed in range(given.seeds):
            for name in LOADERS:
                curves[name].append(train(folder, name, seed, given))
    passes = []
    for number in range(given.epochs):
        part: dict[str, Any] = {}
        for name in LOADERS:
            losses = [curve[number] for curve in curves[name]]
            part[name] = {"mean": statistics.mean(losses), "deviation": statistics.stdev(losses)}
        spread = sum(part[name]["deviation"] ** 2 for name in LOADERS) ** 0.5
        passes.append(
            {**part, "apart": abs(part["memfit"]["mean"] - part["torch"]["mean"]), "deviation": spread}
        )
    found = {
        **{name: getattr(given, name) for name in ("model", "size", "batch_size", "epochs", "seeds")},
        "curves": curves,
        "passes": passes,
        # Two means of so few seeds lie this far apart by chance once in twenty times or so.
        "equal": all(part["apart"] <= 2 * part["deviation"] for part in passes),
    }
    text = written(found)
    print(text)
    if given.output:
        given.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
        given.output.with_suffix(".md").write_text(text)
    return 0 if found["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
