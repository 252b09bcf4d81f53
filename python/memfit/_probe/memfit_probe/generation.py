"""How long `generate` of transformers goes on: whether a sequence has ended is a value that only a real GPU
computes. It is taken between the first token and the last that is allowed, where the policy for sizes says.
"""

import ctypes
import functools

from . import imports

# The name of the assumption, as `memfit-channel` knows it.
LENGTH = b"generation"


def arm(session):
    """Has a list of stopping criteria end where the policy says."""
    part = session.setup["values"] / 1000

    def stops(module):
        criteria = module.StoppingCriteriaList
        original = criteria.__call__

        @functools.wraps(original)
        def call(self, input_ids, scores, **kwargs):
            done = original(self, input_ids, scores, **kwargs)
            longest = self.max_length
            if longest is None or not any(hasattr(each, "eos_token_id") for each in self):
                return done
            now = input_ids.shape[1]
            start = vars(self).setdefault("_memfit_start", now)
            assumed()
            if now < start + part * (longest - start):
                return done
            # Ones that the device knows, so that the script reads them back.
            return session.torch.ones_like(done)

        criteria.__call__ = call

    imports.after("transformers.generation.stopping_criteria", stops)
    if session.planned is not None:
        imports.after(
            "transformers.generation.utils", lambda module: _as_one(session, module.GenerationMixin)
        )


def _as_one(session, mixin):
    """For a plan, all that `generate` does is one pass: memory grows from token to token."""
    original = mixin.generate

    @functools.wraps(original)
    def generate(self, *args, **kwargs):
        outer, session.generating = session.generating, True
        if not outer and not session.passes.most:
            session.passes.mark()
        try:
            result = original(self, *args, **kwargs)
        finally:
            session.generating = outer
        if not outer:
            with session.torch.no_grad():
                session.passed(self)
        return result

    mixin.generate = generate


def assumed():
    """Counts it among the values, in the device that stands in front of this process."""
    ctypes.CDLL(None).memfit_vgpu_assumed(LENGTH)
