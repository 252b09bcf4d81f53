"""A training step that teaches a small model what a large one returns.

The teacher runs in eval mode and without gradients, on the micro-batches of the student, so that its outputs
never exist for a whole batch. The softened losses are computed a few rows at a time: of all the softmax
matrices that they need, only the gradient of the student's logits is kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from memfit._levers.blocks import blocks

from .step import Step

# Elements of the softmax matrices that exist at once.
_ELEMENTS_AT_ONCE = 1 << 22

Call = Callable[[nn.Module, Any], Any]


def distill(
    teacher: nn.Module,
    student: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    loss: Callable[[Any, Any], Any] | None = None,
    plan: Any = None,
    *,
    call: Call | None = None,
    temperature: float = 2.0,
    weight: float = 0.5,
    features: Mapping[str, str] | None = None,
    feature_weight: float = 1.0,
    attentions: Mapping[str, str] | None = None,
    attention_weight: float = 1.0,
    offload: bool = False,
    **options: Any,
) -> Step:
    """Return a `Step` that trains the student on the teacher's outputs.

    `call(model, batch)` returns a model's outputs; the default passes the first entry of a tuple, or a
    dictionary without its labels. `loss(outputs, batch)` is the student's own loss, as for `Step`, with a
    share of `1 - weight`; without it the teacher alone teaches. `features` maps modules of the student to
    modules of the teacher whose outputs have the same shape. `attentions` does so for attention: where both
    modules return attention weights in addition to their output, these are compared, and otherwise the places
    at which their outputs are large, whatever the number of channels. `offload` keeps the teacher's repeated
    blocks in host memory. Other options are those of `Step`.
    """
    if temperature <= 0:
        raise ValueError(f"`temperature` is {temperature}, but has to be above 0")
    if not 0 <= weight <= 1:
        raise ValueError(f"`weight` is {weight}, but has to be between 0 and 1")
    if teacher is student:
        raise ValueError("the teacher and the student are the same module")
    distillation = _Distillation(
        teacher,
        loss,
        call or outputs_of,
        temperature,
        weight if loss else 1.0,
        [
            _Matched(teacher, student, "features", features or {}, feature_weight, feature_distance),
            _Matched(teacher, student, "attentions", attentions or {}, attention_weight, attention_distance),
        ],
    )
    if offload:
        _offload(teacher, next((each.device for each in student.parameters()), torch.device("cpu")))
    return Step(student, optimizer, distillation.losses, plan, **options)


class _Distillation:
    """The losses of a micro-batch."""

    def __init__(
        self,
        teacher: nn.Module,
        loss: Callable[[Any, Any], Any] | None,
        call: Call,
        temperature: float,
        weight: float,
        matched: Sequence[_Matched],
    ) -> None:
        self._teacher = teacher.eval()
        self._loss, self._call = loss, call
        self._temperature, self._weight, self._matched = temperature, weight, matched

    def losses(self, student: nn.Module, batch: Any) -> dict[str, Any]:
        """Return the losses by name, each as a sum and its count."""
        with torch.no_grad(), _outputs([theirs for each in self._matched for theirs in each.theirs]) as seen:
            # The teacher keeps its own precision.
            kind = next((each.dtype for each in self._teacher.parameters()), torch.float32)
            taught = logits_of(self._call(self._teacher, _in_precision(batch, kind)))
        with _outputs([ours for each in self._matched for ours in each.ours]) as felt:
            outputs = self._call(student, batch)
        logits = logits_of(outputs)
        if logits.shape != taught.shape:
            raise ValueError(
                f"the student's outputs have the shape {tuple(logits.shape)}, the teacher's {tuple(taught.shape)}"
            )
        rows = logits.numel() // logits.shape[-1]
        soft = soft_loss(logits, taught, self._temperature)
        losses: dict[str, Any] = {"teacher": (self._weight * soft, rows)}
        if self._loss is not None:
            losses["own"] = _times(self._loss(outputs, batch), 1 - self._weight)
        pairs = iter(zip(felt, seen, strict=True))
        for each in self._matched:
            for place in range(len(each.ours)):
                distances = each.distance(*next(pairs))
                losses[f"{each.name}.{place}"] = (each.weight * distances.sum(), len(distances))
        return losses


class _Matched:
    """Pairs of modules whose outputs are compared."""

    def __init__(
        self,
        teacher: nn.Module,
        student: nn.Module,
        name: str,
        pairs: Mapping[str, str],
        weight: float,
        distance: Callable[[Any, Any], torch.Tensor],
    ) -> None:
        self.name, self.weight, self.distance = name, weight, distance
        self.ours = [_module(student, "student", name, ours) for ours in pairs]
        self.theirs = [_module(teacher, "teacher", name, theirs) for theirs in pairs.values()]


def feature_distance(ours: Any, theirs: Any) -> torch.Tensor:
    """Return the mean squared difference of two modules' outputs, for each sample."""
    ours, theirs = _first(ours), _first(theirs)
    if ours.shape != theirs.shape:
        raise ValueError(
            f"features have the shapes {tuple(ours.shape)} and {tuple(theirs.shape)}; name modules whose "
            "outputs have the same shape, such as a projection of the student's"
        )
    return (ours.float() - theirs.float()).square().flatten(1).mean(1)


