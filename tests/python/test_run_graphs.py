"""CUDA graphs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from runs import WORKLOADS, completed, hold_to_contract, invoke
from runs import run as dry_run
from support import on_device, through_memfit

ASYNC = {
    "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync",
    "PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync",
}


def test_a_replay_is_a_step_where_the_optimizer_is_inside():
    report = completed("graphed.py --what step", gpu="t4", options="--steps 5").report
    # Two before the capture, none in it, and three replays.
    assert (report["steps"], report["coverage"]["steps"]) == (5, 5)
    assert dry_run("graphed.py --what step", gpu="t4", options="--steps 0").report["steps"] == 8


def test_graphed_passes_train():
    report = completed("graphed.py --what passes", gpu="t4", options="--steps 3").report
    assert report["steps"] == 3
    assert report["fidelity"]["unmodelled"] == []


def test_the_drivers_own_allocator_is_seen_into():
    command = ["run", "--gpu", "t4", "--format", "json", "--", sys.executable, str(WORKLOADS / "resnet.py")]
    answer = invoke(command, env={**os.environ, **ASYNC})
    assert answer.status == 0, answer.stderr
    hold_to_contract(answer.report)
    native = invoke(command).report["at_peak"]["by_category"]
    for category in ("parameters", "gradients", "optimizer", "inputs"):
        assert answer.categories[category] == pytest.approx(native[category], rel=0.01), category


def test_memory_of_a_graph_of_the_drivers_allocator_stays_the_graphs(tmp_path: Path):
    answer = on_device(
        """
        MIB = 1 << 20
        def tensor(size):
            return torch.empty(size * MIB, dtype=torch.uint8, device=device)
        tensor(1)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(3):
                tensor(512).fill_(1)
        graph.replay()
        torch.cuda.synchronize()
        after = torch.cuda.mem_get_info()[0]
        beside = tensor(512)
        answer(graph=(free - after) // MIB, both=(free - torch.cuda.mem_get_info()[0]) // MIB)
        """,
        tmp_path,
        start=lambda gpu, command, env: through_memfit(gpu, command, {**env, **ASYNC}),
    )
    assert answer.status == 0, answer.output
    assert answer.said == {"graph": 512, "both": 1024}, "what a graph needs again serves nobody else"


def test_a_replay_computes_with_what_is_there_then(tmp_path: Path):
    answer = on_device(
        """
        lengths, kept = torch.tensor([3, 1], device=device), torch.zeros(2, dtype=torch.long, device=device)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept.copy_(lengths)
            doubled = lengths * 2
            most = doubled.max()
        found = [kept.tolist()]
        for values in ([5, 7], [2, 9]):
            lengths.copy_(torch.tensor(values))
            graph.replay()
            found.append([kept.tolist(), doubled.tolist(), most.item()])
        # A library's result differs from the previous contents, at each launch.
        left, product = torch.ones(2, 2, device=device), torch.zeros(2, 2, device=device)
        torch.mm(left, left)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.mm(left, left, out=product)
        product.copy_(torch.full((2, 2), 7.0))
        before = product.tolist()
        graph.replay()
        answer(found=found, before=before, product=product.tolist())
        """,
        tmp_path,
    )
    assert answer.status == 0, answer.output
    assert answer.said["before"] == [[7.0, 7.0], [7.0, 7.0]] != answer.said["product"]
    captured, *replayed = answer.said["found"]
    assert replayed == [[[5, 7], [10, 14], 14], [[2, 9], [4, 18], 18]]
    assert captured in ([0, 0], [3, 1])


def test_a_pool_of_ones_own_keeps_its_segments_apart(tmp_path: Path):
    answer = on_device(
        """
        MIB = 1 << 20
        def tensor(size):
            return torch.empty(size * MIB, dtype=torch.uint8, device=device)
        def segments():
            found = torch.cuda.memory_snapshot()
            return {tuple(each["segment_pool_id"]): each["total_size"] // MIB for each in found}
        tensor(1)
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            first = tensor(256)
        inside = segments()[tuple(pool.id)]
        del first
        torch.cuda.empty_cache()
        # Requests that its own segment could hold are served from elsewhere outside of the pool.
        other = tensor(256)
        both = (free - torch.cuda.mem_get_info()[0]) // MIB
        with torch.cuda.use_mem_pool(pool):
            again = tensor(256)
        served = (free - torch.cuda.mem_get_info()[0]) // MIB
        del again, pool
        torch.cuda.empty_cache()
        answer(inside=inside, both=both, served=served, after=(free - torch.cuda.mem_get_info()[0]) // MIB)
        """,
        tmp_path,
    )
    assert answer.status == 0, answer.output
    assert answer.said["inside"] == 256
    assert answer.said["both"] == answer.said["served"] == 512, "the pool's segment served the pool again"
    assert answer.said["after"] == 256, "and went with it"


WARMS_UP = """
import torch
layer = torch.nn.Linear(1024, 1024, device="cuda")
optimizer = torch.optim.SGD(layer.parameters())
x = torch.randn(1 << 16, 1024, device="cuda")
def step():
    layer(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range({warm}):
        step()
torch.cuda.current_stream().wait_stream(side)
if {captures}:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
for _ in range(50):
    graph.replay() if {captures} else step()
"""


@pytest.mark.parametrize(
    ("warm", "captures", "steps"), [(3, True, 4), (11, True, 12), (3, False, 4), (500, False, 19)]
)
def test_steps_before_a_capture_do_not_end_the_run(warm: int, captures: bool, steps: int, tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(WARMS_UP.format(warm=warm, captures=captures), encoding="utf-8")
    report = invoke(["run", "--gpu", "t4", "--format", "json", "--", sys.executable, str(script)]).report
    assert (report["verdict"], report["steps"]) == ("fits", steps)
    assert [each["code"] for each in report["coverage"]["not_run"] if "graph" in each["code"]] == []
