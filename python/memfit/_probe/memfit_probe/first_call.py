"""Acts before the first call of a model that trains: applies levers, and runs the inference pass of a run
that asks for nothing else.
"""

import functools
import gc

from . import holdings


def arm(planned):
    """Watch for the first call. Hooks would run only after the model's forward is looked up."""
    module = planned.session.torch.nn.Module
    original = module.__call__

    @functools.wraps(original)
    def call(self, *args, **kwargs):
        if planned.target is None:
            planned.example = (args, kwargs)
            if planned.inference_pass:
                infer(planned, self, original)
            planned.about_to_call(self)
            planned.example = None
        # Removed before the model is compiled: the compiler would find it in each module.
        if planned.target is not None:
            module.__call__ = original
        return original(self, *args, **kwargs)

    module.__call__ = call


def infer(planned, model, call):
    """Run this call of the model once more, as inference with nothing else on the GPU, and end the run.

    There are no gradients and no optimizer state yet. The original call never happens, so nothing that the
    pass leaves in the model can disturb the training.
    """
    session, torch = planned.session, planned.session.torch
    if not planned.meets(model):
        return
    args, kwargs = planned.example
    planned.apply_levers(model)
    planned.example = None
    whole = planned.target.model
    for each in planned.target.models():
        each.eval()
    device = next(parameter.device for parameter in model.parameters())
    error = "" if device.type == "cuda" else f"the model is on {device}"
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device if not error else None)
    try:
        with torch.inference_mode():
            call(model, *args, **kwargs)
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    stats = torch.cuda.memory_stats(device) if not error else {}
    planned.inference = {
        "allocated": stats.get("allocated_bytes.all.peak", 0),
        "reserved": stats.get("reserved_bytes.all.peak", 0),
        "weights": holdings.weights(whole),
        "error": error,
    }
    session.finish("steps")
