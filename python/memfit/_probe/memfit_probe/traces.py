"""Reports the origin of blocks and the changes of segments from PyTorch's memory history to the event log,
with each frame and each stack once.
"""

import os

from . import watch as codes

# Frames of the probe are not part of the script's stacks.
OWN = os.path.dirname(os.path.abspath(__file__))


class Traces:
    """The stacks and frames already in the log."""

    def __init__(self, session):
        self.session = session
        self.frames = {}
        self.stacks = {}

    def forget(self):
        self.frames.clear()
        self.stacks.clear()

    def send(self, device, first, trace):
        """Report a device's history; its allocations are numbered from `first` on."""
        watch, number, seen = self.session.watch, first - 1, {}
        stacks, streams, times = [], [], []
        for entry in trace:
            action, stream = entry["action"], entry["stream"] & (2**64 - 1)
            if action == "alloc":
                number += 1
                stacks.append(self._stack(entry.get("frames") or (), seen))
                streams.append(stream)
                times.append(entry.get("time_us", 0))
            elif action == "oom":
                asked = self._stack(entry.get("frames") or (), seen)
                watch.traced(
                    device, codes.REFUSED | (number + 1), [asked], [stream], [entry.get("time_us", 0)]
                )
            elif action in codes.SEGMENT_CHANGES:
                segment = codes.Segment(
                    address=entry["addr"],
                    bytes=entry["size"],
                    stream=stream,
                    time_us=entry.get("time_us", 0),
                    stack=self._stack(entry.get("frames") or (), seen),
                    change=codes.SEGMENT_CHANGES[action],
                )
                watch.segment(device, number, segment)
        watch.traced(device, first, stacks, streams, times)

    def _stack(self, frames, seen):
        """Return the number of a stack. Within one history, equal frames are the same object."""
        key = tuple(map(id, frames))
        number = seen.get(key)
        if number is None:
            known = tuple(self._frame(frame) for frame in frames if not frame["filename"].startswith(OWN))
            number = self.stacks.get(known, 0)
            if known and not number:
                number = self.stacks[known] = len(self.stacks) + 1
                self.session.watch.stack(number, known)
            seen[key] = number
        return number

    def _frame(self, frame):
        key = frame["filename"], frame["name"], frame["line"]
        number = self.frames.get(key)
        if number is None:
            number = self.frames[key] = len(self.frames) + 1
            text, line = self.session.text, max(frame["line"], 0)
            self.session.watch.frame(number, text(frame["name"]), text(frame["filename"]), line)
        return number
