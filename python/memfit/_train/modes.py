"""A dispatch mode that changes nothing else about what PyTorch runs."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_LENGTHS = ("input_lengths", "target_lengths")


class _Lengths(TorchFunctionMode):  # type: ignore[misc]
    """Moves the lengths of CTC to its device.

    They may be on the host, as cuDNN wants them; beside a dispatch mode, PyTorch refuses that.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # PyTorch's function, or the operator that it calls.
        if getattr(func, "__name__", "") == "ctc_loss":
            place = (args[0] if args else kwargs["log_probs"]).device
            args = (*args[:2], *(_moved(each, place) for each in args[2:4]), *args[4:])
            kwargs = kwargs | {name: _moved(kwargs[name], place) for name in _LENGTHS if name in kwargs}
        return func(*args, **kwargs)


def _moved(lengths: Any, place: torch.device) -> Any:
    return lengths.to(place) if isinstance(lengths, torch.Tensor) else lengths


class Mode(TorchDispatchMode):  # type: ignore[misc]
    """The base of memfit's dispatch modes."""

    def __enter__(self) -> Any:
        self._lengths = _Lengths()
        self._lengths.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._lengths.__exit__(*error)
