"""A long snapshot made into a page: memfit's and PyTorch's own `torch.cuda._memory_viz`, time and memory; and how the page then runs.

python benches/view.py SNAPSHOT        (`long_snapshot.py` makes one)
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from whole_run import ROOT, memfit

MIB = 1024**2


def cost(command: list[str]) -> dict[str, float]:
    """Seconds and most resident memory of one command."""
    begun = time.perf_counter()
    process = os.posix_spawnp(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)])  # fmt: skip
    _, status, usage = os.wait4(process, 0)
    seconds = time.perf_counter() - begun
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"{command} ended with {os.waitstatus_to_exitcode(status)}")
    return {"seconds": seconds, "user": usage.ru_utime, "resident": usage.ru_maxrss * 1024}


def in_browser(page: Path) -> dict[str, float] | None:
    """How long the page takes to open, and its frames while it is moved and zoomed; nothing without a browser."""
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("snapshot", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder) / "memfit.html", Path(folder) / "torch.html"
        commands = {
            "memfit": [memfit(), "view", "-q", str(arguments.snapshot), "-o", str(ours)],
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


if __name__ == "__main__":
    main()
