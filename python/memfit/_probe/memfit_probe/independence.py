"""Follows a batch's samples through forward pass and loss, to prove that micro-batches train like the whole
batch.

On a virtual GPU nothing is computed, so the results cannot be compared numerically. It can be proved instead
that no sample's values reach another sample, and that the loss is a mean in which each sample has the same
weight. Only operations that are known not to mix samples continue the proof; any other ends it, and the
reason is kept.
"""

import functools

import torch
from torch import Tag
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from . import sample_places as places
from .sample_places import Mean, Rows, Total, Unproven

# Default `ignore_index` of PyTorch's losses.
IGNORED = -100
# Operations whose result is the same for each sample, or drawn independently for each.
_FACTORIES = (
    "zeros",
    "ones",
    "full",
    "scalar_tensor",
    "rand",
    "randn",
    "randint",
    "normal",
    "uniform",
    "bernoulli",
)
# Operations that keep a mean a mean.
_LINEAR = {
    *("add", "sub", "neg", "rsub", "sum", "mean", "stack", "cat", "select", "unbind", "squeeze", "unsqueeze"),
    *("view", "_unsafe_view", "reshape", "expand", "_to_copy", "clone", "detach", "alias", "to", "copy"),
}
# Operations that assemble a batch from stored data.
_PICKS = ("stack", "index", "index_select", "slice")
# Operations whose answer does not depend on a tensor's values.
_OF_STORAGE = ("_assert_async", "is_pinned", "is_same_size", "is_set_to", "_has_compatible_shallow_copy_type")
# Reductions of equal samples that do not depend on their number.
_OF_EQUALS = ("all", "any", "amax", "amin", "aminmax", "max", "min")
UNSEEN = "a custom CUDA kernel computes a part of the loss"
SHARE = (
    "the loss is a mean over a varying number of elements (a mask, or ignored labels), which differs between "
    "micro-batches"
)
READ = "a value of the batch is read before the backward pass and may affect control flow"