def attention_distance(ours: Any, theirs: Any) -> torch.Tensor:
    """Return the mean squared difference of two modules' attention, for each sample."""
    weights = [each for each in (_weights(ours), _weights(theirs)) if each is not None]
    if len(weights) == 2:
        # Models of different width have different numbers of heads.
        maps = [each.float().mean(1) if each.dim() == 4 else each.float() for each in weights]
    else:
        maps = [_map(_first(each)) for each in (ours, theirs)]
    if maps[0].shape != maps[1].shape:
        raise ValueError(
            f"attention has the shapes {tuple(maps[0].shape)} and {tuple(maps[1].shape)}; name modules whose "
            "outputs have as many places: feature maps of the same size, or as many tokens"
        )
    return (maps[0] - maps[1]).square().flatten(1).mean(1)


def _map(output: torch.Tensor) -> torch.Tensor:
    """Return the magnitude of an output at each place, with norm 1 (Zagoruyko and Komodakis, 2017).

    Channels are the second side of feature maps, and the last one of tokens.
    """
    if output.dim() < 3:
        raise ValueError(f"an output of the shape {tuple(output.shape)} has no places to attend to")
    energy = output.float().square().mean(1 if output.dim() > 3 else -1).flatten(1)
    return functional.normalize(energy, dim=1)


def _first(output: Any) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output


def _weights(output: Any) -> torch.Tensor | None:
    """Return the attention weights that a module returns in addition to its output, if any."""
    found = output[1] if isinstance(output, tuple) and len(output) > 1 else None
    is_square = isinstance(found, torch.Tensor) and found.dim() in (3, 4) and found.is_floating_point()
    return found if is_square else None


def outputs_of(model: nn.Module, batch: Any) -> Any:
    """Call a model with a batch as most loaders return it."""
    if isinstance(batch, Mapping):
        return model(**{name: value for name, value in batch.items() if name not in ("labels", "label")})
    return model(batch[0] if isinstance(batch, (list, tuple)) else batch)


def logits_of(outputs: Any) -> torch.Tensor:
    """Return the logits of a model's outputs."""
    found = outputs if isinstance(outputs, torch.Tensor) else getattr(outputs, "logits", None)
    if not isinstance(found, torch.Tensor):
        raise TypeError(
            f"the model returned a {type(outputs).__name__} without `logits`\n"
            "hint: `call=lambda model, batch: …` returns the tensor that is compared"
        )
    return found


