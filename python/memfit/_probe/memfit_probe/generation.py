"""Decides when `generate` of transformers stops: only a real GPU computes if a sequence has ended. The length
is assumed between the first and the last allowed token, by the policy for sizes.
"""

import ctypes
import functools

from . import imports

# The name of the assumption in `memfit-channel`.
LENGTH = b"generation"


def arm(session):
    """Make stopping criteria end where the policy says."""
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
            # Ones that the device knows, so that the script can read them.
            return session.torch.ones_like(done)

        criteria.__call__ = call

    imports.after("transformers.generation.stopping_criteria", stops)
    if session.planned is not None:
        imports.after(
            "transformers.generation.utils", lambda module: _as_one(session, module.GenerationMixin)
        )


def _as_one(session, mixin):
    """Treat a whole `generate` call as one pass for a plan, since memory grows from token to token."""
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
    """Count the assumption in the virtual device."""
    ctypes.CDLL(None).memfit_vgpu_assumed(LENGTH)
