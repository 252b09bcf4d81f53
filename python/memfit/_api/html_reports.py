"""The HTML of each kind of report."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._core import format_size
from ..results.cards import CardsReport
from ..results.check import CheckReport
from ..results.explain import ExplainReport, Fix
from ..results.plan import PlanReport, PlanRun
from ..results.run import RunReport
from . import html
from .html import Markup, bar, code, key, paragraph, prose, share, table, verdict

if TYPE_CHECKING:
    from .report import Report

#: Rows of a table that is not the answer itself.
MOST_ROWS = 8
#: Frames of libraries, which a report names after the script's own.
LIBRARY = re.compile(r"/(site-packages|dist-packages|lib/python3[^/]*)/")
TONES = {
    "fits": "good",
    "fits-as-is": "good",
    "fits-with-plan": "good",
    "oom": "bad",
    "does-not-fit": "bad",
    "error": "bad",
}
WORDS = {
    "oom": "out of memory",
    "fits-as-is": "fits",
    "fits-with-plan": "fits with a plan",
    "does-not-fit": "does not fit",
}


@functools.singledispatch
def body(report: Report) -> str:
    """Return the HTML of a report, without style and text."""
    return paragraph(report.summary())


def _badge(word: str | None, sentence: str) -> str:
    word = word or "no answer"
    return verdict(WORDS.get(word, word), TONES.get(word, "warn"), sentence)


def count(number: int, word: str) -> str:
    """Return a number of things."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3g} ms" if value < 1000 else f"{value / 1000:.3g} s"


@body.register
def _run(report: RunReport) -> str:
    parts = [_badge(report.verdict, _run_sentence(report))]
    if report.problem is not None:
        parts.append(paragraph(prose(report.problem.message), prose(report.problem.hint or ""), tone="bad"))
    if report.oom is not None and report.verdict == "oom":
        where = Markup(f"in {code(report.oom.module)},") if report.oom.module else ""
        own = [line for line in report.oom.stack if not LIBRARY.search(line)] or report.oom.stack
        lines = "\n".join(f"at {line}" for line in own[:MOST_ROWS])
        parts.append(paragraph(where, f"step {report.oom.step}, {report.oom.phase}", tone="soft"))
        parts.append(html.preformatted(lines) if lines else "")
    if report.script.exception is not None:
        parts.append(html.preformatted(report.script.exception.traceback))
    if report.at_peak is not None:
        parts.append(_composition(report))
    parts.append(html.timeline(report.timeline, report.device.capacity))
    parts.append(_fixes(report.fixes))
    if report.fidelity.notes:
        parts.append(html.folded("Assumptions", "\n".join(report.fidelity.notes)))
    return "".join(parts)


def _run_sentence(report: RunReport) -> str:
    card = f"{report.device.kind} {report.device.name}, {format_size(report.device.capacity)}"
    if report.verdict == "fits":
        return f"for the {report.ran} that ran: at most {format_size(report.peak.device_upper)} on {card}"
    if report.verdict == "oom" and report.oom is not None:
        return f"{format_size(report.oom.requested)} more were requested on {card}"
    return report.summary()


def _composition(report: RunReport) -> str:
    if report.at_peak is None:
        return ""
    held = dict(sorted(report.at_peak.by_category.items(), key=lambda part: -part[1]))
    held["outside"] = max(report.peak.device - report.peak.reserved, 0)
    held["uncertain"] = max(report.peak.device_upper - report.peak.device, 0)
    labels = {"outside": "non-PyTorch"}
    capacity = report.device.capacity
    rows: list[Sequence[object]] = [
        (key(name, labels.get(name)), format_size(size), share(size, capacity))
        for name, size in held.items()
        if size
    ]
    if report.headroom >= 0:
        rows.append(
            (
                Markup('<span class="key" style="background:#8883"></span>headroom'),
                format_size(report.headroom),
                share(report.headroom, capacity),
            )
        )
    return bar(held, capacity) + table(rows, numbers=(1, 2))


def _fixes(fixes: Sequence[Fix]) -> str:
    rows = [
        (
            code(fix.lever),
            format_size(fix.saves),
            fix.label,
            _enough(fix),
            fix.evidence,
            prose(fix.how),
        )
        for fix in fixes[:MOST_ROWS]
    ]
    head = ("would have helped", "saves", "label", "enough", "evidence", "how")
    return table(rows, head, numbers=(1,))


def _enough(fix: Fix) -> str:
    """Return whether a remedy is enough. Only a run shows what follows the request that failed."""
    if fix.enough is None:
        return ""
    if not fix.enough:
        return "not enough"
    return "enough" if fix.evidence == "run" else "for this request"


