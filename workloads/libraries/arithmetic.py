"""Prints the memory of a model and its optimizer by arithmetic, to be compared with a measurement.

The counts come from shapes and formats alone: no device is used.
"""

import json


def say(**expected):
    """One line: bytes by what they are for, as a reader would work them out on paper."""
    print("by arithmetic: " + json.dumps({name: int(value) for name, value in expected.items()}), flush=True)


def stored(parameters):
    """Bytes of parameters in the format that each has now, with the scales of the quantized ones."""
    return sum(size(each) for each in parameters)


def size(tensor):
    """Bytes of a tensor, or of the tensors that a quantized one consists of."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return tensor.numel() * tensor.element_size()
    names, _ = tensor.__tensor_flatten__()
    return sum(size(getattr(tensor, name)) for name in names)


def trainable(model):
    return [each for each in model.parameters() if each.requires_grad]


def adam_moments(parameters, bytes_per_value=None):
    """Two moments of each parameter, in its own format or in one that is named."""
    return sum(2 * each.numel() * (bytes_per_value or each.element_size()) for each in parameters)
