"""Sparse tensors, which have no storage of their own: inputs, buffers, gradients, copies to the host."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import on_device

GRAPH = """
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.nodes = torch.nn.Embedding(2000, 64, sparse=True)
            self.out = torch.nn.Linear(64, 8)
            self.register_buffer("edges", edges)
            self.same = edges

        def forward(self, ids, edges):
            return self.out(torch.sparse.mm(edges, self.nodes(ids)))

    edges = torch.eye(SIDE).LAYOUT().to(device)
    model = Layer().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randint(0, 2000, (SIDE,), device=device), edges).sum().backward()
        optimizer.step()
        values = [edges.cpu(), (edges * 2).to("cpu"), model.nodes.weight.grad.cpu()]
    answer(layouts=[str(each.layout) for each in values])
"""


@pytest.mark.parametrize(("layout", "side"), [("to_sparse", 64), ("to_sparse_csr", 1500)])
def test_sparse_tensors_are_attributed_and_copied(layout: str, side: int, tmp_path: Path) -> None:
    answer = on_device(GRAPH.replace("LAYOUT", layout).replace("SIDE", str(side)), tmp_path)
    report = answer.report
    assert report["verdict"] == "fits", (report["problem"], report["fidelity"])
    kind = "torch.sparse_csr" if layout.endswith("csr") else "torch.sparse_coo"
    assert answer.said["layouts"] == [kind, kind, "torch.sparse_coo"]
    assert not [note for note in report["fidelity"]["notes"] if "the probe failed" in note]
    copied = [each["call"] for each in report["fidelity"]["values"] if "copied to the host" in each["call"]]
    assert copied, "the values of the gradient are unknown"
