"""Measures time and memory to make a page of a long snapshot, with memfit and with `torch.cuda._memory_viz`,
and the speed of the page in a browser.

python benches/view.py SNAPSHOT        (`long_snapshot.py` makes one)
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from whole_run import ROOT, memfit

MIB = 1024**2


def cost(command: list[str]) -> dict[str, float]:
    """Return seconds and peak resident memory of one command."""
    begun = time.perf_counter()
    process = os.posix_spawnp(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)])  # fmt: skip
    _, status, usage = os.wait4(process, 0)
    seconds = time.perf_counter() - begun
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"{command} ended with {os.waitstatus_to_exitcode(status)}")
    return {"seconds": seconds, "user": usage.ru_utime, "resident": usage.ru_maxrss * 1024}


def in_browser(page: Path) -> dict[str, float] | None:
    """Measure how long the page takes to open, and its frames while panning and zooming; None without a
    browser.
    """
    sys.path.insert(0, str(ROOT / "tests/python"))
    import chromium

    program = chromium.find()
    if program is None:
        return None
    with chromium.Chromium(program) as browser:
        browser.size(1400, 900)
        begun = time.perf_counter()
        browser.open(page.as_uri())
        browser.wait("window.memfit.app.timeline.charts[0].columns")
        opened = time.perf_counter() - begun
        # Twice through: what a zoom needs is loaded the first time.
        frames = browser.evaluate("""(async () => {
            const {timeline} = window.memfit.app;
            const tick = timeline.cursor;
            const frames = [];
            const next = () => new Promise(good => requestAnimationFrame(() => setTimeout(good)));
            const settle = async () => {
                while (timeline.charts[0].lane.pending.size) await next();
                await next();
            };
            for (const keep of [false, true]) {
                timeline.whole();
                for (let zoom = 0; zoom < 40; zoom++) {
                    timeline.zoom(0.72, tick);
                    timeline.pan(zoom % 2 ? 0.02 : -0.02);
                    if (!keep) await settle();
                    await next();
                    if (keep) frames.push(timeline.lastFrame);
                }
            }
            frames.sort((one, other) => one - other);
            return {median: frames[20], worst: frames[39], events: timeline.charts[0].lane.ticks};
        })()""")
    return {"opened": opened, **frames}


def report(result: dict[str, Any]) -> str:
    """Format the result as Markdown."""
    names = {
        "memfit": "`memfit view --no-explain -o`",
        "torch": "`python -m torch.cuda._memory_viz trace_plot`",
    }
    rows = "\n".join(
        f"| {title} | {result[name]['seconds']:.1f} s | {result[name]['user']:.1f} s "
        f"| {result[name]['resident'] / MIB:,.0f} MiB | {result['pages'][name] / MIB:,.1f} MiB |"
        for name, title in names.items()
    )
    browser = result["browser"]
    seen = (
        f"In headless Chromium without a GPU, memfit's page was first drawn after {browser['opened']:.2f} s. Zooming\n"
        f"from all {browser['events']:,} events into single ones, a frame took {browser['median']:.0f} ms (median), "
        f"{browser['worst']:.0f} ms at worst."
        if browser
        else "Chromium was not installed, so the page was not opened."
    )
    return f"""# Viewer page of a long snapshot, compared with `_memory_viz`

Written by `python benches/view.py SNAPSHOT` ({datetime.date.today()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.0f}). Both tools make
an HTML page of the same snapshot, within one run. The snapshot has {result["snapshot"] / MIB:,.0f} MiB and is from
`benches/long_snapshot.py`, a training script whose steps are all alike; the page of a less regular script is larger.

| | wall time | CPU time | peak memory | size of the page |
|---|---|---|---|---|
{rows}

{seen}

`_memory_viz` draws only the 15,000 largest blocks; memfit's page shows all blocks.
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("snapshot", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder) / "memfit.html", Path(folder) / "torch.html"
        commands = {
            "memfit": [os.environ.get("MEMFIT_COMMAND") or memfit(), "view", "-q", "--no-explain", str(arguments.snapshot), "-o", str(ours)],
            "torch": [sys.executable, "-m", "torch.cuda._memory_viz", "trace_plot", str(arguments.snapshot), "-o", str(theirs)],
        }  # fmt: skip
        best: dict[str, dict[str, float]] = {}
        for _ in range(arguments.rounds):
            for name, command in commands.items():
                one = cost(command)
                if name not in best or one["seconds"] < best[name]["seconds"]:
                    best[name] = one
        result = {
            "snapshot": arguments.snapshot.stat().st_size,
            **best,
            "pages": {"memfit": ours.stat().st_size, "torch": theirs.stat().st_size},
            "browser": in_browser(ours),
        }
    print(f"view: {json.dumps(result)}")
    (ROOT / "measurements/view.md").write_text(report(result))


if __name__ == "__main__":
    main()
