"""Adaptive solvers of differential equations: only a real GPU computes the error by which they accept or
reject a step, so that on a virtual one a solver would take smaller steps for ever. Each step is accepted
(`asserts`), and one is taken between two points in time.

Where autograd records the steps, they are kept until the backward pass, and their number has no bound.
"""

from . import device, imports
from .wrapping import alike

# The module of torchdiffeq with the solvers, their class, and the method that goes on to a point in time.
MODULE, SOLVER, ADVANCE = "torchdiffeq._impl.rk_common", "RKAdaptiveStepsizeODESolver", "_advance"
# The name of the assumption in `memfit-channel`.
STEPS = b"solver-steps"


def arm(session):
    """Bound the steps of torchdiffeq's adaptive solvers."""
    known = device.find()
    if known is not None:
        imports.after(MODULE, lambda module: _bound(session.torch, known, module))


def _bound(torch, known, module):
    solver = getattr(module, SOLVER, None)
    original = getattr(solver, ADVANCE, None)
    interpolate = getattr(module, "_interp_evaluate", None)
    if original is None or interpolate is None or not hasattr(solver, "_adaptive_step"):
        return

    @alike(original)
    def advance(self, next_t):
        if not self.rk_state.y1.is_cuda:
            return original(self, next_t)
        self.rk_state = self._adaptive_step(self.rk_state)
        if torch.is_grad_enabled():
            known.assumed(STEPS)
        state = self.rk_state
        return interpolate(state.interp_coeff, state.t0, state.t1, next_t)

    setattr(solver, ADVANCE, advance)
