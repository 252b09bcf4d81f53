"""A run on the CPU that records or compares trainings: small batches, a few steps, and a report."""

import functools

from .. import channel, imports
from . import devices, outcome, state
from .draws import Draws
from .printed import Printed

# Batches per epoch, so that epochs end soon.
BATCHES = 2
# Loader arguments that a few small batches do not need.
_PROCESSES = ("num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context")


class HostRun:
    """Saves a script's results, or compares them with those of another run.

    `setup` has the folder, the number of samples per batch, and the role of this run: "first", "again" (the
    same script once more, to detect what varies between runs), or "changed".
    """

    def __init__(self, session, setup):
        self.session = session
        self.torch = session.torch
        self.samples = setup["samples"]
        self.part = setup["part"]
        self.kept = outcome.Kept(self.torch, setup["folder"])
        self.printed = Printed(setup["folder"])
        self.draws = Draws(self.torch)
        self.steps = 0
        self.states = state.States(self.torch)
        self.apart = outcome.SAME
        self.parameter = None
        # The parameters before the step that runs.
        self.before = None
        # The first difference in other state than gradients, if that is what made the training another one.
        self.changed = None

    def arm(self):
        """Install the hooks. Called after the script's import of torch, before the script continues."""
        devices.arm(self.torch)
        self.draws.arm()
        self._arm_backward()
        imports.after("torch.utils.data.dataloader", self._arm_loaders)
        self.printed.listen()

    def _arm_backward(self):
        autograd, draws = self.torch.autograd, self.draws
        original = autograd._engine_run_backward

        @functools.wraps(original)
        def run(*args, **kwargs):
            result = original(*args, **kwargs)
            # `torch.autograd.grad`, as for a gradient penalty, does not end a micro-batch.
            if kwargs.get("accumulate_grad", True):
                draws.part_is_over()
            return result

        autograd._engine_run_backward = run

    def _arm_loaders(self, module):
        loader, samples = module.DataLoader, self.samples
        made, begins = loader.__init__, loader.__iter__

        @functools.wraps(made)
        def init(self, dataset, batch_size=1, *args, **kwargs):
            for name in _PROCESSES:
                kwargs.pop(name, None)
            # The number of workers follows shuffle, sampler and batch_sampler.
            args = (*args[:3], 0, *args[4:]) if len(args) > 3 else args
            if isinstance(batch_size, int):
                batch_size = min(batch_size, samples)
            made(self, dataset, batch_size, *args, **kwargs)

        @functools.wraps(begins)
        def few(self):
            for number, batch in enumerate(begins(self)):
                if number == BATCHES:
                    return
                yield batch

        loader.__init__, loader.__iter__ = init, few

    def before_step(self, optimizer):
        """Save or compare gradients and state before an optimizer step."""
        parameters, found = outcome.gradients(optimizer)
        held, settings = self.states.read(optimizer), state.settings(optimizer)
        self.steps += 1
        if self.part == "first":
            self.kept.write(self.steps, found, held, settings)
        elif self.changed is None and (wanted := self.kept.read(self.steps)) is not None:
            self._compare(parameters, found, wanted["gradients"])
            # Once the gradients differ, the state follows them.
            if self.apart.equal:
                self._compare_state(held, settings, wanted)
            if self.apart.equal and self.changed is None:
                self.before = [each.detach().clone() for each in parameters]
        self.draws.stepped()

    def after_step(self, optimizer):
        """Save or compare the parameters after an optimizer step."""
        parameters = outcome.parameters_of(optimizer)
        if self.part == "first":
            self.kept.write_updated(self.steps, parameters)
        elif self.before is not None and (wanted := self.kept.read_updated(self.steps)) is not None:
            self.changed = state.difference_of_updates(self.torch, parameters, self.before, wanted)
            if self.changed is None:
                state.adopt_updates(parameters, wanted)
        self.before = None

    def _compare_state(self, held, settings, wanted):
        changes = (
            state.difference_of_settings(settings, wanted["settings"]),
            state.difference(self.torch, held, wanted["state"]),
        )
        self.changed = next((each for each in changes if each is not None and not each.equal), None)
        if self.changed is None:
            state.adopt(held, wanted["state"])

    def _compare(self, parameters, found, wanted):
        apart = outcome.difference(found, wanted)
        if not apart.share <= self.apart.share:
            self.apart = apart
            self.parameter = outcome.name_of(self.torch, parameters[apart.index])
        if apart.equal:
            # Continue with the saved gradients, since rounding differences would grow from step to step.
            for each, gradient in zip(parameters, wanted, strict=True):
                if each.grad is not None and not each.grad.is_sparse:
                    each.grad.detach().copy_(gradient)

    def send_result(self):
        """Send the result at the end of the run."""
        if self.part == "first":
            self.printed.keep()
        elif self.part == "again":
            self.printed.keep_again()
        changed = self.changed
        channel.send(
            "host_run",
            steps=self.steps,
            # Another number of steps than in the saved run means that it trained differently.
            equal=self.apart.equal and changed is None and (self.part == "first" or self._has_equal_steps()),
            difference=repr(self.apart.share if changed is None else changed.share),
            parameter=self.parameter if changed is None else None,
            state=None if changed is None else changed.name,
            printed=self.printed.unlike() if self.part == "changed" else None,
        )

    def _has_equal_steps(self):
        return self.kept.read(self.steps) is not None and self.kept.read(self.steps + 1) is None
