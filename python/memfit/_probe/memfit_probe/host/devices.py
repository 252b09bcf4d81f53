"""Moves everything that the script puts on a CUDA device to the CPU."""

import functools

# Functions whose second argument may be the index of a GPU.
_BY_NUMBER = ("to", "cuda")


def arm(torch):
    """Activate it in this thread."""
    mode = _mode(torch)
    mode.__enter__()
    torch.load = _loading_to_host(torch.load)
    torch.Generator = _generator(torch.Generator)


def _mode(torch):
    tensor, device = torch.Tensor, torch.device

    def on_host(value, number):
        if isinstance(value, device):
            return device("cpu") if value.type == "cuda" else value
        if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
            return "cpu"
        if number and isinstance(value, int) and not isinstance(value, bool):
            return "cpu"
        return value

    class OnHost(torch.overrides.TorchFunctionMode):
        """Replaces CUDA devices in the arguments of functions with the CPU."""

        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if func is tensor.cuda:
                return args[0]
            number = getattr(func, "__name__", "") in _BY_NUMBER
            args = tuple(on_host(value, number) for value in args)
            if kwargs:
                kwargs = {name: on_host(value, name == "device") for name, value in kwargs.items()}
            return func(*args, **kwargs)

    return OnHost()


def _loading_to_host(original):
    @functools.wraps(original)
    def load(file, map_location=None, *args, **kwargs):
        return original(file, "cpu", *args, **kwargs)

    return load


def _generator(original):
    class Generator(original):
        """A generator on the CPU, whatever device is given."""

        def __new__(cls, device="cpu"):
            return original.__new__(cls, "cpu")

    return Generator
