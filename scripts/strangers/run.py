"""Run public training scripts on virtual GPUs from a mirror of their repositories, and write the table.

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
ROUNDS = (EARLIER, "A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L", "M", "N", "O", "P", "Q", "R")
FIRST = {"answer": "right verdict", "reason": "correct reason", "wrong": "wrong"}
# The conditions of the rounds' first attempts.
CONDITIONS = {
    "A, B": "few of the packages and data that the scripts need were installed, and many scripts are older than the PyTorch "
    "and NumPy that ran them: most correct reasons are about that.",
    "C": "what each script asks for was installed in an environment of its own, with PyTorch 2.15, or 2.8 where "
    "`environment` says so. Two heavy jobs ran at the same time, so time limits were reached early.",
    "D": "as C, with today's releases of what the scripts ask for. Many scripts are older than those, and most reasons say so.",
    "E": "the README's command without data, weights or options of memfit; then the reported advice was followed once "
    "(`said` has the result).",
    "F": "one environment with today's releases of most packages; data were generated where a README says to fetch them; "
    "time limit 150 to 240 s, four heavy jobs. A hint that does not help counts as wrong. The fixes were "
    "tested with scripts written for that; the round's scripts were not run again.",
    "G": "as F, with fewer packages and twice the load; time limit 240 s, of which importing libraries can take a minute. "
    "Only the three wrong ones were run again, and have a correct reason now.",
    "H": "as F, with most packages installed; where a hint names options or a path, the first attempt follows it once. "
    "Five of the eleven wrong ones are hints at options that do not help. All eleven were run again.",
    "I": "as H, with a load of 10 to 15 and a time limit of 150 to 200 s; missing modules that take a minute to install were "
    "installed, and the attempt repeated. Of the seven wrong ones, three are hints at options that do not help, one "
    "an option whose replacement failed, one a peak without the history of L-BFGS, one a verdict about a script that had "
    "exited before a step, and one a wait for synthetic rows. They were run again.",
    "J": "as I, with a load of 10 to 30, a time limit of 300 s, and scripts that need little besides PyTorch, so more of them "
    "run. Of the wrong ones, three are further runs for values on which no memory depends, which reached the time limit; "
    "one is an internal note, one optimizer state that was reported as `unknown`, and one a failure of the script's own "
    "that was attributed to synthetic data.",
    "K": "as J, with one other job and a time limit of 120 s; smaller. Four scripts during which memfit was rebuilt were "
    "tried once more, and the second attempt counts. Of the two wrong ones, one is an attribute that torchvision no "
    "longer has, which was attributed to synthetic data, and one an `unknown` for values that decide no memory.",
    "L": "as K, with three to five other jobs, a time limit of 150 s and two thirds of the packages. Its repositories were on "
    "no earlier list of this project; many are from before PyTorch 1, and 30 reasons are a missing package or something "
    "that today's releases no longer have. Of the nine wrong ones, four are hints at options that did not help, two a folder "
    "that an installed package hides, in two, synthetic data or weights were named as the cause, and one is an `unknown`. They were "
    "run again.",
    "M": "as L, with five to ten other jobs; torchaudio and xformers were not available for this PyTorch. Of the ten wrong "
    "ones, six are hints at options that did not help. They were run again.",
    "N": "as M, with a load of 8 to 17 and a time limit of 120 to 150 s; configurations of the hub were written by hand. Of "
    "the four wrong ones, one is a peak without the experts of a mixture, which a run with other values confirmed, one an "
    "option whose replacement had the wrong length, one a hint at an option that did not help, and one a module of the "
    "script's own that was taken for an installed one. They were run again.",
    "O": "as N, with little other load, a time limit of 60 to 80 s, and eighteen scripts alone, chosen by title. Packages "
    "were installed without what they depend on, and configurations of the hub were not written. Of the three wrong "
    "ones, two are averaged weights that were reported as inputs or as unknown after an OOM in the first forward pass, "
    "and one a hint at an installed package that was a folder of the script's own. They were run again.",
    "P": "as O, with a load of 5 to 25 and a time limit of 60 to 150 s; twenty-three scripts, chosen by title, that need few "
    "packages, and most packages were installed. Of the four wrong ones, one is a cause that blames an earlier step in the "
    "first one, one a wait for the hub of which the report said nothing, one a stream of rows that was a table, and one a "
    "hint at a package that passes lookups on. They were run again.",
    "Q": "as P, with a load of 3 to 12 and a time limit of 100 to 300 s; twenty-one scripts, chosen by title, some of which "
    "were changed where they use what libraries no longer have. Of the six wrong ones, three are errors of a script's own that "
    "were attributed to memfit, one a solver whose times were taken as 0, one advice of what was on already, with a false "
    "smallest GPU, and one a hint that missed a submodule. One of the first three is still so; all were run again.",
    "R": "as Q, with a load of 5 to 12, a time limit of 110 to 240 s and `--no-prove`; twenty-two scripts, most of them from "
    "before PyTorch 2. Two or more hints were followed, and the worst message counts. Of the five wrong ones, two are errors "
    "of a script's own that were attributed to memfit's stand-ins, one is a slice between two computed places, both taken "
    "as 0, which is empty, one a cause that is a hundredth of the memory, and one a hint at a release that there is not. "
    "The slice is still so; the others were run again.",
}


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
        "# Public training scripts, as their READMEs run them",
        "",
        "Written by `python scripts/strangers/run.py --table` from `scripts/strangers/scripts.toml`.",
        "",
        f"{len(scripts)} public training scripts of {len({each['repository'] for each in scripts})} repositories, "
        "unmodified, under `memfit run` on virtual GPUs. The arguments are those of their READMEs, some sizes smaller. "
        "There was no network: memfit or `scripts/strangers/inputs.py` generated the data, and memfit the weights. "
        "Each round has scripts that memfit had not seen; its first attempts were made after the faults that earlier "
        "rounds found had been fixed. The goal is 95 % in the last column.",
        "",
        "- *Right verdict*: there is a verdict, and each category holds what the script has of it. Of "
        f"{sum('checked' in each for each in scripts)} models the number of parameters is known from elsewhere; these "
        "agree to the byte. Nothing here was run on a real GPU.",
        "- *Correct reason*: no verdict, and memfit names what prevents one: a missing package or file, a release that the "
        "script does not work with, a time limit.",
        "- *Wrong or misleading*: a wrong verdict or category, a reason that is not the cause, a hint that does not help, or "
        "a failure that memfit caused.",
        "",
        "| round | scripts | repositories | right verdict | correct reason | wrong or misleading | right or correct |",
        "|---|---|---|---|---|---|---|",
        *[share(name, [each for each in scripts if each.get("round", EARLIER) == name]) for name in ROUNDS],
        share("all", scripts),
        "",
        "The conditions differ from round to round, so the rounds cannot be compared with each other. From round C on, "
        "other jobs ran on the same two cores:",
        "",
        *[f"- **{names}**: {text}" for names, text in CONDITIONS.items()],
        "",
        "## What was fixed",
        "",
        *[f"- {text}: {sum(each.get('mended') == name for each in scripts)}" for name, text in mends.items()],
        "",
        "## Each script",
        "",
        "Sizes are MiB at the peak of the first attempt.",
        "",
        "| round | repository | command | GPU | first attempt | verdict | parameters | optimizer | device | now |",
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
