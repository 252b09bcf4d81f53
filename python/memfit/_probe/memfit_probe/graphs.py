"""CUDA graphs: a captured optimizer step happens with each replay, not in the capture, and steps on another
stream come before a capture.
"""

import functools
import weakref

# Steps on a stream of their own, beyond the requested ones, after which no capture is expected any more.
MAX_BEFORE = 16


class Graphs:
    """Tracks which optimizers step in which graph."""

    def __init__(self, session):
        self.session = session
        # The optimizers that stepped in the current capture; None outside of one.
        self.capture = None
        self.steps = weakref.WeakKeyDictionary()
        # `True` once any graph was captured, and the steps before that which would have ended the run.
        self.captured, self.before = False, 0

    def arm(self):
        graph = self.session.torch.cuda.CUDAGraph
        begin, end, replay = graph.capture_begin, graph.capture_end, graph.replay
        graphs = self

        @functools.wraps(begin)
        def capture_begin(self, *args, **kwargs):
            graphs.capture = []
            return begin(self, *args, **kwargs)

        @functools.wraps(end)
        def capture_end(self, *args, **kwargs):
            captured, graphs.capture = graphs.capture, None
            graphs.captured = True
            if captured:
                graphs.steps[self] = captured
            return end(self, *args, **kwargs)

        @functools.wraps(replay)
        def replayed(self, *args, **kwargs):
            result = replay(self, *args, **kwargs)
            for reference in graphs.steps.get(self, ()):
                optimizer = reference()
                if optimizer is not None:
                    graphs.session.stepped(optimizer)
            return result

        graph.capture_begin, graph.capture_end, graph.replay = capture_begin, capture_end, replayed

    def captures(self, optimizer):
        """Return `True` if an optimizer step was captured and so did not happen."""
        if self.capture is None:
            return False
        self.capture.append(weakref.ref(optimizer))
        return True

    def are_expected(self):
        """Return `True` if the script seems to warm up for a capture, whose memory the run is to include: it
        steps on a stream of its own, as PyTorch asks for before a capture.
        """
        cuda = self.session.torch.cuda
        if self.captured or not cuda.is_initialized() or cuda.current_stream() == cuda.default_stream():
            return False
        self.before += 1
        return self.before <= MAX_BEFORE