@body.register
def _plan(report: PlanReport) -> str:
    chosen = report.chosen
    sentence = f"on {report.device.name}, {format_size(report.budget)} usable"
    if chosen is not None:
        sentence += f": at most {format_size(chosen.peak.device_upper)}"
        sentence += (
            f", about {_milliseconds(chosen.step_ms_estimate)} a step" if chosen.step_ms_estimate else ""
        )
    parts = [_badge(report.verdict, sentence)]
    if report.problem is not None:
        parts.append(paragraph(prose(report.problem.message), prose(report.problem.hint or ""), tone="bad"))
    if chosen is not None and chosen.levers:
        levers = [(code(lever.name), _value(lever.value), lever.label) for lever in chosen.levers]
        parts.append(table(levers, ("lever", "value", "label")))
    if chosen is not None and chosen.at_peak is not None:
        parts.append(bar(chosen.at_peak.by_category, report.device.capacity))
    known = [(", ".join(lever.name for lever in run.levers), run) for run in report.pareto if run.levers]
    rows = [_plan_row(name, run) for name, run in known]
    if report.baseline is not None:
        as_is = "fits" if report.verdict == "fits-as-is" else "does not fit"
        rows.insert(0, (*_plan_row("as it is", report.baseline)[:-1], as_is))
    parts.append(table(rows, ("plan", "at most", "step", ""), numbers=(1, 2)) if len(rows) > 1 else "")
    rejected = "\n".join(f"{each.lever}: {each.why}" for each in report.rejected)
    return "".join(
        [
            *parts,
            *(paragraph(prose(text)) for text in report.advice),
            html.folded("Levers that are not in it", rejected),
        ]
    )


def _plan_row(name: str, run: PlanRun) -> tuple[str, ...]:
    tried = "fits" if run.fits else "does not fit" if run.refuted else "not run"
    return name, format_size(run.peak.device_upper), _milliseconds(run.step_ms_estimate), tried


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


@body.register
def _explain(report: ExplainReport) -> str:
    peak = report.peak
    sentence = f"{format_size(peak.allocated)} allocated, {format_size(peak.reserved)} reserved"
    if peak.requested is not None:
        sentence = f"{format_size(peak.segment or peak.requested)} more were requested at {sentence}"
    parts = [verdict(report.cause, "bad" if peak.requested is not None else "good", sentence)]
    for evidence in report.evidence[:MOST_ROWS]:
        line = evidence.stack[0] if evidence.stack else None
        place = code(f"{line.file}:{line.line}") if line is not None else ""
        parts.append(paragraph(prose(evidence.text), place))
    held = {holder.name: holder.bytes for holder in report.holders}
    rows = [(key(name), format_size(size), share(size, peak.reserved)) for name, size in held.items()]
    parts += [bar(held, peak.limit or peak.reserved), table(rows, numbers=(1, 2))]
    parts += [html.timeline(report.timeline, peak.limit), _fixes(report.fixes)]
    return "".join(
        [*parts, *(paragraph(prose(text), tone="soft") for text in (*report.unknown, *report.problems))]
    )


@body.register
def _check(report: CheckReport) -> str:
    tone = "bad" if report.errors else "warn" if report.findings else "good"
    word = count(len(report.findings), "finding")
    parts = [verdict(word, tone, f"{count(len(report.errors), 'error')} in {count(report.files, 'file')}")]
    tones = {"error": "bad", "warning": "warn"}
    rows = []
    for finding in report.findings:
        severity = Markup(
            f'<span class="{tones.get(finding.severity, "soft")}">{html.text(finding.severity)}</span>'
        )
        cell = f" cell {finding.cell}" if finding.cell is not None else ""
        rows.append(
            (
                severity,
                code(f"{finding.file}{cell}:{finding.line}"),
                code(finding.rule),
                prose(finding.message + (f"; {finding.help}" if finding.help else "")),
            )
        )
    parts.append(table(rows, ("", "place", "rule", "")))
    parts += [paragraph(problem.file, problem.message, tone="warn") for problem in report.problems]
    return "".join(parts)


@body.register
def _cards(report: CardsReport) -> str:
    parts = [
        verdict(
            "fits" if report.fitting else "fits nowhere" if report.fits is False else "unknown",
            "good" if report.fitting else "bad" if report.fits is False else "warn",
            f"on {len(report.fitting)} of {len(report.rows)} configurations",
        )
    ]
    if report.problem is not None:
        parts.append(paragraph(prose(report.problem.message), prose(report.problem.hint or ""), tone="bad"))
    rows = []
    for row in report.rows:
        word = WORDS.get(row.verdict, row.verdict)
        price = f"{row.price.amount:.2f} {report.priced.currency}" if row.price and report.priced else ""
        rows.append(
            (
                row.gpu,
                row.count,
                "" if row.batch is None else row.batch,
                Markup(f'<span class="{TONES.get(row.verdict, "warn")}">{html.text(word)}</span>'),
                "" if row.peak is None else format_size(row.peak.device_upper),
                format_size(row.capacity),
                _milliseconds(row.step_ms_estimate),
                "" if row.samples_per_s is None else f"{row.samples_per_s:.3g}",
                price,
            )
        )
    head = ("GPU", "count", "batch", "", "at most", "of", "step", "samples/s", "price")
    parts.append(table(rows, head, numbers=(1, 2, 4, 5, 6, 7, 8)))
    return "".join([*parts, *(paragraph(prose(note), tone="soft") for note in report.notes)])
