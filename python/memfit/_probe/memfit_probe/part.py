"""Measures a part of a run by itself: training from the levers on, or one inference pass."""

import gc
from collections import Counter

from . import holdings

# Elements from which on a tensor is allocated again. Smaller ones may have values that the script reads.
MIN_ELEMENTS = 1 << 17


def begin(session, model):
    """Begin to measure peaks, as if the model had been loaded in its present form: memory that was only
    needed to load it and to apply the levers does not count.
    """
    cuda = session.torch.cuda
    gc.collect()
    if not cuda.is_initialized():
        return
    if session.virtual:
        _repack(session.torch, model)
    cuda.empty_cache()
    for device in session.devices():
        cuda.reset_peak_memory_stats(device)
    session.peaks.forget()


def _repack(torch, model):
    """Allocate the model's tensors again: removed and quantised ones have left gaps in the segments between
    them. A virtual GPU computes no values, so there is nothing to copy.
    """
    forms = [(each, each.shape, each.stride(), each.device) for each in _own(model)]
    for each, *_ in forms:
        each.data = torch.empty(0, dtype=each.dtype, device=each.device)
    torch.cuda.empty_cache()
    for each, shape, stride, device in forms:
        each.data = torch.empty_strided(shape, stride, dtype=each.dtype, device=device)


def _own(model):
    """Return the model's large tensors that share their memory with no other, each once."""
    every = {id(each): each for whole in holdings.tensors(model) for each in holdings.plain(whole)}
    large = [each for each in every.values() if each.is_cuda and each.numel() >= MIN_ELEMENTS]
    uses = Counter(each.untyped_storage().data_ptr() for each in every.values() if each.is_cuda)
    return [
        each
        for each in large
        if each.untyped_storage().nbytes() == each.nbytes and uses[each.untyped_storage().data_ptr()] == 1
    ]


def peaks(session, error=""):
    """Return the peaks since then, of the device that was used most, as a field of the message."""
    every = [session.peaks.statistics_of(device) for device in session.devices()]
    most = max(every, key=lambda each: each["peak_reserved"], default={})
    return {
        "allocated": most.get("peak_allocated", 0),
        "reserved": most.get("peak_reserved", 0),
        "error": error,
    }


def infer(planned, model, call):
    """Run this call of the model as inference, with nothing else on the GPU, and end the run.

    There are no gradients and no optimizer state yet. The original call never happens, so nothing that the
    pass leaves in the model can disturb the training.
    """
    session = planned.session
    args, kwargs = planned.example
    planned.apply_levers(model)
    planned.example = None
    for each in planned.target.models():
        each.eval()
    begin(session, planned.target.model)
    error = ""
    try:
        with session.torch.inference_mode():
            call(model, *args, **kwargs)
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    planned.peaks = peaks(session, error)
    session.finish("steps")
