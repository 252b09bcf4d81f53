"""The text of measurements/accuracy.md: a summary of all figures, then the sources, then the rows."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence

import figures
import others
import summary
from figures import Figure

LABELS = {
    "allocated": "allocated memory",
    "reserved": "reserved memory",
    "device": "memory of the device (`nvidia-smi`)",
    "fits": "fits or not",
    "time": "step time",
}
HEAD = """# Accuracy: published figures compared with memfit's

Figures that other people measured on real GPUs and published, compared with the results of `memfit run` for the same cases
on a virtual GPU. The project measured none of the published figures. Written by `python scripts/accuracy/run.py`. The cases are
in `scripts/accuracy/cases/`: what each source states, how its numbers were read, and where a case differs from it.

Step times and fits come from the scripts behind [throughput.md](throughput.md), [consumer-speed.md](consumer-speed.md),
[datacenter-speed.md](datacenter-speed.md), [ablation.md](ablation.md) and [cards-published.md](cards-published.md). See these
pages for their limits: some of their rows had been seen when the time model was developed. The project's own measurements
are on other pages: [NVIDIA H200, real and virtual](ground-truth-h200.md), [commands](product-on-gpu.md),
[memory histories](events-on-gpu.md), [training](training-on-gpu.md).

"""
HOW = """
- *Code and release* match if the authors' own script ran, unmodified unless its remark says otherwise, with the minor
  release of torch that they state. Otherwise one of them differs, or the release is not stated.
- *Error*: memfit's estimate relative to the published figure.
- *Agree when rounded*: the number of figures that agree within half a unit of the last published digit.
- *Under*: memfit's figure is lower than the published one by more than that. For memory this is the costly
  error: a run that memfit says fits may fail on the real GPU.
- *Inside*: the published figure is inside memfit's interval, if there is one. For the memory of the device, the interval goes
  from reserved memory to the upper bound of all memory in use.
