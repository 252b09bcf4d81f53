"""Where memory ran out: what was asked for, in which step, phase and module, and the script's own stack; and
how it all ended.
"""

import os
import sys
import sysconfig
import threading

from . import channel, mistakes
from . import watch as codes

MAX_FRAMES = 64
HERE = os.path.dirname(os.path.abspath(__file__))
# What is found under these was not written by the user.
LIBRARIES = tuple(
    {
        os.path.realpath(path) + os.sep
        for path in map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
        if path
    }
)


# What a library says when there is no memory left for its handle; PyTorch raises it as a plain RuntimeError.
STARVED = (
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
)
# The allocator's own words: an operation that was built for any release of PyTorch passes them on in a
# RuntimeError.
PASSED_ON = "CUDA out of memory. Tried to allocate"


class OutOfMemory:
    """PyTorch's own announcement, the text of its error, and the exception that ends the script.

    The allocator announces each request that it cannot serve. Not each becomes an error: a convolution, for
    one, takes an algorithm that needs less workspace. So an announcement is kept until PyTorch makes the
    error's text.
    """

    def __init__(self, session):
        self.session = session
        self.announced = None
        self.raised = False

    def arm(self):
        torch = self.session.torch
        torch.cuda._lazy_call(self._attach)
        error = self.error = (
            torch.OutOfMemoryError if hasattr(torch, "OutOfMemoryError") else torch.cuda.OutOfMemoryError
        )
        init, raised = error.__init__, self._raised

        def made(self, *args, **kwargs):
            init(self, *args, **kwargs)
            raised(str(args[0]) if args else "")

        error.__init__ = made

    def _attach(self):
        try:
            self.session.torch._C._cuda_attach_out_of_memory_observer(self._observe)
        except Exception as error:
            self.session.remark("no-place", error)

    def _observe(self, device, requested, _total, _free):
        """A request cannot be served. Python may hold what it needs by frames that are gone when the error is
        made.
        """
        session = self.session
        try:
            watch = session.watch
            frames = list(frames_here())
            self.announced = {
                "requested": requested,
                "device": device,
                "step": session.steps.complete + 1,
                "phase": codes.PHASES.get(
                    watch.current_phase() if watch is not None else codes.OTHER, "other"
                ),
                "module": session.text_of(watch.module()) if watch is not None else None,
                "stack": stack(frames),
            }
            if watch is not None:
                for module in being_moved(frames, session.torch.nn.Module):
                    session.notes.all_of(module)
        except Exception as error:
            session.remark("probe-failed", error, where="where memory ran out")

    def _raised(self, text):
        """PyTorch has made the error, with this text."""
        session = self.session
        try:
            announced, self.announced = self.announced, None
            if announced is None:
                return
            channel.send("oom", **announced)
            channel.send("oom_text", text=text)
            if session.watch is not None:
                session.notes.everything()
                session.sizes.out_of_memory()
        except Exception as error:
            session.remark("probe-failed", error, where="where memory ran out")

    def tell_uncaught(self):
        """At exit: Python keeps the exception that nothing caught."""
        exception = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if exception is None or isinstance(exception, SystemExit):
            return
        import traceback

        kind = type(exception)
        text = str(exception)
        starved = any(status in text for status in STARVED)
        passed_on = PASSED_ON in text
        if passed_on and not isinstance(exception, self.error):
            self._raised(text)
        if starved and not isinstance(exception, self.error):
            channel.send("oom", **self._starved(exception))
            channel.send("oom_text", text=text)
        # The script's own frames and torch's, without those that the probe has put between them.
        told = traceback.TracebackException(kind, exception, exception.__traceback__)
        leave_out(told)
        channel.send(
            "exception",
            type=kind.__qualname__
            if kind.__module__ == "builtins"
            else f"{kind.__module__}.{kind.__qualname__}",
            message=text,
            traceback="".join(told.format()),
            program=mistakes.of_the_program(exception),
            # An error of a child process comes here as text.
            oom=isinstance(exception, self.error) or "OutOfMemoryError" in text or starved or passed_on,
        )

    def _starved(self, exception):
        """Where a library found no memory for itself: what it wants lies outside PyTorch's allocator, and is
        what this card's libraries take at the most.
        """
        session = self.session
        cards = session.setup["cards"]
        frames, traceback = [], exception.__traceback__
        while traceback is not None:
            frames.append(traceback.tb_frame)
            traceback = traceback.tb_next
        mine = [frame for frame in reversed(frames) if not frame.f_code.co_filename.startswith(HERE)]
        return {
            "requested": cards[0]["overhead"]["libraries"]["high"] if cards else 0,
            "device": 0,
            "step": session.steps.complete + 1,
            "phase": codes.PHASES.get(phase_of(frames), "other"),
            "module": None,
            "stack": stack(mine),
        }


def phase_of(frames):
    """What these frames were doing, the innermost that tells."""
    for frame in reversed(frames):
        name = frame.f_code.co_name
        if name in ("_engine_run_backward", "backward"):
            return codes.BACKWARD
        if name in ("forward", "_call_impl"):
            return codes.FORWARD
        if name == "step":
            return codes.OPTIMIZER
    return codes.OTHER


def leave_out(told):
    """Takes the probe's frames out of a traceback, and out of those that it stands upon."""
    waiting, seen = [told], set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.stack[:] = [frame for frame in one.stack if not frame.filename.startswith(HERE)]
        waiting += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]


def frames_here():
    """The frames of the code that asks for memory, innermost first."""
    frame = sys._getframe(1)
    outside = frame
    while outside is not None and outside.f_code.co_filename.startswith(HERE):
        outside = outside.f_back
    if outside is None and threading.current_thread() is not threading.main_thread():
        # A thread of the autograd engine: what called it is on the main thread.
        outside = sys._current_frames().get(threading.main_thread().ident)
    while outside is not None:
        if not outside.f_code.co_filename.startswith(HERE):
            yield outside
        outside = outside.f_back


def stack(frames):
    """`file:line in function`, innermost first: the user's own frames, then those of libraries."""
    own, others = [], []
    for frame in frames[:MAX_FRAMES]:
        code = frame.f_code
        text = f"{code.co_filename}:{frame.f_lineno} in {getattr(code, 'co_qualname', code.co_name)}"
        (others if is_library(code.co_filename) else own).append(text)
    return own + others


def being_moved(frames, module_class):
    """The modules that `module.to(device)` and the like are moving now."""
    from memfit_levers.variables import variables

    found = (variables(frame).get("self") for frame in frames if frame.f_code.co_name == "_apply")
    return [module for module in found if isinstance(module, module_class)]


def is_library(path):
    """Whether a file belongs to Python or to an installed package."""
    return (
        path.startswith("<")
        or os.path.realpath(path).startswith(LIBRARIES)
        or f"{os.sep}site-packages{os.sep}" in path
    )
