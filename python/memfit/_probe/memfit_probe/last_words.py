"""The last message of a process: its steps, what they covered, and the allocator's own statistics."""

import itertools

from . import channel


def send(session, reason):
    """Sends it. `reason` is "steps" where all that was asked for has been seen."""
    steps = session.steps.complete if reason == "steps" else session.steps.at_the_end()
    forward_only = steps == 0 and not session.steps.any and bool(session.passes)
    channel.send(
        "done",
        reason=reason,
        steps=max(session.passes.values()) if forward_only else steps,
        forward_only=forward_only,
        evaluation=session.evaluation,
        largest_batch=session.loaders.largest_batch,
        epoch_end=session.loaders.epoch_end,
        growth_per_step=growth(session.after_step),
        devices={device: statistics(session.torch, device) for device in session.devices()},
    )


def statistics(torch, device):
    """PyTorch's peaks of a device."""
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


def growth(after_step):
    """Bytes by which memory grew from one step to the next: the median, without the first step, which makes
    the optimizer's state.
    """
    steady = after_step[1:]
    changes = sorted(after - before for before, after in itertools.pairwise(steady))
    return changes[len(changes) // 2] if changes else None
