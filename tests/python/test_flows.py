"""Which failures an assumed value can have caused: its way through the source of a script."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from support import on_device

# Each is a piece of a script, whose value is read at `# read`, and which fails at `# fails`.
REACHED = {
    "an assigned name": """
        loss = tensor.item()  # read
        scale = 1 / loss
        table[scale]  # fails
    """,
    "the same statement": """
        1 / tensor.item()  # read # fails
    """,
    "an argument": """
        def divide(by):
            return 1 / by  # fails
        divide(tensor.item())  # read
    """,
    "a result": """
        def count():
            return int(tensor.sum())  # read
        def main():
            width = count()
            rows[width]  # fails
        main()
    """,
    "an attribute of another object": """
        class Meter:
            def update(self, value):
                self.total += value
        meter.update(tensor.item())  # read
        def report():
            return 1 / meter.total  # fails
    """,
    "an item of a list": """
        losses.append(tensor.item())  # read
        index[max(losses)]  # fails
    """,
    "a condition": """
        if tensor.item() > best:  # read
            best_model = copy(model)
        best_model.eval()  # fails
    """,
    "a condition around a call": """
        def save(path):
            shelf[path] = 1  # fails
        if tensor.item() < best:  # read
            save("best")
    """,
    "a loop": """
        count = tensor.item()  # read
        for index in range(count):
            first = rows[index]
        print(first)  # fails
    """,
    "a shared name": """
        total = 0
        def add():
            global total
            total += tensor.item()  # read
        def show():
            print(names[total])  # fails
    """,
}
NOT_REACHED = {
    "a printed value": """
        print(f"loss {tensor.item():.3f}")  # read
        codes = [table[letter] for letter in text]  # fails
    """,
    "a name that only another function has": """
        def train():
            step = tensor.item()  # read
            print(step)
        def load():
            step = "last"
            return shelf[step]  # fails
    """,
    "a log of it": """
        history.append(tensor.item())  # read
        print(sum(history))
        names[key]  # fails
    """,
    "a callback that prints": """
        def on_batch_end(trainer):
            print(trainer.iteration, trainer.loss.item())  # read
            if trainer.iteration % 500 == 0:
                text = [trainer.data.codes[letter] for letter in "O God"]  # fails
    """,
    "functions of a module": """
        import torch
        loss = torch.rand(8).sum().item()  # read
        weights = torch.load(path)  # fails
    """,
    "a class that is imported": """
        from mypath import Path
        weights = load(Path.weights())  # read
        def data():
            return open(Path.images())  # fails
    """,
    "a meter": """
        class Meter:
            def update(self, value, count):
                self.sum += value * count
                self.count += count
        losses.update(tensor.item(), len(images))  # read
        print(losses.sum)
        config["missing"]  # fails
    """,
}


def reached(flows: ModuleType, code: str, folder: Path) -> bool:
    """Return `True` if the value can have reached the failing statement."""
    lines = textwrap.dedent(code).lstrip("\n").splitlines(keepends=True)
    path = str(folder / "train.py")

    def marked(word: str) -> list[tuple[str, int]]:
        return [(path, number) for number, line in enumerate(lines, 1) if f"# {word}" in line]

    return bool(flows.Program({path: lines}).reached(marked("read"), marked("fails")))


Probe = Callable[[str], ModuleType]


@pytest.mark.parametrize("code", REACHED.values(), ids=REACHED)
def test_a_value_is_followed_to_the_statement_that_fails(code: str, probe: Probe, tmp_path: Path) -> None:
    assert reached(probe("flows"), code, tmp_path)


@pytest.mark.parametrize("code", NOT_REACHED.values(), ids=NOT_REACHED)
def test_a_value_that_does_not_reach_the_failing_statement_is_not_followed(
    code: str, probe: Probe, tmp_path: Path
) -> None:
    assert not reached(probe("flows"), code, tmp_path)


LOSSES = """
    letters = {{"a": 1}}
    loss = torch.rand(8, device=device).mean()
    print(loss.item())
    count = int(torch.rand(8, device=device).sum())
    {line}
"""


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("letters['b']", "exception"),
        ("letters[count]", "exception-after-change"),
        ("letters[len(loss.tolist().hex())]", "exception-after-change"),
        # A value that PyTorch read by itself may be anywhere.
        ("letters['b' if torch.equal(loss, loss + 1) else 'c']", "exception-after-change"),
    ],
)
def test_no_value_is_blamed_for_what_it_cannot_have_reached(line: str, kind: str, tmp_path: Path) -> None:
    answer = on_device(LOSSES.format(line=line), tmp_path)
    assert answer.report["problem"]["kind"] == kind, answer.report["problem"]
