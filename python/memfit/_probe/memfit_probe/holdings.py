"""Counts a model's parameters, and the bytes that they, their gradients and the optimizer state take."""

from . import facts


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
        "optimizer": sum(map(facts.state_bytes, optimizers)),
    }


def weights(model):
    """Return the bytes of a model's parameters, with the codes of quantised ones."""
    if model is None:
        return 0
    return sum(map(_nbytes, model.parameters())) + sum(each.nbytes for each in _coded(model))


def _count(model):
    """Return the number of parameters; one that is quantised counts with its original shape."""
    if model is None:
        return 0
    return sum(each.numel() for each in model.parameters()) + sum(
        each.shape.numel() for each in _coded(model)
    )


def _coded(model):
    """Return the codes that `quantized-base` and `quantized-weights` keep beside an empty parameter."""
    bases = (vars(module).get("_memfit_base") for module in model.modules())
    return [base.coded for base in bases if base is not None]


def _nbytes(tensor):
    """Return the bytes of a tensor, or of the tensors that it wraps."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return tensor.nbytes
    names, _ = tensor.__tensor_flatten__()
    return sum(_nbytes(getattr(tensor, name)) for name in names)
