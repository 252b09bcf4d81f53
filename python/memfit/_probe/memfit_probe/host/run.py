"""One run on the host: small batches, a few steps, and what is told of them."""

import functools

from .. import channel, imports
from . import devices, outcome
from .draws import Draws
from .printed import Printed

# Batches of each pass over a loader: so the ends of epochs come soon.
BATCHES = 2
# Arguments of a loader that a few small batches need nothing of.
_PROCESSES = ("num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context")


class HostRun:
    """Keeps what a script computes, or compares it with what another run kept.

    `setup` has the folder where it is kept, the number of samples in a loader's batch, and the part that this
    run has: "first", "again" (the same script, to know what two runs of it have in common), or "changed".
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
        self.apart = outcome.SAME
        self.parameter = None

    def arm(self):
        """Before the script's first line behind its import of torch."""
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
            # Gradients that are asked for and not added up, as a penalty's, are part of what is computed.
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
            # Behind shuffle, sampler and batch_sampler stands the number of workers.
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
        """An optimizer is about to step on its gradients."""
        parameters, found = outcome.gradients(optimizer)
        self.steps += 1
        if self.part == "first":
            self.kept.write(self.steps, found)
        else:
            self._compare(parameters, found)
        self.draws.stepped()

    def _compare(self, parameters, found):
        wanted = self.kept.read(self.steps)
        if wanted is None:
            return
        apart = outcome.difference(found, wanted)
        if not apart.share <= self.apart.share:
            self.apart = apart
            self.parameter = outcome.name_of(self.torch, parameters[apart.index])
        if apart.equal:
            # Both go on from the same gradients: what is rounding now would grow from step to step.
            for each, gradient in zip(parameters, wanted, strict=True):
                if each.grad is not None and not each.grad.is_sparse:
                    each.grad.detach().copy_(gradient)

    def tell(self):
        """The run is over."""
        if self.part == "first":
            self.printed.keep()
        elif self.part == "again":
            self.printed.keep_again()
        channel.send(
            "host_run",
            steps=self.steps,
            # A run that was compared with fewer steps than it made, or than were kept, trained otherwise.
            equal=self.apart.equal and (self.part == "first" or self._made_as_many()),
            difference=repr(self.apart.share),
            parameter=self.parameter,
            printed=self.printed.unlike() if self.part == "changed" else None,
        )

    def _made_as_many(self):
        return self.kept.read(self.steps) is not None and self.kept.read(self.steps + 1) is None
