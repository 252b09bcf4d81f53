"""`memfit.fits`: a function, instead of a script, on a virtual GPU."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._errors import MemfitError
from ..results.run import RunReport
from .options import Size
from .verbs import run

RUNNER = Path(__file__).resolve().parents[1] / "_runner" / "function.py"
#: Set in the function's process while it imports the script that defines the function.
IMPORTING = "MEMFIT_IMPORTING_MAIN"


def fits(
    function: Callable[..., object],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    gpu: str | None = None,
    memory: Size | None = None,
    calls: int = 1,
    **options: Any,
) -> RunReport:
    """Call a function on a virtual GPU: does it fit, and what fills the memory?

    The function runs in a process of its own. It and its arguments are pickled, so tensors among them belong
    on the CPU, and what it returns is dropped. A function of a module, or of the script that calls this, is
    found by its name; as with `multiprocessing`, a script must guard what only the script itself should do
    by `if __name__ == "__main__":`. Functions of notebooks, lambdas and closures need the package
    cloudpickle.

    A step is a call of an optimizer's `step`, and the run ends after three (`steps=0`: when the function
    returns). Without an optimizer, forward passes are counted, and the function runs to its end. A function
    that makes a single step has no optimizer state in its forward pass: `calls=2` calls it once more.
    `options` are those of `memfit.run`.
    """
    if os.environ.get(IMPORTING):
        raise MemfitError(
            "`memfit.fits` was called while the function's process imports this script: put the call under "
            '`if __name__ == "__main__":`'
        )
    if calls < 1:
        raise ValueError(f"calls must be at least 1, not {calls}")
    payload = _payload(function, tuple(args), dict(kwargs or {}), calls)
    with tempfile.TemporaryDirectory(prefix="memfit-function-") as folder:
        path = Path(folder, "call.pickle")
        path.write_bytes(payload)
        return run([sys.executable, str(RUNNER), str(path)], gpu=gpu, memory=memory, **options)


def _payload(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], calls: int) -> bytes:
    """Return what the function's process needs: where modules are found, and the call as a pickle."""
    name = getattr(function, "__qualname__", repr(function))
    main = _main() if _of_main(function) else {}
    by_value = (_of_main(function) and not main) or "<lambda>" in name or "<locals>" in name
    call = (function, args, kwargs)
    try:
        data = _by_value(call, name) if by_value else pickle.dumps(call)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if by_value:
            raise MemfitError(f"`{name}` or an argument cannot be pickled: {error}") from error
        data, main = _by_value(call, name), {}
    preparation = {"path": sys.path, "argv": sys.argv, "folder": os.getcwd(), "main": main, "calls": calls}
    return pickle.dumps({**preparation, "call": data, "importing": IMPORTING})


def _of_main(function: Any) -> bool:
    return getattr(function, "__module__", None) == "__main__"


def _main() -> dict[str, str]:
    """Return how another process can import the running script, or nothing if it has no file."""
    main = sys.modules["__main__"]
    if name := getattr(getattr(main, "__spec__", None), "name", None):
        return {"init_main_from_name": name}
    path = getattr(main, "__file__", None)
    return {"init_main_from_path": os.path.abspath(path)} if path and os.path.isfile(path) else {}


def _by_value(call: object, name: str) -> bytes:
    try:
        import cloudpickle
    except ModuleNotFoundError:
        raise MemfitError(
            f"`{name}` cannot be found by its name in another process, because it is defined in a notebook or "
            f"within a function: install cloudpickle (`{sys.executable} -m pip install cloudpickle`), or move it to "
            "a module"
        ) from None
    try:
        data: bytes = cloudpickle.dumps(call)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise MemfitError(f"`{name}` or an argument cannot be pickled: {error}") from error
    return data
