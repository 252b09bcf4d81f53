"""Runs a script on the CPU in float64 and writes down what it computes: losses, gradients, outputs.

`gradients.py` runs a script and its changed version with it and compares the records. Everything meant for a
CUDA device is on the CPU and every floating-point type is float64. The random numbers of a line are the same
in both versions (`memfit_probe.host.draws`). A tensor is recorded as its norm and its product with a fixed
vector.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any

import memfit
import torch
import torch._dynamo  # imported once, before the stand-ins are there
from torch.nn.modules import module
from torch.optim import optimizer as optimizers

sys.path.insert(0, str(Path(memfit.__file__).parent / "_probe"))
from memfit_probe.host import devices
from memfit_probe.host.draws import Draws

# CPU time, after which the numbers up to there are compared.
SECONDS = 3
# A single operation that takes long cannot be interrupted, only killed; a script may wait for something, too.
KILLED_AFTER = 10
GIVEN_UP_AFTER = 200
TOO_LONG = "it takes too long"
MAX_MEMORY = 8 << 30
MAX_SAMPLES = 8
# Records of one kind. Rounding grows from step to step, so later ones say less.
MAX_RECORDS = 60
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\bnan\b|\binf\b")
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
CASTS = {torch.Tensor.half, torch.Tensor.float, torch.Tensor.bfloat16}
FROM_OUTSIDE = ("tensor", "as_tensor", "from_numpy", "frombuffer")


class Stop(BaseException):
    """The time is over."""


class AsDouble(torch.overrides.TorchFunctionMode):
    """Replaces floating-point types with float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wide(value: Any) -> Any:
            return torch.float64 if isinstance(value, torch.dtype) and value in FLOATS else value

        if func in CASTS:
            func = torch.Tensor.double
        args = tuple(map(wide, args))
        result = func(*args, **{name: wide(value) for name, value in (kwargs or {}).items()})
        outside = getattr(func, "__name__", "") in FROM_OUTSIDE
        return result.double() if outside and result.dtype in FLOATS else result


class Records:
    """Results of the script, in order, by kind."""

    def __init__(self) -> None:
        self.kinds: dict[str, list[Any]] = {}
        self.ran: set[int] = set()

    def add(self, kind: str, values: Any) -> None:
        kept = self.kinds.setdefault(kind, [])
        if len(kept) < MAX_RECORDS:
            kept.append([fingerprint(value) for value in values])


@torch.no_grad()
def fingerprint(tensor: torch.Tensor | None) -> list[float] | None:
    """Return the norm of a tensor and its product with a fixed vector."""
    if tensor is None:
        return None
    tensor = tensor.detach()
    tensor = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    flat = tensor.reshape(-1).double()
    fixed = torch.cos(torch.arange(flat.numel(), dtype=torch.float64) * 0.7)
    return [float(flat.norm()), float(flat @ fixed) / max(1, flat.numel()) ** 0.5]


def tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [each for item in value for each in tensors(item)] if isinstance(value, (list, tuple)) else []


def listen(records: Records) -> None:
    """Record losses, gradients, and what modules return to the script."""
    engine = torch.autograd._engine_run_backward
    state = {"backward": 0, "depth": 0}

    def run(roots: Any, *args: Any, **kwargs: Any) -> Any:
        records.add("losses", roots)
        state["backward"] += 1
        try:
            result = engine(roots, *args, **kwargs)
        finally:
            state["backward"] -= 1
        if not kwargs.get("accumulate_grad", True):
            records.add("autograd.grad", result)
        return result

    # `torch.autograd.graph` and `torch.autograd` each have a name for it.
    torch.autograd._engine_run_backward = run  # type: ignore[assignment]

    def stepping(optimizer: Any, *_: Any) -> None:
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        records.add("gradients", [each.grad for each in parameters])

    def entered(*_: Any) -> None:
        state["depth"] += 1

    def left(_module: Any, _args: Any, result: Any) -> None:
        state["depth"] -= 1
        # A recomputation belongs to the backward pass.
        if not state["depth"] and not state["backward"]:
            records.add("outputs", tensors(result))

    optimizers.register_optimizer_step_pre_hook(stepping)
    module.register_module_forward_pre_hook(entered)
    module.register_module_forward_hook(left, always_call=True)


