"""`@pytest.mark.memfit(gpu="t4", max_device="14 GiB")`: a memory regression test that needs no GPU.

A marked test runs in a process of its own, under `memfit run`, on the virtual GPU that its mark names. It
fails if memory runs out there, or if a peak is above the mark's limit. The fixture `memfit_report` gives
other tests the report of a marked one.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from memfit._core import format_size, parse_size

#: The file in which the test's own process leaves its reports.
REPORTS = "MEMFIT_PYTEST_REPORTS"
PEAKS = ("device", "device_upper", "allocated", "reserved")
OPTIONS = {"gpu", "memory", "timeout", *(f"max_{peak}" for peak in PEAKS)}
MARK = (
    "memfit(gpu, *, memory=None, timeout=None, max_device=None, max_device_upper=None, max_allocated=None, "
    "max_reserved=None): run this test on a virtual GPU, and fail it if its memory exceeds a limit."
)


#: The marked tests that were collected, by node id.
MARKED: pytest.StashKey[dict[str, MarkedTest]] = pytest.StashKey()
#: The results of those that ran.
RESULTS: pytest.StashKey[dict[str, Result]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)
    if path := os.environ.get(REPORTS):
        config.pluginmanager.register(Reporter(config, Path(path)), "memfit-reporter")


class Reporter:
    """Saves the reports, in the test's own process."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self.config = config
        self.path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        with self.path.open("a") as file:
            file.write(json.dumps(data, default=repr) + "\n")


@dataclass
class Result:
    """The result of a marked test: pytest's reports, memfit's report of the run, and the error output."""

    tests: list[pytest.TestReport]
    report: dict[str, Any] | None
    stderr: str
    #: Set once pytest has shown it: if it asks again, for a plugin that repeats tests, the test runs again.
    is_shown: bool = False


class MarkedTest:
    """A test with the settings of its mark."""

    def __init__(self, nodeid: str, config: pytest.Config, mark: pytest.Mark) -> None:
        asked = dict(zip(["gpu"], mark.args, strict=False)) | dict(mark.kwargs)
        if unknown := sorted(set(asked) - OPTIONS) or list(mark.args[1:]):
            raise pytest.UsageError(
                f"{nodeid}: the mark memfit accepts {', '.join(sorted(OPTIONS))}, not {unknown[0]!r}"
            )
        self.nodeid = nodeid
        self.config = config
        self.options: list[str] = []
        for name in ("gpu", "memory", "timeout"):
            if asked.get(name) is not None:
                self.options += [f"--{name}", str(asked[name])]
        self.limits: dict[str, int] = {}
        for peak in PEAKS:
            if (limit := asked.get(f"max_{peak}")) is not None:
                try:
                    self.limits[peak] = parse_size(str(limit))
                except ValueError as error:
                    raise pytest.UsageError(f"{nodeid}: max_{peak}: {error}") from None

    def plugin(self) -> str:
        """Return the name under which this plugin is registered: an entry point's, or its module's."""
        return self.config.pluginmanager.get_name(sys.modules[__name__]) or __name__

    def result(self) -> Result:
        """Return the result, of an earlier run if there was one: another test may have asked for it."""
        results = self.config.stash.setdefault(RESULTS, {})
        if self.nodeid not in results:
            results[self.nodeid] = self._run()
        return results[self.nodeid]

    def result_to_show(self) -> Result:
        """Return a result that pytest has not shown yet."""
        result = self.result()
        if result.is_shown:
            result = self.config.stash[RESULTS][self.nodeid] = self._run()
        result.is_shown = True
        return result

    def _run(self) -> Result:
        """Run the test on its virtual GPU."""
        config = self.config
        path, _, name = self.nodeid.partition("::")
        arguments = [
            f"{config.rootpath / path}::{name}",
            f"--rootdir={config.rootpath}",
            "--override-ini=addopts=",
        ]
        arguments += [
            "-q",
            "-p",
            self.plugin(),
            "-p",
            "no:cacheprovider",
            f"--import-mode={config.getoption('importmode')}",
        ]
        if config.inipath is not None:
            arguments += ["-c", str(config.inipath)]
        with tempfile.TemporaryDirectory(prefix="memfit-pytest-") as folder:
            reports = Path(folder) / "reports"
            command = [sys.executable, "-m", "memfit", "--quiet", "run", "--format", "json", "--steps", "0"]
            command += [
                "--no-prove",
                "--show-output",
                *self.options,
                "--",
                sys.executable,
                "-m",
                "pytest",
                *arguments,
            ]
            done = subprocess.run(
                command,
                cwd=config.invocation_params.dir,
                env={**os.environ, REPORTS: str(reports)},
                capture_output=True,
                text=True,
                check=False,
            )
            lines = reports.read_text().splitlines() if reports.exists() else []
        read = config.hook.pytest_report_from_serializable
        tests = [read(config=config, data=with_tuples(json.loads(line))) for line in lines]
        report = json.loads(done.stdout) if done.stdout.strip() else None
        return Result(tests, report, done.stderr)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Report invalid marks before anything runs. Also remember tests that `-k` and the like take away.
    marked = config.stash.setdefault(MARKED, {})
    for item in items:
        if mark := item.get_closest_marker("memfit"):
            marked[item.nodeid] = MarkedTest(item.nodeid, config, mark)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    mark = item.get_closest_marker("memfit")
    # Inside of a run, the test runs normally.
    if mark is None or os.environ.get("MEMFIT_RUN_DIR"):
        return None
    test = MarkedTest(item.nodeid, item.config, mark)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in with_limits(item, test.limits, test.result_to_show()):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture
