"""Reports an out-of-memory error: the request, the step, phase and module, and the script's stack; and the
exception that ended the script.
"""

import functools
import os
import sys
import sysconfig
import threading

from . import channel, folders, network, uncaught
from . import watch as codes
from .uncaught import HERE

MAX_FRAMES = 64
# Files in these folders were not written by the user.
LIBRARIES = tuple(
    {
        os.path.realpath(path) + os.sep
        for path in map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
        if path
    }
)


# Messages of libraries without memory for their handles, which PyTorch raises as a plain RuntimeError.
STARVED = (
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
)
# The allocator's message, which an extension built for any PyTorch version passes on in a RuntimeError.
PASSED_ON = "CUDA out of memory. Tried to allocate"


class OutOfMemory:
    """Combines PyTorch's out-of-memory callback, the text of its error, and the exception that ends the
    script.

    The callback runs for each request that fails. Not every one becomes an error: a convolution, for
    instance, falls back to an algorithm with a smaller workspace. So the data is kept until PyTorch creates
    the error.
    """

    def __init__(self, session):
        self.session = session
        self.announced = None
        self.raised = False
        # The uncaught exception, once it was reported.
        self.reported = None

    def arm(self):
        torch = self.session.torch
        torch.cuda._lazy_call(self._attach)
        network.arm()
        uncaught.watch_exits()
        folders.arm()
        error = self.error = (
            torch.OutOfMemoryError if hasattr(torch, "OutOfMemoryError") else torch.cuda.OutOfMemoryError
        )
        init, raised = error.__init__, self._raised

        def made(self, *args, **kwargs):
            init(self, *args, **kwargs)
            raised(str(args[0]) if args else "")

        error.__init__ = made
        # Before Python waits for threads that may never end.
        register = getattr(threading, "_register_atexit", None)
        if register is not None:
            register(self._report_early)

    def _report_early(self):
        """Report the uncaught exception before threads are joined."""
        if not self.session.ended and self.session.pid == os.getpid():
            try:
                self.report_uncaught()
            except Exception as error:
                self.session.remark("probe-failed", error, where="at the end")

    def _attach(self):
        try:
            self.session.torch._C._cuda_attach_out_of_memory_observer(self._observe)
        except Exception as error:
            self.session.remark("no-place", error)

    def _observe(self, device, requested, _total, _free):
        """Record a failed request. The frames, which name the modules involved, are gone when the error is
        created.
        """
        session = self.session
        try:
            watch = session.watch
            frames = frames_here()
            self.announced = {
                "requested": requested,
                "device": device,
                "step": session.steps.complete + 1,
                "phase": codes.PHASES.get(
                    watch.current_phase() if watch is not None else codes.OTHER, "other"
                ),
                "module": session.text_of(watch.module()) if watch is not None else None,
                "evaluation": session.evaluating,
                "stack": stack(frames),
            }
            if watch is not None:
                for module in being_moved(frames, session.torch.nn.Module):
                    session.notes.all_of(module)
        except Exception as error:
            session.remark("probe-failed", error, where="where memory ran out")

    def _raised(self, text):
        """Report the error that PyTorch has created, with this text."""
        session = self.session
        try:
            announced, self.announced = self.announced, None
            if announced is None:
                return
            channel.send("oom", **announced)
            channel.send("oom_text", text=text)
            session.passes.ran_out()
            if session.watch is not None:
                session.notes.everything()
                # Copies of the parameters are otherwise sought before the first backward pass, which this run
                # has not reached.
                if not session.had_backward:
                    session.notes.copies()
                session.sizes.out_of_memory()
        except Exception as error:
            session.remark("probe-failed", error, where="where memory ran out")

    def report_uncaught(self):
        """Report the uncaught exception at exit."""
        exception = uncaught.find()
        if exception is None:
            exception = uncaught.left_with(self.session.steps.complete)
        if exception is None or self.reported is exception:
            return
        self.reported = exception
        text = str(exception)
        starved = any(status in text for status in STARVED)
        passed_on = PASSED_ON in text
        if passed_on and not isinstance(exception, self.error):
            self._raised(text)
        if starved and not isinstance(exception, self.error):
            channel.send("oom", **self._starved(exception))
            channel.send("oom_text", text=text)
        # An error in a child process arrives here as text.
        oom = isinstance(exception, self.error) or "OutOfMemoryError" in text or starved or passed_on
        session = self.session
        stand_ins = (session.reads, session.made_up, session.weights)
        uncaught.send(exception, oom, *(self._may_reach(each, exception) for each in stand_ins))

    def _may_reach(self, stand_in, exception):
        """Return `False` if no value of a stand-in can have reached the statement that failed."""
        try:
            return stand_in is None or stand_in.may_reach(exception)
        except Exception as error:
            self.session.remark("probe-failed", error, where="where the script failed")
            return True

    def _starved(self, exception):
        """Describe a library's failed allocation: it is outside of PyTorch's allocator, and its size is the
        most that this GPU's libraries take.
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
    """Return the phase of the innermost of these frames that shows it."""
    for frame in reversed(frames):
        name = frame.f_code.co_name
        if name in ("_engine_run_backward", "backward"):
            return codes.BACKWARD
        if name in ("forward", "_call_impl"):
            return codes.FORWARD
        if name == "step":
            return codes.OPTIMIZER
    return codes.OTHER


def frames_here():
    """Return the frames of the code that requests memory, innermost first.

    A generator that is left early would keep these frames, and all tensors in them, until garbage is
    collected.
    """
    found = []
    outside = sys._getframe(1)
    while outside is not None and outside.f_code.co_filename.startswith(HERE):
        outside = outside.f_back
    if outside is None and threading.current_thread() is not threading.main_thread():
        # A thread of the autograd engine: its caller is on the main thread.
        outside = sys._current_frames().get(threading.main_thread().ident)
    while outside is not None:
        if not outside.f_code.co_filename.startswith(HERE):
            found.append(outside)
        outside = outside.f_back
    return found


def variables_of(frame):
    """Return the variables of a frame, which does not keep their values alive because of that."""
    from memfit_levers.variables import variables

    return variables(frame)


def stack(frames):
    """Format frames as `file:line in function`, innermost first: the user's own, then those of libraries."""
    own, others = [], []
    for frame in frames[:MAX_FRAMES]:
        code = frame.f_code
        text = f"{code.co_filename}:{frame.f_lineno} in {getattr(code, 'co_qualname', code.co_name)}"
        (others if is_library(code.co_filename) else own).append(text)
    return own + others


def being_moved(frames, module_class):
    """Return the modules that are being moved by `module.to(device)` or similar."""
    from memfit_levers.variables import variables

    found = (variables(frame).get("self") for frame in frames if frame.f_code.co_name == "_apply")
    return [module for module in found if isinstance(module, module_class)]


@functools.lru_cache(maxsize=4096)
def is_library(path):
    """Return `True` if a file belongs to Python or to an installed package."""
    return (
        path.startswith("<")
        or os.path.realpath(path).startswith(LIBRARIES)
        or f"{os.sep}site-packages{os.sep}" in path
    )
