"""Whether a loss compares the samples of a batch with each other, as far as the operations of one forward
show it.

On a virtual card nothing is computed, so nothing can be compared in numbers, as `memfit.Step` does before it
divides a batch. What is seen here only spares a search the divisions that are sure to change the training:
that it is not seen proves nothing.
"""

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

# What takes something over dimensions that its second argument, or nothing, names.
_REDUCTIONS = {
    *("sum", "mean", "var", "std", "var_mean", "amax", "amin", "max", "min", "prod", "logsumexp", "median"),
    *("linalg_vector_norm", "norm", "any", "all", "count_nonzero", "argmax", "argmin"),
}
_ALONG = {"_softmax", "_log_softmax", "cumsum", "cumprod", "sort"}
_PRODUCTS = {"mm", "addmm", "_cdist_forward", "_euclidean_dist"}
_FOLDS = {"view", "_unsafe_view", "reshape", "_reshape_alias", "clone", "flatten"}
# Of what was taken over the batch.
_TAKEN = object()


class Mixing(TorchDispatchMode):
    """Watches the operations on tensors that a batch's samples are in; `compared` is the answer."""

    def __init__(self, samples):
        super().__init__()
        self.compared = False
        # Whether an operation came that could not be followed: nothing is said from then on.
        self.lost = False
        self._samples = samples
        # Where samples lie, and in how many rows: a multiple where another dimension is folded into theirs.
        # What is not here is not known to depend on them.
        self._places = WeakTensorKeyDictionary()

    def follow(self, tensor):
        """Samples lie in this one, if its first dimension is as long as there are samples."""
        if tensor.dim() > 0 and tensor.size(0) == self._samples:
            self._places[tensor] = (0, self._samples)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        returned = func(*args, **(kwargs or {}))
        if not self.lost:
            try:
                self._see(func._schema.name.split("::")[-1].rstrip("_"), args, returned)
            except Exception:
                # A training does not end because of who looks on.
                self.lost = True
        return returned

    def _see(self, name, args, returned):
        known = [(value, self._places[value]) for value in _tensors(args) if value in self._places]
        outputs = list(_tensors(returned))
        if not outputs or not known:
            return
        samples = [(value, place) for value, place in known if place is not _TAKEN]
        if not samples:
            self._places.update(dict.fromkeys(outputs, _TAKEN))
            return
        first, (place, rows) = samples[0]
        # What was taken over the batch comes back to its samples; a single number that all are divided by
        # does not compare them.
        back = [value for value, where in known if where is _TAKEN and value.dim() > 0]
        if back and any(_has(output, place, rows) for output in outputs):
            self.compared = True
        if name in _PRODUCTS and len(samples) > 1 and outputs[0].shape == (rows, rows):
            self.compared = True
        if name in _ALONG and first.dim() > 1 and place in _dimensions(args[1:2], first.dim(), -1):
            self.compared = True
        # Norms name which one they are before they name dimensions.
        named = args[2:3] if name in ("linalg_vector_norm", "norm") else args[1:2]
        for output in outputs:
            if name in _REDUCTIONS and place in _dimensions(named, first.dim(), None):
                self._places[output] = _TAKEN
            else:
                there = self._moved(name, args, place, rows, first, output)
                if there is not None:
                    self._places[output] = there

    def _moved(self, name, args, place, rows, first, output):
        """Where the samples are after an operation, and in how many rows; None where that cannot be told."""
        if name in ("t", "transpose", "permute"):
            order = list(range(first.dim()))
            if name == "permute":
                order = [index % first.dim() for index in args[1]]
            else:
                one, other = (0, 1) if name == "t" else (args[1] % first.dim(), args[2] % first.dim())
                if first.dim() > 1:
                    order[one], order[other] = order[other], order[one]
            return order.index(place), rows
        if name == "unsqueeze" and args[1] % (first.dim() + 1) <= place:
            place += 1
        if _has(output, place, rows):
            return place, rows
        # Folded into rows with another dimension, or taken apart again.
        if (
            name in _FOLDS
            and place == 0
            and output.dim()
            and output.size(0)
            and output.size(0) % self._samples == 0
        ):
            return 0, output.size(0)
        return None


def _has(tensor, place, rows):
    return tensor.dim() > place and tensor.size(place) == rows


def _dimensions(named, count, default):
    """The dimensions that an operation names; all where it names none."""
    value = named[0] if named else default
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value]
    listed = [each for each in value if isinstance(each, int)] if isinstance(value, (list, tuple)) else []
    return {each % max(count, 1) for each in listed} or set(range(count))


def _tensors(value):
    if isinstance(value, (list, tuple)):
        for entry in value:
            yield from _tensors(entry)
    elif hasattr(value, "untyped_storage"):
        yield value
