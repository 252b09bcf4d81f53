"""Acts before the first call of a model that trains: hooks would run only after its forward is looked up."""

import functools

from . import part


def arm(planned):
    """Apply levers before the first call, or run the inference pass that takes its place."""
    module = planned.session.torch.nn.Module
    original = module.__call__

    @functools.wraps(original)
    def call(self, *args, **kwargs):
        waits = planned.target is None
        if not waits or planned.meets(self):
            # Removed before the model is compiled, in this call: the compiler would find it in each module.
            module.__call__ = original
            if waits:
                planned.example = (args, kwargs)
                if planned.part == "inference":
                    part.infer(planned, self, original)
                planned.about_to_call(self)
                planned.example = None
        return original(self, *args, **kwargs)

    module.__call__ = call
