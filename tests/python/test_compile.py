"""torch.compile on the virtual card: Triton compiles for that card, every mode trains, and memory follows its
settings.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from support import on_device, through_memfit
from tiers import first

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

PREPARE = """
    import json, pathlib
    from torch import nn
    os.environ["TRITON_CACHE_DIR"] = "triton"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = "inductor"
    torch._inductor.config.fx_graph_cache = False

    def network():
        return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256)).to(device)

    def train(forward, parameters, rows=(64, 64, 64), optimizer_step=None, amp=False):
        optimizer = torch.optim.AdamW(parameters)
        for count in rows:
            with torch.autocast("cuda", torch.bfloat16, enabled=amp):
                loss = forward(torch.randn(count, 256, device=device)).float().pow(2).mean()
            loss.backward()
            (optimizer_step or optimizer.step)()
            optimizer.zero_grad()

    def graphs():
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]
"""

# The compute capability that Triton compiles for on the oldest card that it knows and on one of the newest.
ARCHITECTURES = {"t4": 75, "b200": 100}


@pytest.mark.parametrize("card", first(ARCHITECTURES, besides=["t4"]))
def test_kernels_are_compiled_for_the_card(
    card: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = on_device(
        PREPARE
        + """
    net = network()
    train(torch.compile(net), net.parameters())
    kernels = [json.loads(file.read_text()) for file in pathlib.Path("triton").rglob("*.json") if "__grp__" not in file.name]
    answer(
        targets=sorted({kernel["target"]["arch"] for kernel in kernels if "target" in kernel}),
        machine_code=[file.stat().st_size for file in pathlib.Path("triton").rglob("*.cubin")],
    )
    """,
        tmp_path,
        gpu=card,
    )
    assert found.status == 0, found.output
    assert found.said["targets"] == [ARCHITECTURES[card]]
    assert found.said["machine_code"], "Triton's ptxas wrote machine code"
    assert min(found.said["machine_code"]) > 0
    assert found.unmodelled == {}


def test_every_way_of_compiling_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece asserts what is its own; max-autotune has to come to a choice by the virtual clock."""
    monkeypatch.chdir(tmp_path)
    found = on_device(
        PREPARE
        + """
    def fresh():
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        return network()

    # Ahead-of-time packages are linked with the driver.
    import subprocess
    pathlib.Path("driver.c").write_text("int cuInit(unsigned); int main(void) { return cuInit(0); }")
    subprocess.run(["cc", "driver.c", "-lcuda", "-o", "driver"], check=True)
    subprocess.run(["./driver"], check=True)

    net = fresh()
    train(torch.compile(net, fullgraph=True), net.parameters())
    assert graphs() == 1

    net = fresh()
    train(torch.compile(net, dynamic=True), net.parameters(), rows=(64, 72, 80, 96))
    assert graphs() == 1, "one graph for all sizes"

    net = fresh()
    graphed = torch.compile(net, mode="reduce-overhead")
    train(graphed, net.parameters(), rows=[64] * 4)
    pools = {tuple(segment["segment_pool_id"]) for segment in torch.cuda.memory_snapshot()}
    assert len(pools) == 2, "the graphs of the tree share one pool of their own"

    net = fresh()
    @torch.compile(fullgraph=True)
    def inside(rows):
        with torch.autocast("cuda", torch.float16):
            return net(rows)
    train(inside, net.parameters())

    net = fresh()
    optimizer = torch.optim.AdamW(net.parameters(), capturable=True)
    train(net, net.parameters(), optimizer_step=torch.compile(optimizer.step))
    assert len(optimizer.state) == 6

    net = fresh()
    with torch._dynamo.config.patch(compiled_autograd=True):
        train(torch.compile(net), net.parameters())

    def kept(budget):
        net = fresh()
        rows = torch.randn(4096, 256, device=device)
        with torch._functorch.config.patch(activation_memory_budget=budget):
            forward = torch.compile(net)
            forward(rows).sum().backward()
            before = torch.cuda.memory_allocated()
            output = forward(rows)
            return torch.cuda.memory_allocated() - before - output.nbytes
    answer(all_kept=kept(1.0), little_kept=kept(0.1), hidden=4096 * 512 * 4)
    """,
        tmp_path,
        gpu="a100-80gb",
    )
    assert found.status == 0, found.output
    assert found.said["all_kept"] >= found.said["hidden"] > found.said["little_kept"], (
        "the budget lets the compiler recompute what it would have kept"
    )
    assert found.unmodelled == {}


def test_autotuning_ends_with_a_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = on_device(
        PREPARE
        + """
    config = torch._inductor.config
    config.autotune_local_cache = False
    if hasattr(config.test_configs, "max_mm_configs"):
        config.test_configs.max_mm_configs = 3  # each choice is a kernel to compile
    import torch._inductor.select_algorithm as select
    seen = []
    original = select.AlgorithmSelectorCache.log_results
    def note(name, nodes, timings, *rest, **named):
        seen.append((name, [time for time in timings.values()]))
        return original(name, nodes, timings, *rest, **named)
    select.AlgorithmSelectorCache.log_results = staticmethod(note)
    net = nn.Linear(256, 512, bias=False).to(device, torch.bfloat16)
    with torch.no_grad():
        output = torch.compile(net, mode="max-autotune-no-cudagraphs")(torch.randn(64, 256, device=device, dtype=torch.bfloat16))
    assert output.shape == (64, 512)
    answer(times=[times for _, times in seen])
    """,
        tmp_path,
        gpu="a100-80gb",
    )
    assert found.status == 0, found.output
    assert found.said["times"], "something was tuned"
    assert all(0 < time < 10 for times in found.said["times"] for time in times), (
        "milliseconds of the virtual clock"
    )
    assert all(len(times) > 1 for times in found.said["times"]), "there was a choice"


@pytest.mark.parametrize(
    "lever", ["", '[[lever]]\nname = "autocast-bf16"\nvalue = true\nlabel = "precision"\n']
)
def test_a_model_that_the_script_compiles_whole_holds_nothing_of_memfits_under_a_plan(
    lever: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = tmp_path / "plan.toml"
    plan.write_text(lever)
    found = on_device(
        PREPARE
        + """
    net = network()
    net.compile(fullgraph=True)
    train(net, net.parameters())
    answer(graphs=graphs())
    """,
        tmp_path,
        start=partial(through_memfit, options=["--plan", str(plan)]),
    )
    assert found.status == 0, found.output
    assert found.said["graphs"] == 1
