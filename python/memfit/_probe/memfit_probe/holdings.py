"""Counts a model's parameters, and the bytes that they, their gradients and the optimizer state take."""

from . import optimizer_state


def holdings(model, optimizers):
    """Return the fields of the message; `model` may be `None`."""
    parameters = list(model.parameters()) if model is not None else []
    stepped = {
        id(each) for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]
    }
    trained = [each for each in parameters if each.requires_grad and id(each) in stepped]
    return {
        "parameters": _count(model),
        "trained": sum(each.numel() for each in trained),
        "weights": weights(model),
        # One backward pass leaves a gradient for each of them.
        "gradients": sum(each.nbytes for each in trained),
        "optimizer": sum(map(optimizer_state.nbytes, optimizers)),
    }


def weights(model):
    """Return the bytes of a model's parameters, with the codes of quantised ones."""
    if model is None:
        return 0
    found = [*model.parameters(), *_codes(model)]
    return sum(each.nbytes for whole in found for each in plain(whole))


def tensors(model):
    """Return a model's parameters, buffers and codes."""
    return [*model.parameters(), *model.buffers(), *_codes(model)]


def plain(tensor):
    """Return the tensors that a tensor wraps, or itself."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    # Not all of them are tensors: a distributed one lists its mesh as well.
    parts = (getattr(tensor, name) for name in names)
    return [each for part in parts if hasattr(part, "untyped_storage") for each in plain(part)]


def _count(model):
    """Return the number of parameters; one that is quantised counts with its original shape."""
    if model is None:
        return 0
    own = sum(_shape(each).numel() for each in model.parameters())
    return own + sum(each.shape.numel() for each in _coded(model))


def _shape(parameter):
    """Return the shape of a parameter, before bitsandbytes quantised it."""
    return getattr(getattr(parameter, "quant_state", None), "shape", None) or parameter.shape


def _codes(model):
    """Return the tensors that are kept in addition to quantised parameters."""
    found = [each for coded in _coded(model) for each in (coded.codes, coded.scales)]
    for each in model.parameters():
        state = getattr(each, "quant_state", None)
        # The scales may be quantised, too.
        for one in (state, getattr(state, "state2", None)):
            values = vars(one).values() if one is not None else ()
            found += [value for value in values if hasattr(value, "nbytes")]
    return found


def _coded(model):
    """Return the codes that `quantized-base` and `quantized-weights` keep for an empty parameter."""
    bases = (vars(module).get("_memfit_base") for module in model.modules())
    return [base.coded for base in bases if base is not None]
