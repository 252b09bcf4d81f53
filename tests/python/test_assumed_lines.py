"""Every assumption of a report names the lines of the script that read the value."""

import re
from pathlib import Path

from support import on_device

READS = """
    from torch.utils.checkpoint import checkpoint

    x = torch.randn(5_000, 4, device=device, requires_grad=True)

    def select():
        return x[x[:, 0] > 0]

    def count():
        return int((x[:, 0] > 1).sum())

    def log(value):
        return f"{value.item():.2f}"

    def branch(value):
        return 1 if value > 0 else 2

    class Layer(torch.nn.Module):
        def forward(self, value):
            # Recomputed by a thread of the autograd engine.
            return value[value.detach()[:, 1] > 0] ** 2

    def train():
        checkpoint(Layer(), x * 2, use_reentrant=False).sum().backward()

    for _ in range(3):
        select(), count(), log(x.sum()), branch(x.mean()), train()
"""


def functions(lines: list[str]) -> set[str]:
    return {line.rsplit(".", 1)[-1].rsplit(" ", 1)[-1] for line in lines}


def test_every_assumption_names_the_lines_that_read_the_value(tmp_path: Path) -> None:
    answer = on_device(READS, tmp_path, gpu="t4")
    assert answer.status == 0, answer.output
    values = answer.report["fidelity"]["values"]
    assert all(value["lines"] for value in values), values
    # A line is listed once, however often it reads.
    assert all(len(set(value["lines"])) == len(value["lines"]) for value in values)
    by_text = {re.split("[,:]", value["call"])[0]: functions(value["lines"]) for value in values}
    # The backward pass of a selection asks for the size again: `train` calls it.
    assert by_text == {
        "the size of `nonzero` depends on computed values": {"select", "forward", "train"},
        "the number of true entries of a mask": {"count"},
        "a count or random number that only a GPU can compute": {"count"},
        "a value that only a GPU can compute": {"log"},
        "a condition on computed values": {"branch"},
    }


def test_a_size_without_a_bound_is_named_with_its_line(tmp_path: Path) -> None:
    answer = on_device(
        """
        def longer():
            counts = torch.randint(0, 9, (3_000,), device=device).sort()[1] // 7
            return torch.randn(3_000, device=device).repeat_interleave(counts)

        longer()
        """,
        tmp_path,
        gpu="t4",
    )
    assert answer.report["verdict"] == "unknown", answer.output
    assert " in longer)" in answer.report["problem"]["message"]
