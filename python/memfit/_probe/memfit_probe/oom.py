"""Where memory ran out: what was asked for, in which step, phase and module, and the script's own stack; and how it all ended."""

import os
import sys
import sysconfig
import threading

from . import channel
from . import watch as codes

MAX_FRAMES = 64
HERE = os.path.dirname(os.path.abspath(__file__))
# What is found under these was not written by the user.
LIBRARIES = tuple(
    {os.path.realpath(path) + os.sep for path in map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")) if path}
)


class OutOfMemory:
    """PyTorch's own announcement, the text of its error, and the exception that ends the script."""

    def __init__(self, session):
        self.session = session

    def arm(self):
        torch = self.session.torch
        torch.cuda._lazy_call(self._attach)
        error = torch.OutOfMemoryError if hasattr(torch, "OutOfMemoryError") else torch.cuda.OutOfMemoryError
        self.error = error
        init, last = error.__init__, []

        def made(self, *args, **kwargs):
            init(self, *args, **kwargs)
            try:
                text = str(args[0]) if args else ""
                if text and text not in last:
                    last[:] = [text]
                    channel.send("oom_text", text=text)
            except Exception:  # noqa: S110 - the error itself matters more than its copy
                pass

        try:
            error.__init__ = made
        except TypeError:
            self.session.note("this PyTorch's out-of-memory texts are only known where they end the script")

    def _attach(self):
        try:
            self.session.torch._C._cuda_attach_out_of_memory_observer(self._observe)
        except Exception as error:
            self.session.note(f"where memory ran out is not known: {type(error).__name__}: {error}")

    def _observe(self, device, requested, _total, _free):
        session = self.session
        try:
            watch = session.watch
            phase = watch.current_phase() if watch is not None else codes.OTHER
            channel.send(
                "oom",
                requested=requested,
                device=device,
                step=session.steps.complete + 1,
                phase=codes.PHASES.get(phase, "other"),
                module=session.text_of(watch.module()) if watch is not None else None,
                stack=stack(),
            )
            if watch is not None:
                session.notes.everything()
                session.sizes.out_of_memory()
        except Exception as error:
            session.note(f"the probe failed where memory ran out: {type(error).__name__}: {error}")

    def tell_uncaught(self):
        """At exit: Python keeps the exception that nothing caught."""
        exception = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if exception is None or isinstance(exception, SystemExit):
            return
        import traceback

        kind = type(exception)
        text = str(exception)
        channel.send(
            "exception",
            type=kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
            message=text,
            traceback="".join(traceback.format_exception(kind, exception, exception.__traceback__)),
            # An error of a child process comes here as text.
            oom=isinstance(exception, self.error) or "OutOfMemoryError" in text,
        )


def stack():
    """`file:line in function`, innermost first: the user's own frames, then those of libraries."""
    frame = sys._getframe(1)
    if threading.current_thread() is not threading.main_thread() and _is_ours_alone(frame):
        # A thread of the autograd engine: what called it is on the main thread.
        frame = sys._current_frames().get(threading.main_thread().ident)
    own, others = [], []
    while frame is not None and len(own) + len(others) < MAX_FRAMES:
        path = frame.f_code.co_filename
        if not path.startswith(HERE):
            text = f"{path}:{frame.f_lineno} in {getattr(frame.f_code, 'co_qualname', frame.f_code.co_name)}"
            (others if is_library(path) else own).append(text)
        frame = frame.f_back
    return own + others


def _is_ours_alone(frame):
    while frame is not None:
        if not frame.f_code.co_filename.startswith(HERE):
            return False
        frame = frame.f_back
    return True


def is_library(path):
    """Whether a file belongs to Python or to an installed package."""
    return path.startswith("<") or os.path.realpath(path).startswith(LIBRARIES) or f"{os.sep}site-packages{os.sep}" in path