class Independence(TorchDispatchMode):
    """Watches the operations on tensors that contain a batch's samples."""

    def __init__(self, samples, effects=None):
        super().__init__()
        self.samples = samples
        # Looks at what is computed from parameters and not from the batch.
        self._effects = effects
        # Set while it watches: a dispatch mode of the script may prevent this one from being removed.
        self.watching = True
        # The reason why nothing can be proved any more.
        self.spoilt = None
        # The facts about each tensor; tensors without an entry contain nothing of the batch.
        self._known = WeakTensorKeyDictionary()
        # Those of them whose values are the same for any batch, such as positions.
        self._constant = WeakTensorKeyDictionary()
        # Numbers of labels in all micro-batches of a step, by which a library divides the loss of each.
        self._counts = WeakTensorKeyDictionary()
        self._may_ignore = False
        # Floats that Python gives to operations on the batch, with operation and shape, in order.
        self.numbers = []

    def follow(self, tensor):
        """Follow a tensor whose first dimension is the batch dimension."""
        if tensor.dim() > 0 and tensor.size(0) == self.samples:
            self._known[tensor] = Rows(0)

    def ignores(self):
        """Record that the loss ignores some labels."""
        self._may_ignore = True

    def divides_by(self, count):
        """Follow a number of labels that stays the same when the batch is divided."""
        self._known.pop(count, None)
        self._counts[count] = True

    def read(self, tensor):
        """Record that the script reads a tensor's values."""
        if self.watching and self.spoilt is None and tensor in self._known and tensor not in self._constant:
            self.spoilt = READ

    def why_not(self, roots):
        """Return the reason why these gradients are not proved to be the mean of the samples' own; None if
        they are.
        """
        found = (
            self._known.get(roots[0])
            if len(roots) == 1
            else Unproven("the backward pass starts from several losses")
        )
        if self.spoilt is not None:
            return self.spoilt
        if isinstance(found, Mean):
            return None
        if isinstance(found, Unproven):
            return found.why
        if isinstance(found, Total):
            return "the loss is a sum over the samples"
        return "the operations between the batch and the loss could not be followed"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        follows = self.watching and self.spoilt is None
        written = self._effects.places(func, args, kwargs) if follows and self._effects is not None else None
        returned = func(*args, **kwargs)
        if follows:
            try:
                if written is not None:
                    self._effects.look(func, args, kwargs, written, returned)
                self._see(func, args, kwargs, returned)
            except Exception as error:
                # The training must not end because of this check.
                self.spoilt = f"`{operation_name(func)}` could not be followed ({type(error).__name__})"
        return returned

    def _see(self, func, args, kwargs, returned):
        name = operation_name(func)
        inputs = list(tensors((*args, *kwargs.values())))
        outputs = list(tensors(returned))
        kinds = [self._known.get(tensor) for tensor in inputs]
        if name not in places.LOSSES and name not in ("eq", "ne"):
            self._may_ignore |= any(
                type(value) in (int, float) and value == IGNORED for value in (*args, *kwargs.values())
            )
        if not any(kinds):
            self._created(name, func, inputs, outputs)
            if name in places.COPIES and inputs and inputs[0] in self._counts:
                self._counts.update((output, True) for output in outputs)
            return
        followed = [tensor for tensor, kind in zip(inputs, kinds, strict=True) if kind]
        constant = all(tensor in self._constant for tensor in followed)
        self.numbers += [
            (name, tuple(inputs[0].shape), value)
            for value in (*args, *kwargs.values())
            if type(value) is float
        ]
        if not outputs or (inputs[0].is_cuda and not outputs[0].is_cuda):
            if name not in _OF_STORAGE and not constant:
                self.spoilt = READ
            return
        constant = constant and Tag.nondeterministic_seeded not in func.tags
        answer = self._answer(name, func, args, kwargs, inputs, kinds, outputs)
        answers = answer if isinstance(answer, list) else [answer] * len(outputs)
        self._written(name, func, args, kwargs, answers[0])
        for output, found in zip(outputs, answers, strict=True):
            if isinstance(found, Rows) and not found.fits(output, self.samples):
                found = Unproven(f"`{name}` was not followed")
            if constant and not isinstance(found, Rows) and name in _OF_EQUALS:
                continue
            if found is not None:
                self._known[output] = found
                self._mark(output, constant and isinstance(found, Rows))

    def _mark(self, tensor, constant):
        """Record if a followed tensor has the same values for any batch."""
        if constant:
            self._constant[tensor] = True
        else:
            self._constant.pop(tensor, None)

    def _created(self, name, func, inputs, outputs):
        """Find tensors created without the batch that still have one entry per sample."""
        bare = name.removeprefix("new_").removesuffix("_like").rstrip("_")
        if bare.startswith("empty"):
            # Writes of an extension kernel into it cannot be seen.
            self._known.update((output, Unproven(UNSEEN)) for output in outputs)
            return
        is_random = Tag.nondeterministic_seeded in func.tags
        alike = bare in _FACTORIES or is_random
        for output in outputs:
            along = self._as_long(output)
            constant = not is_random
            if name in ("expand", "repeat"):
                before = inputs[0].shape
                shift = output.dim() - len(before)
                along = [index for index in along if index < shift or before[index - shift] == 1]
            elif name in _PICKS or (name == "_to_copy" and inputs[0].device != output.device):
                # A batch that the script assembled itself, or copied to the GPU.
                constant = False
                along = along if output.shape[:1] != inputs[0].shape[:1] or name == "_to_copy" else []
            elif not alike:
                along = []
            if found := _uniform(along):
                self._known[output] = found
                self._mark(output, constant)

    def _rewritten(self, name, output):
        """Handle uninitialised memory that is filled with constants, or with values drawn for each sample."""
        return _uniform(self._as_long(output)) if name in places.REWRITES else None

    def _as_long(self, tensor):
        """Return the dimensions whose length is the number of samples."""
        return [index for index, size in enumerate(tensor.shape) if size == self.samples]

    def _written(self, name, func, args, kwargs, answer):
        """Check that an in-place write covers a whole tensor that is followed already."""
        for tensor in written_tensors(func, args, kwargs):
            if tensor not in self._known:
                self.spoilt = (
                    f"the forward pass stores values of the batch (`{name}` writes to a tensor from before)"
                )
            elif tensor._is_view() and not isinstance(answer, Rows):
                self.spoilt = f"`{name}` writes to a part of a tensor"
            else:
                self._known[tensor] = answer
                if tensor._is_view():
                    # What it is a view of has been written to as well.
                    self._constant.clear()

    def _answer(self, name, func, args, kwargs, inputs, kinds, outputs):
        """Return the facts about the outputs of an operation with followed inputs."""
        unproven = next((kind for kind in kinds if isinstance(kind, Unproven)), None)
        if unproven is not None:
            return self._rewritten(name, outputs[0]) or unproven
        if name == "div" and isinstance(kinds[0], Total) and len(inputs) == 2 and inputs[1] in self._counts:
            return Mean()
        if any(isinstance(kind, (Mean, Total)) for kind in kinds):
            return _linear(name, args, kinds, self.samples)
        named = {argument.name: value for argument, value in _named(func, args, kwargs)}
        call = places.Call(name, args, named, inputs, kinds, outputs, self.samples, _is_pointwise(func))
        if name in places.LOSSES:
            return places.of_loss(call, self._may_ignore)
        return places.answer(call)


