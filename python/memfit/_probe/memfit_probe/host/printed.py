"""The script's output, saved by one run and compared in another: losses and scores, batch by batch."""

import json
import math
import os
import re
import sys

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\bnan\b|\binf\b")
# Maximum number of saved lines.
MAX_LINES = 2000
# Tolerances for printed numbers, which are often rounded to a few digits.
_RELATIVE_TOLERANCE = 2e-3
_ABSOLUTE_TOLERANCE = 1.5e-4


class Printed:
    """The lines that this process prints."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "printed.json")
        self.lines = []

    def listen(self):
        """Start recording; the output is still printed."""
        stream, lines = sys.stdout, self.lines
        original = stream.write
        rest = [""]

        def write(text):
            if isinstance(text, str) and len(lines) < MAX_LINES:
                *whole, rest[0] = (rest[0] + text).split("\n")
                lines.extend(whole)
            return original(text)

        stream.write = write

    def keep(self, volatile=None):
        """Save the lines. `volatile` are numbers that differ between two runs of the same script, by line and
        position.
        """
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump({"lines": self.lines, "volatile": volatile}, file)

    def keep_again(self):
        """Save which numbers of the first run differ in this run of the same script."""
        wanted, _ = self._read()
        volatile = None
        if len(self.lines) == len(wanted):
            volatile = []
            for line, (one, other) in enumerate(zip(self.lines, wanted, strict=True)):
                pairs = _pairs(one, other)
                if pairs is None:
                    # The text itself differs between runs.
                    volatile.append([line, None])
                else:
                    volatile += [[line, place] for place, pair in enumerate(pairs) if not _alike(*pair)]
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump({"lines": wanted, "volatile": volatile}, file)

    def unlike(self):
        """Return the first line whose numbers differ, and the earlier line; None if all agree, or if two runs
        of the same script print different lines.
        """
        wanted, volatile = self._read()
        if volatile is None:
            return None
        changing = {(line, place) for line, place in volatile}
        for line, (one, other) in enumerate(zip(self.lines, wanted, strict=False)):
            if (line, None) in changing:
                continue
            pairs = _pairs(one, other)
            alike = pairs is not None and all(
                (line, place) in changing or _alike(*pair) for place, pair in enumerate(pairs)
            )
            if not alike:
                return [one, other]
        longer = max(self.lines, wanted, key=len)
        if len(self.lines) == len(wanted):
            return None
        extra = longer[min(len(self.lines), len(wanted))]
        return [extra, ""] if longer is self.lines else ["", extra]

    def _read(self):
        with open(self.path, encoding="utf-8") as file:
            kept = json.load(file)
        return kept["lines"], kept["volatile"]


def _pairs(one, other):
    """Return the numbers of two lines as pairs; None if the lines differ in anything else."""
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return None
    numbers = (map(float, _NUMBER.findall(line)) for line in (one, other))
    return list(zip(*numbers, strict=True))


def _alike(one, other):
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return (
        one == other
        or abs(one - other) <= _RELATIVE_TOLERANCE * max(abs(one), abs(other)) + _ABSOLUTE_TOLERANCE
    )
