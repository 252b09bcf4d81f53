"""Statements that use the GPU and did not run are listed, and no others."""

import copy
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import on_device, through_memfit
from torch import nn

BEGIN = """
import copy
import functools
import torch
from torch import nn

model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = [torch.ones(1, 2)] * 3

def train(x):
    loss = model(x).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
"""

# The runs end in the second iteration, at `done`. Lines that must be listed are marked.
SCRIPTS = {
    "an evaluation at the end of an epoch": """
        @torch.no_grad()
        def evaluate(network, batches):
            for x in batches:
                network(x)

        for epoch in range(2):
            for step, x in enumerate(loader):
                train(x)
                done(step)
            evaluate(model, loader)  # listed
        """,
    "a rare branch": """
        for step, x in enumerate(loader):
            train(x)
            if step == 100:  # listed
                model(x)
            done(step)
        """,
    "the other branch": """
        for step, x in enumerate(loader):
            if step < 100:
                train(x)
            else:
                model(x)  # listed
            done(step)
        """,
    "a branch within a branch": """
        for step, x in enumerate(loader):
            train(x)
            if step >= 0:
                print(step)
                if step > 50:  # listed
                    model(x)
            done(step)
        """,
    "after the loop": """
        for step, x in enumerate(loader):
            train(x)
            done(step)
        torch.save(model.state_dict(), "x.pt")
        with torch.no_grad():
            print("samples")
            samples = model(torch.ones(1000, 2))  # listed
        """,
    "a loader that is only read later": """
        for epoch in range(2):
            for step, x in enumerate(loader):
                train(x)
                done(step)
            for x in loader:  # listed
                model(x)
        """,
    "copies, new optimizers and unfrozen layers": """
        for step, x in enumerate(loader):
            train(x)
            if step == 10:  # listed
                average = copy.deepcopy(model)
            if step == 20:  # listed
                optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
            if step == 30:  # listed
                optimizer = torch.optim.Adam(model.parameters())
            if step == 40:  # listed
                model.requires_grad_(True)
            if step == 50:  # listed
                model.double()
            done(step)
        """,
    "a class": """
        class Trainer:
            def __init__(self, network):
                self.network = network

            def fit(self):
                for epoch in range(2):
                    self.epoch()
                    if epoch % 5 == 4:  # listed
                        self.sample()

            def epoch(self):
                for step, x in enumerate(loader):
                    train(x)
                    done(step)
                self.validate()  # listed

            def sample(self):
                return [self.network(x) for x in loader]

            def validate(self):
                return self.sample()

        if __name__ == "__main__":
            Trainer(model).fit()
        """,
    "what uses no memory of the GPU": """
        def save(network, path):
            torch.save(network.state_dict(), path)

        for step, x in enumerate(loader):
            loss = train(x)
            if step == 100:
                print(loss.item())
            if step == 200:
                save(model, "x.pt")
            if step == 300:
                model.eval()
                break
            if step == 400:
                raise RuntimeError("no progress")
            done(step)
        model.train()
        save(model, "x.pt")
        """,
    "losses, which are modules without parameters": """
        criterion = nn.MSELoss()
        for step, x in enumerate(loader):
            train(x)
            if step > 100:
                loss = criterion(x, x) * 0.5
            else:
                loss = criterion(x, x)
            done(step)
        criterion(x, x)
        """,
    "wrappers of what is not written in Python": """
        count = functools.wraps(len)(lambda things: len(things))
        for step, x in enumerate(loader):
            train(x)
            if step == 100:  # listed
                print(count(loader), model(x))
            done(step)
        print(count(loader))
        """,
    "what runs in each iteration": """
        def log(network, x, step):
            if step > 100:
                network(x)

        for step, x in enumerate(loader):
            train(x)
            if step >= 0:
                model(x)
            if step >= 0:
                log(model, x, step)
            with torch.no_grad():
                model(x)
            done(step)
        """,
    "what was decided once": """
        if len(loader) == 3:
            train(loader[0])
        else:
            model.double()
        for x in loader:
            if x.sum() > 100:
                model(x)
        for step, x in enumerate(loader):
            train(x)
            done(step)
        """,
    "handlers of errors": """
        for step, x in enumerate(loader):
            try:
                train(x)
                done(step)
            except RuntimeError:
                model(x[:1])
        """,
    "a compiled function, whose calls cannot be seen": """
        forward = torch.compile(lambda x: model(x), backend="eager")
        for step, x in enumerate(loader):
            train(x)
            if step >= 0:
                forward(x)
            done(step)
        """,
}


@pytest.fixture
def find(probe: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[Any]]]:
    """Return what finds the statements, and watch until the end of the test."""
    for owner, name in (
        (nn.Module, "_apply"),
        (nn.Module, "requires_grad_"),
        (torch.autograd, "backward"),
        (torch.optim.Optimizer, "__init__"),
        (torch.optim.Optimizer, "add_param_group"),
        (copy, "deepcopy"),
    ):
        # To be restored.
        monkeypatch.setattr(owner, name, getattr(owner, name))
    seen = probe("calls_seen").CallsSeen()
    seen.arm(torch)
    compiling = torch.compiler.is_compiling
    hook = nn.modules.module.register_module_forward_pre_hook(
        lambda module, _: None if compiling() or next(module.parameters(), None) is None else seen.record()
    )
    session = SimpleNamespace(torch=torch, calls_seen=seen)
    yield lambda: probe("not_run").find(session)
    hook.remove()


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_statements_that_did_not_run_are_listed(
    name: str, find: Callable[[], list[Any]], tmp_path: Path
) -> None:
    source = BEGIN + textwrap.dedent(SCRIPTS[name])
    script = tmp_path / "script.py"
    script.write_text(source)
    listed = []

    class End(BaseException):
        """Ends the script."""

    def done(step: int) -> None:
        if step == 1:
            listed.extend(find())
            raise End

    with pytest.raises(End):
        exec(compile(source, str(script), "exec"), {"done": done, "__name__": "__main__"})
    lines = source.splitlines()
    marked = [f"{script}:{number}" for number, line in enumerate(lines, 1) if "# listed" in line]
    assert sorted(place for place, _ in listed) == sorted(marked)
    assert all(code == lines[int(place.rpartition(":")[2]) - 1].strip() for place, code in listed)


TRAINING = """
    model = torch.nn.Linear(64, 64).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(10):
        loss = model(torch.randn(8, 64, device=device)).sum()
        loss.backward()
        optimizer.step()
        if step == 7:
            model(torch.randn(80, 64, device=device))
        if loss > 100:
            model(torch.randn(90, 64, device=device))
"""


def test_a_run_that_was_ended_lists_them(tmp_path: Path) -> None:
    ended = on_device(TRAINING, tmp_path, "t4", partial(through_memfit, options=["--steps", "3"]))
    assert ended.report["verdict"] == "fits"
    # A further run took the other branch of the condition on a computed value.
    assert [each["code"] for each in ended.report["coverage"]["not_run"]] == ["if step == 7:"]
    # Nothing is missing where the script came to its own end.
    whole = on_device(TRAINING, tmp_path, "t4")
    assert whole.report["coverage"]["not_run"] == []
