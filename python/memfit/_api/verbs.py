"""The verbs of the command as functions. Their keyword arguments are the verbs' options."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from .._errors import CommandError, ScriptError
from ..results.cards import CardsReport
from ..results.check import CheckReport
from ..results.explain import ExplainReport
from ..results.plan import PlanReport
from ..results.run import RunReport
from .command import Reply, ask
from .decode import decode
from .options import Command, Path, Seconds, Size, joined, options, percent, seconds, size, words
from .report import Report

R = TypeVar("R", bound=Report)
Label = Literal["exact", "rounding", "precision", "changes-training"]


def run(
    command: Command,
    *,
    gpu: str | None = None,
    memory: Size | None = None,
    steps: int | None = None,
    cover: Literal["steps", "full"] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    timeout: Seconds | None = None,
    sizes: str | float | None = None,
    synthetic_weights: bool = False,
    synthetic_data: bool | str = False,
    other_processes: Size | None = None,
    clock: Literal["estimate", "instant", "never"] | None = None,
    host_time: Literal["modelled", "measured"] | None = None,
    plan: Path | None = None,
    output: Path | None = None,
    show_output: bool = False,
    prove: bool = True,
    keep: bool = False,
    catalogue: Path | None = None,
    calibration: Path | None = None,
    confidential: bool = False,
    isolated: bool = False,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    progress: bool = True,
) -> RunReport:
    """Run a training command on a virtual GPU: does it fit, and what fills the memory?

    `command` is a list such as `["python", "train.py"]`, or a text. The keywords are the options of
    `memfit run`; `cwd` and `env` are the folder and further environment variables of the command.

    Running out of memory is a result, and so is the verdict `unknown`. Raises `ScriptError` if the script
    fails by itself, and `CommandError` for wrong usage.
    """
    arguments = options(
        gpu=gpu,
        memory=size(memory),
        steps=steps,
        cover=cover,
        rank=rank,
        world_size=world_size,
        timeout=seconds(timeout),
        sizes=sizes,
        synthetic_weights=synthetic_weights,
        synthetic_data=synthetic_data,
        other_processes=size(other_processes),
        clock=clock,
        host_time=host_time,
        plan=plan,
        output=output,
        show_output=show_output,
        no_prove=not prove,
        keep=keep,
        catalogue=catalogue,
        calibration=calibration,
        confidential=confidential,
        isolated=isolated,
    )
    return _of_script(RunReport, "run", arguments, command, cwd, env, progress)


def plan(
    command: Command,
    *,
    gpu: str | None = None,
    nodes: int | None = None,
    link: str | Sequence[str] | None = None,
    memory: Size | None = None,
    global_batch: int | None = None,
    allow: Label | None = None,
    without: str | Sequence[str] | None = None,
    compile: bool = False,  # noqa: A002
    margin: float | str | None = None,
    timeout: Seconds | None = None,
    synthetic_weights: bool = False,
    synthetic_data: bool | str = False,
    output: Path | None = None,
    html: Path | None = None,
    diff: bool | Path = False,
    catalogue: Path | None = None,
    confidential: bool = False,
    isolated: bool = False,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    progress: bool = True,
) -> PlanReport:
    """Find the fastest plan with which a training command fits on a GPU.

    The keywords are the options of `memfit plan`; a `margin` of 0.03 keeps 3 % free.
    """
    arguments = options(
        gpu=gpu,
        nodes=nodes,
        link=_several(link),
        memory=size(memory),
        global_batch=global_batch,
        allow=allow,
        without=_several(without),
        compile=compile,
        margin=percent(margin),
        timeout=seconds(timeout),
        synthetic_weights=synthetic_weights,
        synthetic_data=synthetic_data,
        output=output,
        html=html,
        diff=diff,
        catalogue=catalogue,
        confidential=confidential,
        isolated=isolated,
    )
    return _of_script(PlanReport, "plan", arguments, command, cwd, env, progress)


def cards(
    command: Command,
    *,
    gpu: str | Sequence[str] | None = None,
    architecture: str | Sequence[str] | None = None,
    min_memory: Size | None = None,
    max_memory: Size | None = None,
    count: int | Iterable[int] | None = None,
    batch: int | Iterable[int] | None = None,
    prices: Path | None = None,
    samples: int | None = None,
    epochs: int | None = None,
    sort: Literal["price", "time", "memory"] | None = None,
    plan: int | None = None,
    allow: Label | None = None,
    prove: bool = False,
    steps: int | None = None,
    timeout: Seconds | None = None,
    synthetic_weights: bool = False,
    synthetic_data: bool | str = False,
    output: Path | None = None,
    catalogue: Path | None = None,
    confidential: bool = False,
    isolated: bool = False,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    progress: bool = True,
) -> CardsReport:
    """Compare GPUs for a training command: where it fits, how fast it is there, and what it costs.

    The keywords are the options of `memfit cards`.
    """
    arguments = options(
        gpu=_several(gpu),
        architecture=_several(architecture),
        min_memory=size(min_memory),
        max_memory=size(max_memory),
        count=joined(count),
        batch=joined(batch),
        prices=prices,
        samples=samples,
        epochs=epochs,
        sort=sort,
        plan=plan,
        allow=allow,
        prove=prove,
        steps=steps,
        timeout=seconds(timeout),
        synthetic_weights=synthetic_weights,
        synthetic_data=synthetic_data,
        output=output,
        catalogue=catalogue,
        confidential=confidential,
        isolated=isolated,
    )
    return _of_script(CardsReport, "cards", arguments, command, cwd, env, progress)


def explain(
    path: Path,
    *,
    capacity: Size | None = None,
    device: int | None = None,
    torch: str | None = None,
    confidential: bool = False,
    isolated: bool = False,
    cwd: Path | None = None,
) -> ExplainReport:
    """Explain an out-of-memory error: the cause, the line, and the changes that help.

    `path` is a recording, a memory snapshot of PyTorch, or a log with the error's text. The keywords are the
    options of `memfit explain`.
    """
    arguments = options(
        capacity=size(capacity), device=device, torch=torch, confidential=confidential, isolated=isolated
    )
    return result(ExplainReport, ask("explain", [*arguments, "--", os.fspath(path)], cwd=cwd), cwd)


def check(
    paths: Path | Iterable[Path],
    *,
    fix: bool = False,
    unsafe_fixes: bool = False,
    select: str | Sequence[str] | None = None,
    extend_select: str | Sequence[str] | None = None,
    ignore: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    fail_on: Literal["error", "warning", "note", "never"] | None = None,
    isolated: bool = False,
    cwd: Path | None = None,
) -> CheckReport:
    """Find mistakes in training scripts that waste or leak GPU memory, or make results wrong. Runs nothing.

    `paths` are Python files, notebooks, Markdown, or folders of them. The keywords are the options of
    `memfit check`; `fix` changes the files.
    """
    arguments = options(
        fix=fix,
        unsafe_fixes=unsafe_fixes,
        select=_several(select),
        extend_select=_several(extend_select),
        ignore=_several(ignore),
        exclude=_several(exclude),
        fail_on=fail_on,
        isolated=isolated,
    )
    named = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files = [os.fspath(path) for path in named]
    return result(CheckReport, ask("check", [*arguments, "--", *files], cwd=cwd), cwd)


def _of_script(
    kind: type[R],
    verb: str,
    arguments: Sequence[str],
    command: Command,
    cwd: Path | None,
    env: Mapping[str, str] | None,
    progress: bool,
) -> R:
    """Run a verb on a training command, and return its report."""
    reply = ask(verb, [*arguments, "--", *words(command)], cwd=cwd, env=env, progress=progress)
    return result(kind, reply, cwd)


def result(kind: type[R], reply: Reply, folder: Path | None = None) -> R:
    """Return the report of a reply, or raise if it has no answer."""
    report: Any = None
    if reply.document is not None:
        where = os.path.abspath(os.fspath(folder)) if folder is not None else os.getcwd()
        report = decode(kind, reply.document, text=reply.text, folder=where)
    if report is not None and _answered(report):
        return report  # type: ignore[no-any-return]
    message = reply.message or f"memfit ended with status {reply.status} and without an answer"
    script = getattr(report, "script", None)
    failed = script is not None and any((script.exception, script.exit_status, script.signal))
    if failed:
        raise ScriptError(message, hint=reply.hint, report=report, output=reply.last_words)
    raise CommandError(message, hint=reply.hint, report=report)


def _answered(report: Any) -> bool:
    if isinstance(report, RunReport):
        return report.verdict != "error"
    if isinstance(report, PlanReport):
        return report.verdict is not None
    if isinstance(report, CardsReport):
        return report.problem is None
    return True


def _several(value: str | Sequence[str] | None) -> list[str] | None:
    return [value] if isinstance(value, str) else None if value is None else list(value)
