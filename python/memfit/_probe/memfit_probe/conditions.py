"""Conditions on values that only a GPU computes: their results, which a further run inverts.

A condition is a comparison whose result is seen, or that a plain number is the one which the script compares
it with (`compared`).
"""

import ast

from . import asserts, branches, channel, compared, flows, shown_texts
from .oom import frames_here, is_library

# Parts of an expression that Python evaluates once for each of several elements.
REPEATED = (ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp, ast.Lambda)
# Maximum number of elements for which a condition in such a part counts as one evaluation.
MAX_ELEMENTS = 4096
# Beginning of the place of a condition on a number in a file.
FILED = "file="
# The name of the assumption that a count affects control flow as a condition.
TRUTH = b"unknown-truth"


class Conditions:
    """Conditions at each place, and which of them this run inverts."""

    def __init__(self, session, known):
        self.session, self.known = session, known
        self.compared = compared.Compared()
        # Evaluations of each place, and of its last one the number of elements and of allocations before it.
        self.counts, self.elements = {}, {}

    @property
    def others(self):
        """The values of this run other than the first run's. A forked process gets its own."""
        return self.session.setup["others"]

    def truth(self, truth):
        """Return a comparison's result, inverted if this run inverts it."""
        return truth != self._inverts()

    def of_count(self, truth):
        """Return the result of a comparison of an unknown count, inverted if this run inverts it."""
        self.known.assumed(TRUTH)
        return self.truth(truth)

    def check(self, truth, frame, is_check=branches.may_work):
        """Return the result of a check for finite values, inverted if this run inverts it. One that only
        stops a training, or tells of it, is passed, and so are those of libraries.
        """
        passed = is_library(frame.f_code.co_filename) or asserts.holds(frame) is not None
        if passed or not is_check(frame, truth):
            return truth
        return self.of_count(truth)

    def number(self, read, upper=None, only_lookups=False):
        """Return the plain number that the script reads, or one that it is compared with if this run inverts
        the condition that it is that one. `upper` is the bound of a count.
        """
        frames = frames_here()
        if self.others["number"] is not None or not frames or is_library(frames[0].f_code.co_filename):
            return read
        place = f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}+{frames[0].f_lasti}"
        found = self.compared.numbers(frames, read, only_lookups)
        if upper is not None:
            found = [each for each in found if 0 <= each <= upper]
        named = {f"{place}={each}": each for each in found}
        for name in named.keys() - self.counts.keys():
            self.counts[name] = 0
            channel.send("condition", place=name)
        taken = [number for name, number in named.items() if self._is_taken(name)]
        if not taken:
            return read
        # One after the other, but the same for all elements.
        count = self._count(place, frames[0]) - 1
        return taken[count % len(taken)] if count < self.others["times"] * len(taken) else read

    def comes_back(self):
        """Record the numbers with which the script compares what it reads from a file that may hold unknown
        ones. That one is in the file is a condition. As it has to be written there, a run that inverts it
        has it in place of all unknown numbers that are shown.
        """
        frames = frames_here()
        while frames and is_library(frames[0].f_code.co_filename):
            frames = frames[1:]
        if not frames or self.others["number"] is not None:
            return
        for number in self.compared.numbers(frames, 0.0):
            name = f"{FILED}{number}"
            if name not in self.counts:
                self.counts[name] = 0
                channel.send("condition", place=name)

    @property
    def filed(self):
        """The number that comes back from files in this run, if that is inverted."""
        inverted = self.others["conditions"]
        named = () if inverted in (None, "all") else inverted["only"]
        numbers = [float(each[len(FILED) :]) for each in named if each.startswith(FILED)]
        return numbers[0] if numbers else None

    def _inverts(self):
        """Return `True` if this run inverts the condition that the caller evaluates: at some places or at
        all, and only the first times, since a loop may wait for it.
        """
        frames = frames_here()
        path, line, libraries = flows.site(frames)
        # One line may have several conditions.
        offset = f"+{frames[0].f_lasti}" if frames and not libraries else ""
        place = " > ".join([f"{path}:{line}{offset}", *libraries])
        if place not in self.counts:
            self.counts[place] = 0
            channel.send("condition", place=place)
        if not self._is_taken(place):
            return False
        return self._count(place, frames[0] if offset else None) <= self.others["times"]

    def _count(self, place, frame):
        """Count an evaluation of a place."""
        self.counts.setdefault(place, 0)
        if not self._is_next_element(place, frame):
            self.counts[place] += 1
        return self.counts[place]

    def _is_taken(self, place):
        inverted = self.others["conditions"]
        return inverted is not None and (inverted == "all" or place in inverted["only"])

    def _is_next_element(self, place, frame):
        """Return `True` if a condition is evaluated for the next of several elements, as in `all(… for …)`,
        which end without the condition.
        """
        if frame is None or not _is_repeated(frame):
            return False
        statistics = self.session.torch.cuda.memory_stats_as_nested_dict()
        made = statistics.get("allocation", {}).get("all", {}).get("allocated", 0)
        elements, before = self.elements.get(place, (0, None))
        is_next = made == before and elements < MAX_ELEMENTS
        self.elements[place] = (elements + 1 if is_next else 0, made)
        return is_next


def _is_repeated(frame):
    source = shown_texts.source_of(frame.f_code.co_filename)
    node = source.at(frame.f_code, frame.f_lineno, frame.f_lasti)
    while node is not None and not isinstance(node, ast.stmt):
        if isinstance(node, REPEATED):
            return True
        node = source.parents.get(node)
    return False