def soft_loss(logits: torch.Tensor, taught: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the sum over rows of the divergence from the teacher's softened distribution, times the square
    of the temperature, which keeps gradients in proportion (Hinton et al., 2015).
    """
    total: torch.Tensor = _SoftLoss.apply(logits, taught, temperature)
    return total


class _SoftLoss(torch.autograd.Function):
    """Computes the loss and its gradient a few rows at a time."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, taught: torch.Tensor, temperature: float) -> torch.Tensor:
        classes = logits.shape[-1]
        ours, theirs = logits.reshape(-1, classes), taught.reshape(-1, classes)
        gradient = torch.empty_like(ours) if logits.requires_grad else None
        total = torch.zeros((), dtype=torch.float32, device=logits.device)
        rows = max(1, _ELEMENTS_AT_ONCE // classes)
        for start in range(0, len(ours), rows):
            part = slice(start, start + rows)
            log_ours = functional.log_softmax(ours[part].float() / temperature, -1)
            log_theirs = functional.log_softmax(theirs[part].float() / temperature, -1)
            wanted = log_theirs.exp()
            # Classes that the teacher excludes do not count.
            total += torch.where(wanted > 0, wanted * (log_theirs - log_ours), 0.0).sum()
            if gradient is not None:
                gradient[part] = ((log_ours.exp() - wanted) * temperature).to(gradient.dtype)
        ctx.shape = logits.shape
        ctx.save_for_backward(gradient)
        return total * temperature**2

    @staticmethod
    def backward(ctx: Any, weight: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        (gradient,) = ctx.saved_tensors
        return (gradient * weight.to(gradient.dtype)).view(ctx.shape), None, None


@contextlib.contextmanager
def _outputs(modules: Sequence[nn.Module]) -> Iterator[list[Any]]:
    """Collect the outputs of modules, in the order in which they were named."""
    seen: list[Any] = [None] * len(modules)

    def keep(place: int) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            seen[place] = output

        return hook

    hooks = [module.register_forward_hook(keep(place)) for place, module in enumerate(modules)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
    missing = [type(module).__name__ for module, output in zip(modules, seen, strict=True) if output is None]
    if missing:
        raise ValueError(f"the forward pass did not call a module that is to be compared: {missing[0]}")


def _module(model: nn.Module, whose: str, option: str, name: str) -> nn.Module:
    known = dict(model.named_modules())
    if name not in known:
        raise ValueError(f"the {whose} has no module `{name}`, which `{option}` names")
    return known[name]


def _in_precision(value: Any, kind: torch.dtype) -> Any:
    """Cast the floating-point tensors of a batch."""
    if isinstance(value, torch.Tensor):
        return value.to(kind) if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {name: _in_precision(entry, kind) for name, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_in_precision(entry, kind) for entry in value)
    return value


def _times(loss: Any, share: float) -> Any:
    """Scale a loss: a mean, or a sum with its count."""
    if isinstance(loss, tuple):
        total, count = loss
        return total * share, count
    return loss * share


def _offload(teacher: nn.Module, device: torch.device) -> None:
    """Keep the repeated blocks in host memory, and the rest on the device."""
    names = blocks(teacher)
    if not names:
        raise ValueError(
            "`offload=True` moves repeated blocks one at a time, and the teacher has none\n"
            "hint: leave it out, or give the teacher a smaller precision: `teacher.half()`"
        )
    streamed = [teacher.get_submodule(name) for name in names]
    for block in streamed:
        block.cpu()
    inside = {id(each) for block in streamed for each in (*block.parameters(), *block.buffers())}
    for each in (*teacher.parameters(), *teacher.buffers()):
        if id(each) not in inside:
            each.data = each.data.to(device)
    for block in streamed:
        _Streamed(block, device)


class _Streamed:
    """Copies a block to the device before each pass, and frees the copy after it."""

    def __init__(self, block: nn.Module, device: torch.device) -> None:
        self._device = device
        self._kept = [(each, each.data) for each in (*block.parameters(), *block.buffers())]
        if device.type == "cuda":
            self._kept = [(each, data.pin_memory()) for each, data in self._kept]
        block.register_forward_pre_hook(self._fetch)
        block.register_forward_hook(self._free, always_call=True)

    def _fetch(self, _block: nn.Module, _inputs: Any) -> None:
        for each, data in self._kept:
            each.data = data.to(self._device, non_blocking=True)

    def _free(self, _block: nn.Module, _inputs: Any, _output: Any) -> None:
        for each, data in self._kept:
            each.data = data