class Nothing(contextlib.nullcontext[None]):
    """Stands for a stream or a pool of the GPU."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


def stand_in() -> None:
    """Replace the parts of `torch.cuda` that have no counterpart on the host."""
    cuda, asks = torch.cuda, torch.cuda.is_available
    script = sys.argv[0]
    cuda.is_available = lambda: sys._getframe(1).f_code.co_filename == script or asks()
    for name in ("synchronize", "empty_cache", "set_per_process_memory_fraction", "reset_peak_memory_stats"):
        setattr(cuda, name, lambda *_, **__: None)
    for name in ("Stream", "stream", "current_stream", "default_stream", "Event", "MemPool", "use_mem_pool"):
        setattr(cuda, name, Nothing)
    cuda.memory._set_allocator_settings = lambda *_: None
    torch.Tensor.record_stream = lambda *_: None
    torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[assignment]
    torch.set_default_dtype(torch.float64)
    torch.set_default_dtype = lambda *_: None
    autocast = torch.amp.autocast_mode.autocast
    made = autocast.__init__

    def init(self: Any, *_: Any, **__: Any) -> None:
        made(self, "cpu", dtype=torch.bfloat16, enabled=False)

    autocast.__init__ = init  # type: ignore[method-assign]
    loader = torch.utils.data.DataLoader
    made_loader = loader.__init__

    def load(self: Any, dataset: Any, batch_size: Any = 1, *args: Any, **kwargs: Any) -> None:
        for name in ("num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context"):
            kwargs.pop(name, None)
        size = min(batch_size, MAX_SAMPLES) if isinstance(batch_size, int) else batch_size
        made_loader(self, dataset, size, *args, **kwargs)

    loader.__init__ = load  # type: ignore[method-assign]


class DrawsByLine(Draws):  # type: ignore[misc]
    """Gives a line the same random numbers, whatever the other lines draw."""

    def _rows(self, *_: Any) -> None:
        """No remedy with a diff divides a batch, so rows need no numbers of their own."""


def arm_draws() -> None:
    draws = DrawsByLine(torch)
    draws.arm()
    optimizers.register_optimizer_step_post_hook(lambda *_: draws.stepped())


def trace(script: str, wanted: set[int], ran: set[int]) -> None:
    """Note which of these lines of the script run."""

    def local(frame: Any, event: str, _: Any) -> Any:
        if event == "line" and frame.f_lineno in wanted:
            ran.add(frame.f_lineno)
        return local

    def called(frame: Any, *_: Any) -> Any:
        if frame.f_code.co_filename != script:
            return None
        if frame.f_lineno in wanted:
            ran.add(frame.f_lineno)
        return local

    sys.settrace(called)


def perform(script: str, lines: set[int]) -> dict[str, Any]:
    """Run a script in this process, which is of no use afterwards; note which of these lines run."""
    sys.argv = [script]
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (KILLED_AFTER, KILLED_AFTER))
    torch.set_num_threads(1)
    random.seed(0)
    torch.manual_seed(0)
    records, printed, rest = Records(), [], [""]

    def listening(text: str) -> int:
        *whole, rest[0] = (rest[0] + text).split("\n")
        printed.extend(whole)
        return len(text)

    sys.stdout.write = listening  # type: ignore[method-assign]
    stand_in()
    devices.arm(torch)
    AsDouble().__enter__()
    arm_draws()
    listen(records)

    def over(*_: Any) -> None:
        raise Stop

    signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    ended = "ended"
    trace(script, lines, records.ran)
    try:
        runpy.run_path(script, run_name="__main__")
    except Stop:
        ended = "out of time"
    except SystemExit:
        pass
    except BaseException as error:
        ended = f"{type(error).__name__}: {error}"
    sys.settrace(None)
    signal.setitimer(signal.ITIMER_PROF, 0)
    numbers = [list(map(float, NUMBER.findall(line))) for line in printed]
    records.kinds["printed numbers"] = [each for each in numbers if each][:MAX_RECORDS]
    return {"ended": ended, "ran": sorted(records.ran), "kinds": records.kinds}


def run(script: Path, lines: set[int]) -> dict[str, Any]:
    """Run a script in a fork of this process, which has imported torch already."""
    out = script.with_suffix(".json")
    out.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(script.parent)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            out.write_text(json.dumps(perform(str(script), lines)))
        finally:
            os._exit(0)
    until = time.monotonic() + GIVEN_UP_AFTER
    while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < until:
        time.sleep(0.05)
    # The script's own processes end with it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if time.monotonic() >= until:
        os.waitpid(child, 0)
        return {"ended": TOO_LONG, "ran": [], "kinds": {}}
    if not out.is_file():
        return {"ended": "the process ended", "ran": [], "kinds": {}}
    answer: dict[str, Any] = json.loads(out.read_text())
    return answer
