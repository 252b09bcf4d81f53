"""The last message of a process: its steps, what they covered, and the allocator's statistics."""

import functools
import itertools

from . import channel, kinds, not_run

# Bytes by which the peaks of like steps differ, since workspaces do.
UNSTEADY = 16 << 20
# Functions with which a script resets the peaks, of a given device or the current one.
RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")


class Peaks:
    """PyTorch's peaks of each device, including those from before a reset by the script."""

    def __init__(self, session):
        self.session = session
        self.before = {}

    def forget(self):
        """Reset the state in a forked child."""
        self.before.clear()

    def arm(self):
        functions = self.session.torch._C
        for name in RESETS:
            original = getattr(functions, name, None)
            if original is not None:
                setattr(functions, name, self._keeping(original))
        if self.session.setup.get("beside") and not (channel.plan() or {}).get("serves"):
            kinds.watch(self.session.torch)

    def _keeping(self, original):
        @functools.wraps(original)
        def reset(*args, **kwargs):
            for device in self.session.devices():
                self.before[device] = self.statistics_of(device)
            return original(*args, **kwargs)

        return reset

    def statistics_of(self, device):
        """Return a device's statistics since the start."""
        now, before = statistics(self.session.torch, device), self.before.get(device, {})
        return {name: max(number, before.get(name, 0)) for name, number in now.items()}


def send(session, reason):
    """Send the message. `reason` is "steps" if everything requested was seen."""
    steps = session.steps.complete if reason == "steps" else session.steps.at_the_end()
    passes = session.passes
    forward_only = steps == 0 and not session.steps.any and passes.most > 0
    channel.send(
        "done",
        reason=reason,
        steps=passes.most if forward_only else steps,
        forward_only=forward_only,
        evaluation=session.evaluation,
        largest_batch=session.loaders.largest_batch,
        epoch_end=session.loaders.epoch_end,
        growth_per_step=growth(session.after_step),
        unmet=made_in_the_only_step(session) if reason == "steps" and steps == 1 and not forward_only else 0,
        held=steps == 0 and session.planned is not None and session.planned.round.held,
        feeding=session.loaders.feeding.describe(),
        asks_size=kinds.asks_size,
        reduced=passes.reduced(),
        not_run=(not_run.find(session) if reason == "steps" else None) or [],
        devices={device: session.peaks.statistics_of(device) for device in session.devices()},
    )


def statistics(torch, device):
    """Return PyTorch's peaks of a device."""
    stats = torch.cuda.memory_stats(device)

    def peak(name):
        return stats.get(f"{name}.all.peak", 0)

    return {
        "peak_allocated": peak("allocated_bytes"),
        "peak_active": peak("active_bytes"),
        "peak_reserved": peak("reserved_bytes"),
        "peak_requested": peak("requested_bytes"),
        "retries": stats.get("num_alloc_retries", 0),
        "ooms": stats.get("num_ooms", 0),
    }


def made_in_the_only_step(session):
    """Return the bytes of optimizer state and gradients on the GPU, which exist during the next step's
    forward pass.
    """
    found = {}
    for optimizer in list(session.optimizers):
        kept = [
            value
            for state in optimizer.state.values()
            for value in (state.values() if isinstance(state, dict) else (state,))
        ]
        gradients = [each.grad for group in optimizer.param_groups for each in group["params"]]
        for value in (*kept, *gradients):
            value = getattr(value, "_local_tensor", value)
            if isinstance(value, session.torch.Tensor) and value.is_cuda:
                storage = value.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def growth(after_step):
    """Return the median growth of memory from step to step, in bytes, without the first step, which creates
    the optimizer state. Each step is given as the bytes after it, and its peak.

    `None` if the steps are not alike, as with batches of different lengths: memory shrank by a large part of
    that in some step, or the peaks change by far more. A leak only grows, and as fast as the peak.
    """
    changes = [
        [after - before for before, after in itertools.pairwise(bytes_of_steps)]
        for bytes_of_steps in zip(*after_step[1:], strict=True)
    ]
    if not changes or not changes[0]:
        return None
    growths, of_peaks = changes
    median = middle(growths)
    shrinks = median > 0 and -min(growths) > median / 4
    differ = middle(map(abs, of_peaks)) > 4 * max(median, 0) + UNSTEADY
    return None if shrinks or differ else median


def middle(values):
    """Return the median; of an even number of values, the larger one."""
    values = sorted(values)
    return values[len(values) // 2]