def memfit_report(request: pytest.FixtureRequest) -> Callable[[Callable[..., object] | str], dict[str, Any]]:
    """Return a function that gives the report of a test with the mark `memfit`.

    It takes the test function, or its name; the report is the document of `memfit run --format json`. A test
    that has not run yet, or was not selected, runs now; no test runs twice.
    """
    if request.node.get_closest_marker("memfit"):
        raise pytest.UsageError(
            f"{request.node.nodeid}: memfit_report belongs in another test; the report of this one is "
            "complete only after it ended"
        )

    def report(test: Callable[..., object] | str) -> dict[str, Any]:
        config = request.config
        marked = find_marked(request.node.nodeid, config, test)
        result = marked.result()
        if result.report is None:
            pytest.fail(
                f"{marked.nodeid} could not be run on a virtual GPU\n{result.stderr.strip()}", pytrace=False
            )
        # Each caller may change its own copy.
        return copy.deepcopy(result.report)

    return report


def find_marked(nodeid: str, config: pytest.Config, test: Callable[..., object] | str) -> MarkedTest:
    """Find the marked test for a function or a name, relative to the test `nodeid`."""
    here = nodeid.partition("::")[0]
    collected: dict[str, MarkedTest] = config.stash.get(MARKED, {})
    if isinstance(test, str):
        wanted = test if "::" in test and not test.startswith("Test") else f"{here}::{test}"
    else:
        name = test.__qualname__.replace(".", "::")
        known = [one for one in collected if one.endswith(f"::{name}")]
        wanted = next((one for one in known if one.startswith(f"{here}::")), f"{here}::{name}")
        own = getattr(sys.modules.get(test.__module__), "__file__", None)
        elsewhere = [one for one in known if own and (config.rootpath / one.partition("::")[0]) == Path(own)]
        wanted = next(iter(elsewhere), wanted)
    if found := collected.get(wanted):
        return found
    # Only this test was collected; the mark is on the function.
    marks = [] if isinstance(test, str) else getattr(test, "pytestmark", [])
    if mark := next((mark for mark in marks if mark.name == "memfit"), None):
        return MarkedTest(wanted, config, mark)
    marked = ", ".join(collected) or "none"
    raise pytest.UsageError(
        f"{nodeid}: memfit_report: `{wanted}` is not a collected test with the mark memfit; there are: {marked}"
    )


def with_limits(item: pytest.Item, limits: dict[str, int], result: Result) -> list[pytest.TestReport]:
    """Return pytest's reports of a test, with the outcome of its memory limits."""
    tests, report = result.tests, result.report
    call = next((test for test in tests if test.when == "call"), None)
    if call is None and any(test.outcome != "passed" for test in tests):
        return tests  # Skipped, or a fixture failed: keep that result.
    problem = None
    peak: dict[str, int] = (report or {}).get("peak") or {}
    if report is not None and report["verdict"] == "oom":
        problem = out_of_memory(report)
    elif report is None or call is None:
        problem = f"the test could not be run on a virtual GPU\n{result.stderr.strip()}"
    elif call.outcome == "passed":
        problem = exceeded(limits, report)
    if call is None:
        call = empty_report(item)
        tests = [*tests, call]
    # Some report formats take a test's properties from its last report, others from the call's.
    for test in tests:
        test.user_properties += [(f"memfit.peak.{name}", bytes_) for name, bytes_ in peak.items()]
    # A test's own failure says more than an out-of-memory error; one caught by the test's `raises` does not
    # count.
    if problem and call.outcome == "passed" and not (report and (report.get("oom") or {}).get("caught")):
        call.outcome = "failed"
        call.longrepr = problem
    elif problem and call.outcome == "failed" and report and report["verdict"] == "oom":
        call.sections.append(("memfit", problem))
    return tests


def with_tuples(data: dict[str, Any]) -> dict[str, Any]:
    """Restore tuples, which JSON lacks; pytest expects one as the location of a skipped test."""
    return {
        name: tuple(value) if name in ("location", "longrepr") and isinstance(value, list) else value
        for name, value in data.items()
    }


def empty_report(item: pytest.Item) -> pytest.TestReport:
    keywords: Any = dict.fromkeys(item.keywords, 1)
    return pytest.TestReport(item.nodeid, item.location, keywords, "passed", None, "call")


def out_of_memory(report: dict[str, Any]) -> str:
    oom, device = report["oom"], report["device"]
    where = f" in {oom['module']}" if oom.get("module") else ""
    return (
        f"out of memory on {device['name']} ({format_size(device['capacity'])}): "
        f"{format_size(oom['requested'])} were requested, {oom['phase']}{where}\n"
        f"{categories(report)}"
    )


def exceeded(limits: dict[str, int], report: dict[str, Any]) -> str | None:
    """Return the exceeded limits and the memory categories at the peak, or None."""
    peak = report["peak"]
    lines = [
        f"peak of {name}: {format_size(peak[name])}, {format_size(peak[name] - limit)} above {format_size(limit)}"
        for name, limit in limits.items()
        if peak[name] > limit
    ]
    return "\n".join([*lines, categories(report)]) if lines else None


def categories(report: dict[str, Any]) -> str:
    """Return the memory categories at the peak, the largest first."""
    at_peak = report.get("at_peak") or {}
    parts = sorted((at_peak.get("by_category") or {}).items(), key=lambda part: -part[1])
    lines = [f"  {name:<14} {format_size(size):>10}" for name, size in parts if size]
    return "\n".join(["at the peak:", *lines]) if lines else ""
