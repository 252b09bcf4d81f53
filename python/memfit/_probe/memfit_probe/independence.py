"""Follows a batch's samples through a forward and its loss, to show that parts of it train as the whole.

On a virtual card nothing is computed, so whole and parts cannot be compared in numbers. What can be shown is
that no sample's numbers reach another sample's, and that the loss is a mean in which each sample counts the
same. Only operations that are known not to mix samples carry the proof on; whatever else comes ends it, and
the reason is kept.
"""

import functools

import torch
from torch import Tag
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from . import sample_places as places
from .sample_places import Mean, Rows, Total, Unproven

# Labels that PyTorch's losses leave out unless they are told otherwise.
IGNORED = -100
# What creates numbers that are the same for each sample, or drawn for each of them alone.
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
# What leaves a mean a mean.
_LINEAR = {
    *("add", "sub", "neg", "rsub", "sum", "mean", "stack", "cat", "select", "unbind", "squeeze", "unsqueeze"),
    *("view", "_unsafe_view", "reshape", "expand", "_to_copy", "clone", "detach", "alias", "to", "copy"),
}
# What puts a batch together from data that lie somewhere.
_PICKS = ("stack", "index", "index_select", "slice")
UNSEEN = "a kernel whose operation is not seen computes a part of it"
SHARE = "the loss is a mean over what counts (a mask, labels that are not left out), of which parts have unlike numbers"
READ = "a number of the batch is read before the backward, and may decide something"


class Independence(TorchDispatchMode):
    """Watches the operations on tensors that a batch's samples are in."""

    def __init__(self, samples):
        super().__init__()
        self.samples = samples
        # Whether it still looks: a mode of the script's own may keep this one from being taken off.
        self.watching = True
        # Why nothing can be shown any more, whatever comes.
        self.spoilt = None
        # What is known of each tensor: what is not here holds nothing of the batch.
        self._known = WeakTensorKeyDictionary()
        self._may_ignore = False

    def follow(self, tensor):
        """Samples lie along this one's first dimension, if it is as long as there are samples."""
        if tensor.dim() > 0 and tensor.size(0) == self.samples:
            self._known[tensor] = Rows(0)

    def ignores(self):
        """Some labels are left out of the loss."""
        self._may_ignore = True

    def read(self, tensor):
        """The script reads a tensor's numbers."""
        if self.watching and self.spoilt is None and tensor in self._known:
            self.spoilt = READ

    def why_not(self, roots):
        """Why it is not shown that the gradients of these are the mean of the samples' own; nothing where it
        is.
        """
        found = (
            self._known.get(roots[0])
            if len(roots) == 1
            else Unproven("the backward begins at several losses")
        )
        if self.spoilt is not None:
            return self.spoilt
        if isinstance(found, Mean):
            return None
        if isinstance(found, Unproven):
            return found.why
        if isinstance(found, Total):
            return "the loss is a sum over the samples"
        return "the loss does not follow from the batch by operations that could be seen"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        returned = func(*args, **kwargs)
        if self.watching and self.spoilt is None:
            try:
                self._see(func, args, kwargs, returned)
            except Exception as error:
                # A training does not end because of who looks on.
                self.spoilt = f"`{_name(func)}` could not be followed ({type(error).__name__})"
        return returned

    def _see(self, func, args, kwargs, returned):
        name = _name(func)
        inputs = list(_tensors((*args, *kwargs.values())))
        outputs = list(_tensors(returned))
        kinds = [self._known.get(tensor) for tensor in inputs]
        if name not in places.LOSSES and name not in ("eq", "ne"):
            self._may_ignore |= any(
                type(value) in (int, float) and value == IGNORED for value in (*args, *kwargs.values())
            )
        if not any(kinds):
            self._created(name, func, inputs, outputs)
            return
        if not outputs or (inputs[0].is_cuda and not outputs[0].is_cuda):
            if name != "_assert_async":
                self.spoilt = READ
            return
        answer = self._answer(name, func, args, kwargs, inputs, kinds, outputs)
        answers = answer if isinstance(answer, list) else [answer] * len(outputs)
        self._written(name, func, args, kwargs, answers[0])
        for output, found in zip(outputs, answers, strict=True):
            if isinstance(found, Rows) and not found.fits(output, self.samples):
                found = Unproven(f"`{name}` was not followed")
            if found is not None:
                self._known[output] = found

    def _created(self, name, func, inputs, outputs):
        """What was made without the batch may still have a number for each sample."""
        bare = name.removeprefix("new_").removesuffix("_like").rstrip("_")
        if bare.startswith("empty"):
            # Of what an extension writes into it nothing is seen.
            self._known.update((output, Unproven(UNSEEN)) for output in outputs)
            return
        alike = bare in _FACTORIES or Tag.nondeterministic_seeded in func.tags
        for output in outputs:
            along = self._as_long(output)
            if name in ("expand", "repeat"):
                before = inputs[0].shape
                shift = output.dim() - len(before)
                along = [index for index in along if index < shift or before[index - shift] == 1]
            elif name in _PICKS or (name == "_to_copy" and inputs[0].device != output.device):
                # A script's own batch, put together or brought to the card.
                along = along if output.shape[:1] != inputs[0].shape[:1] or name == "_to_copy" else []
            elif not alike:
                along = []
            if found := _uniform(along):
                self._known[output] = found

    def _rewritten(self, name, output):
        """Memory that had nothing in it yet, filled with what is the same or drawn for each sample."""
        return _uniform(self._as_long(output)) if name in places.REWRITES else None

    def _as_long(self, tensor):
        """Dimensions that are as long as there are samples."""
        return [index for index, size in enumerate(tensor.shape) if size == self.samples]

    def _written(self, name, func, args, kwargs, answer):
        """What is written into must be all of a tensor, of which more is known than that it exists."""
        for tensor in _written_tensors(func, args, kwargs):
            if tensor not in self._known:
                self.spoilt = (
                    f"the forward keeps something of the batch (`{name}` into a tensor that was there before)"
                )
            elif tensor._is_view() and not isinstance(answer, Rows):
                self.spoilt = f"`{name}` writes into a part of a tensor"
            else:
                self._known[tensor] = answer

    def _answer(self, name, func, args, kwargs, inputs, kinds, outputs):
        """What is known of the outputs of an operation of which some inputs are known."""
        unproven = next((kind for kind in kinds if isinstance(kind, Unproven)), None)
        if unproven is not None:
            return self._rewritten(name, outputs[0]) or unproven
        if any(isinstance(kind, (Mean, Total)) for kind in kinds):
            return _linear(name, args, kinds, self.samples)
        named = {argument.name: value for argument, value in _named(func, args, kwargs)}
        call = places.Call(name, args, named, inputs, kinds, outputs, self.samples, _is_pointwise(func))
        if name in places.LOSSES:
            return places.of_loss(call, self._may_ignore)
        return places.answer(call)


