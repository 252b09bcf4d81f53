"""Acts before the first call of a model that trains: hooks would run only after its forward is looked up."""

import functools

from . import part


def arm(planned):
    """Apply levers before the first call, or run the inference pass that takes its place."""
    module = planned.session.torch.nn.Module
    original = module.__call__

    @functools.wraps(original)
    def call(self, *args, **kwargs):
        met = False
        if planned.target is None:
            planned.example = (args, kwargs)
            if planned.part == "inference" and planned.meets(self):
                # As below.
                module.__call__ = original
                part.infer(planned, self, original)
            met = planned.about_to_call(self)
            planned.example = None
        # Removed before the model is compiled, in this call: the compiler would find it in each module.
        if met or planned.target is not None:
            module.__call__ = original
        return original(self, *args, **kwargs)

    module.__call__ = call