def changed_number(before, after):
    """Return the first number that differs between two steps, as text; None if there is none, or if the steps
    did not do the same.
    """
    if [entry[:2] for entry in before] != [entry[:2] for entry in after]:
        return None
    pairs = zip(before, after, strict=True)
    changed = next(((one, other[2]) for one, other in pairs if one[2] != other[2]), None)
    return changed and f"{changed[0][2]:.6g} in `{changed[0][0]}`, then {changed[1]:.6g}"


def _uniform(along):
    """Return equal rows, if only one dimension can be the batch dimension."""
    return Rows(along[0], uniform=True) if len(along) == 1 else None


def _linear(name, args, kinds, samples):
    """Follow operations on a mean over the samples."""
    if name == "div" and len(kinds) == 2 and all(isinstance(kind, Total) for kind in kinds):
        return Unproven(SHARE)
    lost = Unproven(f"the loss uses `{name}` after the mean over the samples")
    if any(isinstance(kind, Rows) for kind in kinds):
        return Unproven(f"`{name}` combines a value of the whole batch with its samples")
    kept = next(kind for kind in kinds if kind is not None)
    if any(kind is not None and type(kind) is not type(kept) for kind in kinds):
        return lost
    bare = name.rstrip("_")
    if bare in _LINEAR:
        return kept
    if any(_counts(value, samples) for value in args):
        return Unproven("the loss is multiplied or divided by a number that may be the number of samples")
    if bare == "mul":
        return kept if sum(kind is not None for kind in kinds) == 1 else lost
    if bare in ("div", "true_divide"):
        return kept if kinds[0] is not None and all(kind is None for kind in kinds[1:]) else lost
    return lost


def _counts(value, samples):
    """Return `True` if a number may be derived from the number of samples."""
    if type(value) not in (int, float) or not value:
        return False
    return any(abs(each) >= 1 and each % samples == 0 for each in (value, round(1 / value, 6)))


@functools.cache
def _is_pointwise(func):
    """Return `True` if an operation, or its out-of-place variant, is element-wise."""
    if Tag.pointwise in func.tags:
        return True
    if not operation_name(func).endswith("_"):
        return False
    plain = getattr(torch.ops.aten, operation_name(func).rstrip("_"), None)
    return plain is not None and any(
        Tag.pointwise in getattr(plain, overload).tags for overload in plain.overloads()
    )


def operation_name(func):
    return func._schema.name.split("::")[-1]


def _named(func, args, kwargs):
    for index, argument in enumerate(func._schema.arguments):
        if index < len(args):
            yield argument, args[index]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


def written_tensors(func, args, kwargs):
    for argument, value in _named(func, args, kwargs):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors(value)


def tensors(value):
    if isinstance(value, (list, tuple)):
        for entry in value:
            yield from tensors(entry)
    elif hasattr(value, "untyped_storage"):
        yield value