def _uniform(along):
    """Rows that are alike, where only one dimension can have the samples."""
    return Rows(along[0], uniform=True) if len(along) == 1 else None


def _linear(name, args, kinds, samples):
    """A mean over the samples, and what is added to it or what it is multiplied by."""
    if name == "div" and len(kinds) == 2 and all(isinstance(kind, Total) for kind in kinds):
        return Unproven(SHARE)
    lost = Unproven(f"the loss goes through `{name}` after the mean over the samples")
    if any(isinstance(kind, Rows) for kind in kinds):
        return Unproven(f"`{name}` brings a number of the whole batch back to its samples")
    kept = next(kind for kind in kinds if kind is not None)
    if any(kind is not None and type(kind) is not type(kept) for kind in kinds):
        return lost
    bare = name.rstrip("_")
    if bare in _LINEAR:
        return kept
    if any(_counts(value, samples) for value in args):
        return Unproven("the loss is multiplied or divided by a number that may be that of the samples")
    if bare == "mul":
        return kept if sum(kind is not None for kind in kinds) == 1 else lost
    if bare in ("div", "true_divide"):
        return kept if kinds[0] is not None and all(kind is None for kind in kinds[1:]) else lost
    return lost


def _counts(value, samples):
    """Whether a number may come from how many samples there are."""
    if type(value) not in (int, float) or not value:
        return False
    return any(abs(each) >= 1 and each % samples == 0 for each in (value, round(1 / value, 6)))


@functools.cache
def _is_pointwise(func):
    """Whether an operation, or the one that it is the in-place form of, takes each number by itself."""
    if Tag.pointwise in func.tags:
        return True
    if not _name(func).endswith("_"):
        return False
    plain = getattr(torch.ops.aten, _name(func).rstrip("_"), None)
    return plain is not None and any(
        Tag.pointwise in getattr(plain, overload).tags for overload in plain.overloads()
    )


def _name(func):
    return func._schema.name.split("::")[-1]


def _named(func, args, kwargs):
    for index, argument in enumerate(func._schema.arguments):
        if index < len(args):
            yield argument, args[index]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


def _written_tensors(func, args, kwargs):
    for argument, value in _named(func, args, kwargs):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(value)


def _tensors(value):
    if isinstance(value, (list, tuple)):
        for entry in value:
            yield from _tensors(entry)
    elif hasattr(value, "untyped_storage"):
        yield value
