"""Copies of tensors from the GPU to the host, whose use cannot be seen: zeros where nobody computed them."""

import ctypes
import os
import threading

from . import device, flows, holdings, other_data, sparse
from .oom import frames_here
from .uncaught import HERE

# Larger reads are reads of data to the device.
MAX_BYTES = 4096
COPIED = b"copied-data"
# The name of the assumption how many entries of a mask are true.
TRUE_COUNT = b"true-count"
# Bytes that are compared with what the device knows at once, and of a tensor that tell if it holds zeros.
PIECE_BYTES, BEGINNING = 1 << 26, 1 << 16
# Part of the paths of a library that saves tensors.
SAVES = f"{os.sep}safetensors{os.sep}"
# The folder of memfit.
PACKAGE = os.path.dirname(os.path.dirname(HERE)) + os.sep


class Copied:
    """Copies that were made, and what takes their place in further runs."""

    def __init__(self, session, known, conditions):
        self.session, self.known, self.conditions = session, known, conditions
        self.torch = session.torch
        self.library = os.path.dirname(session.torch.__file__) + os.sep
        # Places that copied much data to the host, which are zeros where nobody computed them.
        self.sites = set()

    def large(self, tensor, result):
        """Return a copy of a large tensor, or what a further run has in its place."""
        if self.session.is_compiling():
            return result
        if tensor.layout is not self.torch.strided:
            return self._copied_sparse(tensor, result)
        # The device asks for the type of smaller ones.
        return self._copied(tensor, result) if tensor.nbytes > MAX_BYTES else result

    def _copied_sparse(self, tensor, result):
        """Record a copy of a sparse tensor. Its indices stay, since others may be out of range."""
        if getattr(result, "layout", None) is not tensor.layout:
            return result
        pairs = zip(sparse.parts(tensor), sparse.parts(result), strict=True)
        (indices, copied_indices), (values, copied_values) = pairs
        for part, copied in zip(indices, copied_indices, strict=True):
            if part.nbytes > MAX_BYTES:
                self._copied(part, copied, is_replaced=False)
        if values.nbytes > MAX_BYTES:
            self._copied(values, copied_values)
        return result

    def _copied(self, tensor, result, is_replaced=True):
        """Record the place of a large copy to the host. Of a mask that nobody computed, as many entries are
        true as the policy for sizes says; other data are zeros, or other numbers in a further run.
        """
        torch, known = self.torch, self.known
        frames = frames_here()
        mask = tensor.dtype is torch.bool and type(result) is torch.Tensor and not result.is_cuda
        if not mask and (self._is_blind(frames) or self._is_weight(tensor)):
            return result
        if self._is_known(tensor):
            return result
        if threading.current_thread() is threading.main_thread():
            self.sites.add(flows.site(frames))
        if not mask:
            known.assumed(COPIED)
            others = self.session.setup["others"]
            is_kept = others["number"] is None or not is_replaced
            return self.instead(result) if is_kept else self._other(result)
        if not result.any():
            known.assumed(TRUE_COUNT)
            result.view(-1)[: int(result.numel() * self.session.setup["values"] / 1000)] = True
        return result

    def is_unknown_data(self, tensor):
        """Return `True` if a tensor on the GPU is no weight, and nobody computed it."""
        is_data = tensor.is_cuda and tensor.layout is self.torch.strided and tensor.numel()
        return bool(is_data) and not self._is_weight(tensor) and not self._is_known(tensor)

    def loaded(self, tensor):
        """Record that the script loaded a tensor which may have been saved without having been computed."""
        if tensor.layout is not self.torch.strided or not tensor.numel() or not self._is_zero(tensor):
            return
        if threading.current_thread() is threading.main_thread():
            self.sites.add(flows.site(frames_here()))
        self.known.assumed(COPIED)
        others = self.session.setup["others"]
        if others["number"] is not None:
            with self.torch.no_grad():
                other = self._other(self.torch.zeros(tensor.shape, dtype=tensor.dtype))
                tensor.detach().copy_(other)
        else:
            self.instead(tensor)

    def _other(self, result):
        """Return what a further run has in place of a copy."""
        others = self.session.setup["others"]
        return other_data.instead_of(self.torch, result, others["number"], others["varied"])

    def _is_zero(self, tensor):
        if not tensor.is_cuda:
            return not tensor.any()
        start = tensor.untyped_storage().data_ptr()
        contents = ctypes.create_string_buffer(min(tensor.untyped_storage().nbytes(), BEGINNING))
        return self.known.contents(start, len(contents), contents) and not any(contents.raw)

    def _is_weight(self, tensor):
        """Return `True` if a tensor is a weight of a model, whose copies are saved."""
        address = tensor.data_ptr()
        notes = self.session.notes
        return any(
            address in notes.addresses(each) for model in notes.roots() for each in holdings.tensors(model)
        )

    def _is_blind(self, frames):
        """Return `True` if PyTorch, memfit or safetensors copies a tensor, for example to hold activations on
        the host or to save it: they do not look at it.
        """
        path = frames[0].f_code.co_filename if frames else ""
        return path.startswith((PACKAGE, self.library)) or SAVES in path

    def _is_known(self, tensor):
        """Return `True` if the device knows all bytes between a tensor's first and last element."""
        start, length = tensor.data_ptr(), tensor.nbytes
        if not tensor.is_contiguous():
            length = device.extent(tensor) * tensor.element_size()
        contents = ctypes.create_string_buffer(min(length, PIECE_BYTES))
        return all(
            self.known.contents(start + first, min(PIECE_BYTES, length - first), contents)
            for first in range(0, length, PIECE_BYTES)
        )

    def instead(self, result):
        """Return a copy on the host, or in a run that inverts a condition on it, one that is filled with a
        number which the script compares it with.
        """
        if type(result) is self.torch.Tensor and result.layout is self.torch.strided:
            read = 0.0 if result.is_floating_point() else 0
            number = self.conditions.number(read)
            if number != read:
                result.detach().fill_(number)
        return result
