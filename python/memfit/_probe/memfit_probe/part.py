"""Measures a part of a run by itself: training from the levers on, or one inference pass."""

import gc


def begin(session):
    """Begin to measure peaks: what loading the model and applying the levers took no longer counts."""
    cuda = session.torch.cuda
    gc.collect()
    if not cuda.is_initialized():
        return
    cuda.empty_cache()
    for device in session.devices():
        cuda.reset_peak_memory_stats(device)
    session.peaks.forget()


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
    begin(session)
    error = ""
    try:
        with session.torch.inference_mode():
            call(model, *args, **kwargs)
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    planned.peaks = peaks(session, error)
    session.finish("steps")
