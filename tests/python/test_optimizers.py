"""Every optimizer of torch.optim, in every form that it has: it steps, and its state is what arithmetic
says.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import on_device

pytest.importorskip("torch")

# The number of state values per parameter value.
STATE: dict[str, tuple[str, float]] = {
    "Adadelta": ("", 2),
    "Adagrad": ("", 1),
    "Adam": ("", 2),
    "Adam amsgrad": ("amsgrad=True", 3),
    "AdamW": ("", 2),
    "Adamax": ("", 2),
    "ASGD": ("", 1),
    "NAdam": ("", 2),
    "RAdam": ("", 2),
    "RMSprop": ("", 1),
    "RMSprop centered, momentum": ("centered=True, momentum=0.9", 3),
    "Rprop": ("", 2),
    "SGD": ("", 0),
    "SGD momentum": ("momentum=0.9", 1),
    "LBFGS": ("", 0),
}

FORMS = ("foreach=False", "foreach=True", "fused=True", "capturable=True", "differentiable=True")

SCRIPT = """
    import inspect
    shapes = [(256, 128), (128,), (64, 64), (1000,)]

    def blocks(values):
        return -(-4 * values // 512) * 512

    def measure(kind, options):
        # The bytes that two steps leave behind, and how many scalars of state are on the device.
        parameters = [torch.nn.Parameter(torch.ones(shape, device=device)) for shape in shapes]
        if "differentiable" in options:  # these take no leaves, and keep the graph of their step
            parameters = [each.clone() for each in parameters]
        for each in parameters:
            each.grad = torch.ones_like(each)
        before = torch.cuda.memory_allocated()
        optimizer = kind(parameters, lr=1e-3, **options)
        for _ in range(2):
            optimizer.step(*([lambda: torch.zeros((), device=device)] if kind is torch.optim.LBFGS else []))
        seen = torch.cuda.memory_allocated() - before
        tensors = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
        return seen, sum(value.is_cuda and value.numel() == 1 for value in tensors)

    values_of_parameters = sum(blocks(torch.Size(shape).numel()) for shape in shapes)
    found = {}
    for name, (options, values) in STATE.items():
        kind = getattr(torch.optim, name.split()[0])
        accepted = inspect.signature(kind).parameters
        for form in ("", *FORMS):
            chosen = eval(f"dict({', '.join(part for part in (options, form) if part)})")
            if set(chosen) <= set(accepted):
                seen, scalars = measure(kind, chosen)
                found[f"{name} {form}".strip()] = (seen, values * values_of_parameters + 512 * scalars)
    answer(found=found)
"""


def test_every_form_of_every_optimizer_holds_what_arithmetic_says(tmp_path: Path) -> None:
    script = SCRIPT.replace("STATE.items()", f"{STATE!r}.items()").replace("*FORMS", f"*{FORMS!r}")
    answer = on_device(script, tmp_path)
    assert answer.status == 0, answer.output
    found = answer.said["found"]
    assert {name.split()[0] for name in found} == {name.split()[0] for name in STATE}
    assert len(found) > 50, "most have most forms"
    # LBFGS keeps vectors of all parameters together, and what is differentiable keeps the graph of its step.
    exact = {
        name: pair
        for name, pair in found.items()
        if "differentiable" not in name and not name.startswith("LBFGS")
    }
    assert all(seen >= wanted for seen, wanted in found.values()), found
    wrong = {name: pair for name, pair in exact.items() if pair[0] != pair[1]}
    assert wrong == {}, "bytes seen, bytes by arithmetic"
    assert answer.unmodelled == {}


IN_OBJECTS = """
    import dataclasses

    @dataclasses.dataclass
    class Factors:
        matrices: tuple
        counts: list

    class Blocked(torch.optim.Optimizer):
        # Keeps a matrix for each side of a parameter, in an object for each block, as Shampoo does.
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1})
            for group in self.param_groups:
                for each in group["params"]:
                    sides = tuple(torch.zeros(512, 512, device=device) for _ in range(4))
                    self.state[each]["block_0"] = {"shampoo": Factors(sides, [each, each.view(-1)])}

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for each in group["params"]:
                    each.add_(each.grad, alpha=-group["lr"])

    model = torch.nn.Linear(512, 512, bias=False).to(device)
    optimizer = Blocked(model.parameters())
    for _ in range(3):
        model(torch.randn(8, 512, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    answer(done=True)
"""


def test_state_in_objects_is_the_optimizers(tmp_path: Path) -> None:
    held = on_device(IN_OBJECTS, tmp_path).report["at_peak"]["by_category"]
    assert held["optimizer"] == 4 * 4 * 512 * 512, held
    assert held["parameters"] == 4 * 512 * 512, held
    assert held["unknown"] == 0, held
