"""Runs the command `memfit` once, in a separate process, and returns its text and its JSON."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Seconds that an interrupted command has to end its script.
GRACE = 20
#: The line before what a failed script printed last, each line of which is indented.
LAST_WORDS = "the script's last output:"
#: Folder of the package, so that the command is of the same installation.
PACKAGES = str(Path(__file__).resolve().parents[2])
#: Starts the command without the current folder on `sys.path`: a `random.py` there is none of memfit's.
START = "import sys; sys.path[0] = sys.argv.pop(1); from memfit._cli import main; sys.exit(main())"


@dataclass(frozen=True)
class Reply:
    """Answer of a command."""

    status: int
    text: str
    document: dict[str, Any] | None
    message: str
    hint: str | None
    #: What a failed script printed last.
    last_words: str = ""


def ask(
    verb: str,
    arguments: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    progress: bool | Callable[[str], object] = True,
    answers: bool = True,
) -> Reply:
    """Run a verb. Its errors come back in the reply.

    Its progress and remarks go to `sys.stderr`, or line by line to the function `progress`.

    Verbs without a report have `answers=False`.
    """
    tell = progress if callable(progress) else _to_stderr
    words: list[str] = []

    def listen(line: str) -> None:
        if words or line.startswith(LAST_WORDS):
            words.append(line)
        tell(line)

    with tempfile.TemporaryDirectory(prefix="memfit-api-") as folder:
        document, output = Path(folder, "report.json"), Path(folder, "text")
        command = [sys.executable, "-c", START, PACKAGES, *([] if progress else ["--quiet"]), verb]
        command += ["--color", "never"]
        command += ["--format", "text", "--json", str(document)] if answers else []
        # Options come before a script's command, which takes everything behind it.
        command += arguments
        environment = {**os.environ, **(env or {})}
        environment.setdefault("COLUMNS", str(min(shutil.get_terminal_size((100, 24)).columns, 120)))
        with output.open("wb") as stdout:
            status, errors = _followed(command, stdout, cwd, environment, listen, _shows_script(arguments))
        text = output.read_text(encoding="utf-8", errors="replace")
        found = json.loads(document.read_text(encoding="utf-8")) if document.is_file() else None
    message, hint = _read_errors(errors)
    problem = found.get("problem") if isinstance(found, dict) else None
    if isinstance(problem, dict):
        message, hint = problem.get("message") or message, problem.get("hint") or hint
    return Reply(status, text, found, message, hint, textwrap.dedent("".join(words[1:])))


def _to_stderr(line: str) -> None:
    sys.stderr.write(line)
    sys.stderr.flush()


def _shows_script(arguments: Sequence[str]) -> bool:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--show-output" in own


def _followed(
    command: Sequence[str],
    stdout: Any,
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str],
    tell: Callable[[str], object],
    everything: bool,
) -> tuple[int, list[str]]:
    """Run a command; return its status and the lines of its error message, which are not forwarded."""
    held: list[str] = []
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    with _ended(process):
        for line in process.stderr or ():
            if line.startswith("error:") or (held and not everything):
                held.append(line)
            if everything or not held:
                tell(line)
        status = process.wait()
    if status not in (0, 1, 2) and not held:
        held.append(f"error: the command ended with status {status}\n")
    return status, held


@contextlib.contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Interrupt the command if this process is interrupted: it then ends its script."""
    try:
        yield
    except BaseException:
        if process.poll() is None:
            # A terminal has sent the same signal already; a notebook has not.
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.wait(GRACE)
        raise
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stderr is not None:
            process.stderr.close()


def _read_errors(lines: Sequence[str]) -> tuple[str, str | None]:
    """Return the message and the hints of what the command printed."""
    hints = [line.removeprefix("hint:").strip() for line in lines if line.startswith("hint:")]
    said = [line.rstrip() for line in lines if not line.startswith("hint:")]
    message = "\n".join(said).removeprefix("error:").strip()
    # The rest of the message is about the command line, which does not help the caller of a function.
    for remark in ("\n\nUsage:", "\n\nFor more information"):
        message = message.partition(remark)[0]
    return message, "; ".join(hints) or None
