"""Run public training scripts on virtual cards from a mirror of their repositories, and write the table.

    python scripts/strangers/run.py MIRROR --python INTERPRETER [--only WORDS] [--work FOLDER]
    python scripts/strangers/run.py --table

MIRROR has `owner+name/repo` (a git directory) or `owner+name` (a working tree) for each repository of
scripts.toml; missing repositories are named. The interpreter needs PyTorch and what the scripts import;
`--older` names one with NumPy 1 for those that ask for it, `--environments` a folder of virtual
environments for those that ask for packages of their own. `--table` writes measurements/strangers.md from
what was read.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import tomllib
from mirror import checked_out

HERE = Path(__file__).parent
LIST = HERE / "scripts.toml"
INPUTS = HERE / "inputs.py"
TABLE = HERE.parents[1] / "measurements" / "strangers.md"
SECONDS = 600
# Scripts without a round were tried before the rounds were counted apart.
EARLIER = "earlier"
ROUNDS = (EARLIER, "A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L", "M")
FIRST = {"answer": "right", "reason": "an honest reason", "wrong": "wrong"}


def run(script: dict[str, Any], tree: Path, python: Path, memfit: str) -> dict[str, Any]:
    """Makes the script's inputs, and asks about it."""
    folder, inputs = tree / script.get("folder", "."), tree.parent / "inputs"
    for words in script.get("inputs", ()):
        making = [str(python), str(INPUTS), *shlex.split(words.format(inputs=inputs))]
        subprocess.run(making, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    # `python -m venv` makes a link to the interpreter that it was made with: the folder is the environment's.
    own = {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(python.parent.parent),
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "offline",
    }
    answer = tree.parent / f"{script['name']}.json"
    answer.unlink(missing_ok=True)
    command = shlex.split(script["command"].replace("{inputs}", str(inputs)))
    asked = [memfit, "run", "--gpu", script["gpu"], *script.get("options", ()), "--json", str(answer)]
    subprocess.run(
        [*asked, "--timeout", f"{SECONDS}s", "--", *command],
        cwd=folder,
        env={**os.environ, **own},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return json.loads(answer.read_text()) if answer.exists() else {}


def summary(script: dict[str, Any], report: dict[str, Any]) -> str:
    """One line with the result, and the expected verdict if it is another."""
    if not report:
        return "no answer"
    problem, peak = report.get("problem") or {}, report["peak"]["device"]
    expected = script.get("now", script.get("verdict"))
    line = f"{report['verdict']} {problem.get('kind', '')}, {peak / 2**20:.0f} MiB"
    return line if report["verdict"] == expected else f"{line}; it was {expected}"


def mebibytes(script: dict[str, Any], field: str) -> str:
    """A size as the table has it."""
    return f"{script[field] / 2**20:,.1f}" if field in script else ""


def share(name: str, scripts: list[dict[str, Any]]) -> str:
    """A line on the first attempts of a round."""
    first = Counter(each["first"] for each in scripts)
    repositories = len({each["repository"] for each in scripts})
    counts = [len(scripts), repositories, *(first[kind] for kind in FIRST)]
    good = 100 * (first["answer"] + first["reason"]) // max(len(scripts), 1)
    return f"| {name} | " + " | ".join(map(str, counts)) + f" | {good} % |"


def table(known: dict[str, Any]) -> str:
    """The page."""
    scripts, mends = known["script"], known["mended"]
    lines = [
        "# Strangers' scripts",
        "",
        "Written by `python scripts/strangers/run.py --table` from `scripts/strangers/scripts.toml`.",
        "",
        f"{len(scripts)} public training scripts of {len({each['repository'] for each in scripts})} repositories, "
        "unmodified, on virtual cards, with arguments as their READMEs have them, smaller in places. There was no "
        "network: data were made up by memfit or by `scripts/strangers/inputs.py`, weights by memfit. Each round "
        "has scripts that memfit had not seen, and its first attempts were made with what the rounds before had "
        "mended. The goal is 95 %.",
        "",
        "| round | scripts | repositories | right | honest reasons | wrong or misleading | right or honest |",
        "|---|---|---|---|---|---|---|",
        *[share(name, [each for each in scripts if each.get("round", EARLIER) == name]) for name in ROUNDS],
        share("all", scripts),
        "",
        "An answer counts as right if there is a verdict and each category holds what the script has of it. Of "
        f"{sum('checked' in each for each in scripts)} models the number of parameters is known from elsewhere; "
        "these agree to the byte. Nothing here was run on a real card.",
        "",
        "In rounds A and B few scripts' own packages and data were installed, and many are older than the PyTorch and "
        "NumPy that ran them: most honest reasons are about that. These rounds say more of how failures are explained "
        "than of how often there is an answer. In round C what each script asks for was installed before its first "
        "attempt, in an environment of its own, with PyTorch 2.15, or 2.8 where `environment` has it; two other heavy "
        "jobs ran on the same two cores, so that time limits were reached early. Round D was made in the same way, but "
        "with today's releases of what the scripts ask for: many are older than those, which most of its reasons say. "
        "In round E the first attempt is the command as its README has it, without data, weights or options of memfit, "
        "on the same loaded machine; what a reason advised was then followed once, which `said` tells. In round F all "
        "scripts share one environment with today's releases of most of what they ask for, data are made where a "
        "README says to fetch them, and a time limit of 150 to 240 seconds stands for a person's patience, with four "
        "other heavy jobs on the two cores. A hint that does not help counts as wrong. What round F found is mended and "
        "tested with made-up scripts; its scripts were not run again. Round G was made like round F, with fewer of the "
        "packages that its scripts ask for and twice the load: a time limit of 240 seconds, of which a minute can pass "
        "before a script has imported its libraries. What it found is mended and tested with made-up scripts; the three "
        "that were told wrongly were run again, and have an honest reason now. Round H was made like round F, with most "
        "of what its scripts ask for installed beforehand, in one environment, and with other heavy jobs on the two "
        "cores; where a hint names options or a path, the first attempt goes on with it, once. Five of the eleven that "
        "were wrong are hints at options that do not help. All eleven were run again. Round I was made like round H, "
        "with a load of 10 to 15 on the two cores and a time limit of 150 to 200 seconds; where a module was missing "
        "that takes a minute to install, it was installed, and the attempt was made again. Of the seven that were "
        "wrong, three are hints at options that do not help, one is an option whose stand-in failed, one a peak "
        "without the history of L-BFGS, one a verdict about a script that had left before a step, and one a wait for "
        "made-up rows. They were run again. Round J was made like round I, with a load of 10 to 30 and a time limit of "
        "300 seconds, and with scripts that ask for little besides PyTorch, so that more of them run. Of those that "
        "were wrong, three are further runs for values on which no memory depends, which reached the time limit; "
        "one is an internal note, one optimizer state that was told as `unknown`, and one a failure of the "
        "script's own that was blamed on made-up data. Round K was made like round J, with one other job and a time "
        "limit of 120 seconds, and is smaller; four scripts that memfit was rebuilt under were tried once more, and the "
        "second attempt counts. Of the two that were wrong, one is an attribute that torchvision "
        "no longer has, which was blamed on made-up data, and one an `unknown` for values that decide no memory. "
        "Round L was made like round K, with three to five other jobs, a time limit of 150 seconds and two thirds of "
        "the packages: its repositories are those that no list of this project had yet, many from before PyTorch 1, "
        "and 30 of its reasons are a package, or what today's releases no longer have. Of the nine that were wrong, "
        "four are hints at options that did not help, two a folder that an installed package hides, two a blame on "
        "what was made up, and one an `unknown`. They were run again. Round M was made like round L, with five to ten "
        "other jobs; of the packages that its scripts ask for, torchaudio and xformers could not be had for this "
        "PyTorch. Of the ten that were wrong, six are hints at options that did not help. They were run again.",
        "",
        "## What was mended",
        "",
        *[f"- {text}: {sum(each.get('mended') == name for each in scripts)}" for name, text in mends.items()],
        "",
        "## Each script",
        "",
        "Sizes are MiB at the peak of the first attempt.",
        "",
        "| round | repository | command | card | first | verdict | parameters | optimizer | device | now |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in scripts:
        command = " ".join([*each.get("options", ()), "·", *each["command"].split()[:4]])
        said = f": {each['said']}" if "said" in each else ""
        now = each.get("now", "" if "mended" in each else each.get("verdict", ""))
        if "checked" in each:
            said = f"{said or ':'} {each['checked']}"
        kind = f" ({each['now_kind']})" if "now_kind" in each else ""
        sizes = [mebibytes(each, field) for field in ("parameters", "optimizer", "device")]
        cells = [
            each.get("round", EARLIER),
            f"{each['repository']} {each.get('folder', '')}".strip(),
            f"`{command.removeprefix('· ')}`",
            each["gpu"],
            FIRST[each["first"]] + said,
            each.get("verdict", ""),
            *sizes,
            now + kind,
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += ["", "## Not counted", "", "Their imports, or their repositories, were unavailable:", ""]
    lines += [f"- {each['repository']}: {each['why']}" for each in known["left_out"]]
    return "\n".join(lines) + "\n"


def interpreter(script: dict[str, Any], arguments: argparse.Namespace) -> Path | None:
    """The interpreter that has what a script asks for; `None` where none was named."""
    environment = script.get("environment")
    if environment is None:
        return arguments.python
    if environment == "numpy-1":
        return arguments.older
    own = arguments.environments / script["name"] / "bin" / "python" if arguments.environments else None
    return own if own is not None and own.exists() else None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mirror", type=Path, nargs="?")
    parser.add_argument("--python", type=Path)
    parser.add_argument("--older", type=Path, help="an interpreter with NumPy 1")
    parser.add_argument(
        "--environments", type=Path, help="a folder with an environment for each script by name"
    )
    parser.add_argument("--memfit", default="memfit")
    parser.add_argument("--only", default="", help="scripts whose names hold one of these words")
    parser.add_argument("--work", type=Path, default=Path("strangers"))
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    known = tomllib.loads(LIST.read_text())
    if arguments.table:
        TABLE.write_text(table(known))
        return 0
    if arguments.mirror is None or arguments.python is None:
        parser.error("a mirror and an interpreter are needed")
    arguments.work.mkdir(parents=True, exist_ok=True)
    work, missing = arguments.work.resolve(), 0
    for script in known["script"]:
        if arguments.only and not any(word in script["name"] for word in arguments.only.split()):
            continue
        python = interpreter(script, arguments)
        tree = checked_out(arguments.mirror, script, work)
        lacks = (
            "inputs that were made by hand"
            if script.get("by_hand")
            else f"an interpreter with {script['environment']}"
            if python is None
            else f"{script['repository']} at {script['commit'][:12]}"
            if tree is None
            else None
        )
        if lacks is None and tree is not None and python is not None:
            said = summary(script, run(script, tree, python.absolute(), arguments.memfit))
        else:
            missing, said = missing + 1, f"not run: it lacks {lacks}"
        print(f"{script['name']}: {said}", flush=True)
    print(f"{missing} not run", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
