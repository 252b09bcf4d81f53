"""CUDA graphs: an optimizer's step that is captured has not happened yet, and happens with each replay."""

import functools
import weakref


class Graphs:
    """Which optimizers step in which graph."""

    def __init__(self, session):
        self.session = session
        # The optimizers that have stepped in the capture that is going on; None outside of one.
        self.capture = None
        self.steps = weakref.WeakKeyDictionary()

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
        """Whether a step that has just ended was captured, and did not happen."""
        if self.capture is None:
            return False
        self.capture.append(weakref.ref(optimizer))
        return True
