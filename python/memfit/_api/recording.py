"""`memfit.record`: a recording of a part of a program on a real GPU."""

from __future__ import annotations

import os
import pickle
import tempfile
import types
import warnings
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from .._errors import CommandError, MemfitError
from .command import ask
from .options import Path

if TYPE_CHECKING:
    from ..results.explain import ExplainReport

SNAPSHOT_SUFFIXES = (".pickle", ".pkl")


def record(path: Path, *, max_entries: int = 1_000_000) -> Recorder:
    """Record what PyTorch allocates within a `with` block on a real GPU, and write it to `path`.

    `memfit explain`, `view`, `replay` and `convert` read the file. It is also written if an exception leaves
    the block, an out-of-memory error above all. Of more than `max_entries` events, the last ones are kept. A
    path that ends in `.pickle` gets PyTorch's own format.

    A memory history that was on before stays on, with its own settings. Without a CUDA device, `MemfitError`
    is raised: `memfit.run` needs none.
    """
    return Recorder(path, max_entries)


class Recorder:
    """The context manager that `memfit.record` returns."""

    def __init__(self, path: Path, max_entries: int) -> None:
        self.path = os.path.abspath(os.fspath(path))
        """The file that is written."""
        self._max_entries = max_entries
        self._was_on = False
        self._before: list[Any] = []

    def __enter__(self) -> Recorder:
        import torch

        if not torch.cuda.is_available():
            raise MemfitError(
                "`memfit.record` records a real GPU, and PyTorch finds no CUDA device here: `memfit.run` and "
                "`memfit.fits` need none"
            )
        if not os.path.isdir(os.path.dirname(self.path)):
            raise MemfitError(f"the folder of `{self.path}` does not exist")
        # PyTorch crashes if the memory history is queried before this.
        torch.cuda.init()
        memory = torch.cuda.memory
        # The history recorded by `memfit run` itself is replaced.
        self._was_on = bool(torch._C._cuda_isHistoryEnabled()) and "MEMFIT_RUN_DIR" not in os.environ
        if self._was_on:
            self._before = [trace[-1] if trace else None for trace in memory._snapshot()["device_traces"]]
        else:
            memory._record_memory_history("all", stacks="python", max_entries=self._max_entries)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        try:
            self._write(self._taken())
        except Exception as problem:
            if error is None:
                raise
            # The error that leaves the block is more informative, so this is only a warning.
            warnings.warn(f"memfit could not write `{self.path}`: {problem}", stacklevel=2)

    def explain(self, **options: Any) -> ExplainReport:
        """Explain the recording, as `memfit.explain` does."""
        from .verbs import explain

        return explain(self.path, **options)

    def _taken(self) -> dict[str, Any]:
        import torch

        memory = torch.cuda.memory
        try:
            snapshot: dict[str, Any] = memory._snapshot()
        finally:
            if not self._was_on:
                memory._record_memory_history(enabled=None)
        traces = snapshot["device_traces"]
        for device, last in enumerate(self._before):
            # Drop the events before the block. If the last of them was overwritten, all are newer.
            if last is not None and last in traces[device]:
                traces[device] = traces[device][traces[device].index(last) + 1 :]
        return snapshot

    def _write(self, snapshot: dict[str, Any]) -> None:
        import torch

        if self.path.endswith(SNAPSHOT_SUFFIXES):
            with open(self.path, "wb") as file:
                pickle.dump(snapshot, file)
            return
        with tempfile.TemporaryDirectory(prefix=".memfit-", dir=os.path.dirname(self.path)) as folder:
            taken = FilePath(folder, "snapshot.pickle")
            with taken.open("wb") as file:
                pickle.dump(snapshot, file)
            release = torch.__version__.partition("+")[0]
            options = ["--to=memfit", "--force", f"--torch={release}", "--", str(taken), self.path]
            reply = ask("convert", options, progress=False, answers=False)
            if reply.status != 0:
                kept = f"{self.path}.pickle"
                os.replace(taken, kept)
                message = f"the recording could not be converted: {reply.message}"
                raise CommandError(message, hint=f"PyTorch's snapshot of it is kept in `{kept}`")