"""

PEERS = """Peak allocated memory of the language model of the cases `course LM`, in single precision, from published memory snapshots.
Written by `python scripts/accuracy/peers.py`. *Under* ignores differences of less than 0.1 %. Not compared: DeepSpeed's
estimators, which leave out activations (as accelerate's does), xMem, and torch-preflight, which reports no peak. A tool in
the script without a row here has no result yet.

"""
ROUNDING = 0.001


def all_figures() -> list[Figure]:
    return figures.from_cases(figures.results()) + others.figures()


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"


def overview(found: Sequence[Figure]) -> str:
    lines = [
        "| kind | code and release | figures | answered | median error | 90th percentile | worst | agree when rounded | under | inside |",
        "|---" * 10 + "|",
    ]
    for kind in figures.KINDS:
        if kind == "fits":
            continue
        for title, match in (("match", True), ("differ", False)):
            chosen = [each for each in found if each.kind == kind and each.matches is match]
            if not chosen:
                continue
            s = summary.summarise(chosen)
            inside = f"{s.inside} of {s.intervals}" if s.intervals else ""
            cells = [LABELS[kind], title, str(s.figures), str(s.answered)]
            cells += [percent(s.median), percent(s.ninetieth), percent(s.worst)]
            cells += [str(s.rounded), str(s.under), inside]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def fits(found: Sequence[Figure]) -> str:
    v = summary.verdicts(found)
    return (
        f"Of {v.statements} published fits and failures, {v.answered} are answered and {v.agree} agree. "
        f"**False fits** (published to fail, answered to fit): {v.false_fits}. "
        f"False failures: {v.false_failures}."
    )


def by_source(found: Sequence[Figure]) -> str:
    """Return one row per source, so that a long table of one source does not outweigh the others."""
    lines = [
        "*Code*: `authors` if the published code itself ran; `package` if the model is the published package's own and the",
        "loop was rebuilt; `rebuilt` if both were rebuilt from what the source states. *Not recorded*: the results do not",
        "say which torch was used.",
        "",
        "| source | figures | fits that agree | median error | worst | under | code | torch: stated → used | GPU: stated → used |",
        "|---" * 9 + "|",
    ]
    for source in dict.fromkeys(each.source for each in found):
        rows = [each for each in found if each.source == source]
        s, v, first = summary.summarise(rows), summary.verdicts(rows), rows[0]
        agree = f"{v.agree} of {v.answered}" if v.statements else ""
        used = ", ".join(sorted({each.torch_used for each in rows} - {""})) or "not recorded"
        cards = ", ".join(sorted({each.card_used for each in rows}))
        cells = [source, f"{s.figures}", agree, percent(s.median), percent(s.worst), str(s.under), first.code]
        cells += [f"{first.torch_stated} → {used}", f"{first.card_stated} → {cards}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def remarks(found: Sequence[Figure]) -> str:
    """Return what the data files say of each source that has figures here."""
    present = {each.source for each in found}
    lines = []
    for source in figures.sources():
        if source["name"] not in present:
            continue
        lines.append(f"- **{source['name']}**: {source['derivation']}.")
        if "differs" in source:
            lines.append(f"  - {source['differs']}")
        lines += [f"  - {case['name']}: {case['differs']}" for case in source["run"] if "differs" in case]
        lines += [
            f"  - *cause of the error*, {case['name']}: {case['miss']}"
            for case in source["run"]
            if "miss" in case
        ]
    return "\n".join(lines)


def peers() -> str:
    """Return the answers of other tools for the same published peaks, with memfit's."""
    path = figures.ROOT / "measurements" / "accuracy-peers.json"
    if not path.exists():
        return "Not run yet: `python scripts/accuracy/peers.py`."
    found = {each.case: each for each in figures.from_cases(figures.results()) if each.name == "allocated"}
    lines = ["| tool | cases | median error | worst | under |", "|---" * 5 + "|"]
    cases: dict[str, None] = {}
    for name, peer in json.loads(path.read_text())["peers"].items():
        rows = list(peer["cases"].values())
        cases |= dict.fromkeys(peer["cases"])
        errors = [abs(row["found"] / row["published"] - 1) for row in rows]
        under = sum(row["found"] < row["published"] * (1 - ROUNDING) for row in rows)
        middle, worst = statistics.median(errors), max(errors)
        lines.append(f"| {name} {peer['version']} | {len(rows)} | {middle:.1%} | {worst:.1%} | {under} |")
    ours = [found[name] for name in cases if name in found and found[name].error is not None]
    if ours:
        s = summary.summarise(ours)
        under = sum((each.found or 0) < each.published * (1 - ROUNDING) for each in ours)
        lines.append(f"| memfit run | {len(ours)} | {s.median:.1%} | {s.worst:.1%} | {under} |")
    return PEERS + "\n".join(lines)


def waiting() -> str:
    """Return the sources whose cases are in the data files, and have no result yet."""
    results = figures.results()
    lines = []
    for source in figures.sources():
        cases = [case for case in source["run"] if figures.key_of(source, case) not in results]
        if cases:
            count = sum(len(figures.rows_of(case)) for case in cases)
            lines.append((source["name"], len(cases), count))
    if not lines:
        return "None."
    total = f"{sum(count for *_, count in lines)} figures of {len(lines)} sources, not counted above."
    return "\n".join(
        [total, "", *(f"- {name}: {cases} cases, {count} figures" for name, cases, count in lines)]
    )


def number(each: Figure, value: float | None) -> str:
    if value is None:
        return ""
    if each.kind == "fits":
        return "fits" if value else "does not fit"
    return f"{value:,.2f} ms" if each.kind == "time" else f"{value / 2**20:,.2f}"


def rows(found: Sequence[Figure]) -> str:
    lines = [
        "| source | case | figure | published | memfit | error | interval |",
        "|---" * 7 + "|",
    ]
    for each in found:
        error = each.problem if each.error is None else f"{each.error:+.2%}"
        if each.kind == "fits" and each.found is not None:
            error = "" if each.found == each.published else "**differs**"
        interval = f"{number(each, each.low)} to {number(each, each.high)}" if each.low is not None else ""
        cells = [each.source.partition("@")[0], each.case, f"{each.name}, {each.kind}"]
        cells += [number(each, each.published), number(each, each.found), error, interval]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def text(found: Sequence[Figure]) -> str:
    """Return the page."""
    documents = {each.source for each in found}
    repositories = {each.repository for each in found}
    counts = (
        f"**{len(found)} figures from {len(documents)} documents of {len(repositories)} repositories or "
        f"publications.**\n"
    )
    parts = [
        HEAD + counts,
        overview(found),
        HOW,
        fits(found),
        "\n## Sources\n",
        by_source(found),
        "\n## Other tools on the same cases\n",
        peers(),
        "\n## How the numbers were read, and where a case differs from its source\n",
        remarks(found),
        "\n## Cases without a result yet\n",
        waiting(),
        "\n## All figures\n",
        "Memory is in MiB.\n",
        rows(found),
    ]
    return "\n".join(parts) + "\n"
