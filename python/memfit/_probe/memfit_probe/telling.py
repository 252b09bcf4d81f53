"""Collects the facts about a training run for a plan, as one message at its end."""

from . import facts, handles, holdings, optimizer_state


def training(planned, optimizers):
    """Return the fields of the message."""
    torch = planned.session.torch
    whole, each = _models(planned)
    norm, convolution = torch.nn.modules.batchnorm._BatchNorm, torch.nn.modules.conv._ConvNd
    modules = list(whole.modules()) if whole is not None else []
    names = [] if planned.largest or not planned.seen else handles.find(planned.seen)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    halves = (torch.bfloat16, torch.float16)
    whole_batch = planned.library.whole if planned.library else int
    return {
        "batch": whole_batch(planned.largest or (planned.seen if names else 0)),
        "seen": planned.seen,
        "names": names,
        "models": list(getattr(whole, "others", ())),
        "batches": planned.batches if planned.largest else planned.forwards,
        "sampled": planned.inputs.sampled,
        "loading": planned.inputs.loading(planned.loading),
        "steps": planned.steps,
        "couples_samples": any(isinstance(module, norm) and module.training for module in modules),
        "convolves": any(isinstance(module, convolution) for module in modules),
        "classes": max(
            (module.out_features for module in modules if isinstance(module, torch.nn.Linear)), default=0
        ),
        "explicit_attention": planned.facts.attends
        or any(
            getattr(getattr(model, "config", None), "_attn_implementation", None) == "eager" for model in each
        ),
        "autocast": planned.autocast,
        "half": whole is not None and any(parameter.dtype in halves for parameter in whole.parameters()),
        "replicated": any(isinstance(model, torch.nn.parallel.DistributedDataParallel) for model in each),
        "state": sum(map(optimizer_state.nbytes, optimizers)),
        "trained": sum(parameter.nbytes for group in groups for parameter in group["params"]),
        "epoch": planned.inputs.samples(planned.loading),
        "optimizers": sorted({type(optimizer).__name__ for optimizer in optimizers}),
        "fusible": bool(groups) and all("fused" in group for group in groups),
        "fused": bool(groups) and all(group.get("fused") for group in groups),
        "foreach_off": bool(groups) and all(group.get("foreach") is False for group in groups),
        "clips": planned.clipped,
        "framework": planned.framework,
        "whole": planned.whole_steps,
        "lengths": facts.lengths(planned.inputs.sizes_of(planned.loading)),
        **planned.facts.collect(whole, each),
        "blocks": planned.blocks.as_fields(),
        "block_classes": planned.blocks.classes(),
        "holdings": holdings.holdings(whole, optimizers),
        "peaks": planned.peaks,
    }


def _models(planned):
    """Return the combined model, and the models it consists of."""
    if planned.target is not None:
        return planned.target.model, planned.target.models()
    model = planned.first() if planned.first is not None else None
    return model, [] if model is None else [model]
