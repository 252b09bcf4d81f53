"""Effects of the device's clock: how long memory shared by streams is held, and the state of events.

One script uses streams as trainers do, as one rank of eight; it runs under each of the three clocks.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
from runs import MIB
from support import Answer, on_device, through_memfit

pytest.importorskip("torch")

CLOCKS = ("instant", "estimate", "never")

SCRIPT = """
    import gc, weakref

    import torch.distributed as dist
    from torch import nn
    from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    MIB = 1 << 20
    said = {}
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    a, b, c = (torch.empty(8192, 8192, device=device) for _ in range(3))

    def tensor(mebibytes):
        return torch.empty(mebibytes * MIB // 4, device=device)

    def reserved():
        return torch.cuda.memory_reserved() // MIB

    def fresh():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    def work(stream, times=10):
        with torch.cuda.stream(stream):
            for _ in range(times):
                torch.mm(a, b, out=c)

    # Events: what one stream does takes its time. Kernels on two streams share the GPU; a copy does not slow them down.
    def elapsed(*streams):
        torch.cuda.synchronize()
        first, *ends = (torch.cuda.Event(enable_timing=True) for _ in range(1 + len(streams)))
        first.record()
        for stream, end in zip(streams, ends):
            stream.wait_event(first)
            work(stream)
            end.record(stream)
        done = [end.query() for end in ends]
        torch.cuda.synchronize()
        return [first.elapsed_time(end) for end in ends], done

    said["one"], said["one done"] = elapsed(main)
    said["two"], said["two done"] = elapsed(main, side)
    first, second, third = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    host = torch.empty(64 << 20, pin_memory=True)
    many = torch.empty(64 << 20, device=device)
    first.record()
    side.wait_event(first)
    work(main)
    second.record()
    with torch.cuda.stream(side):
        host.copy_(many, non_blocking=True)
        third.record()
    torch.cuda.synchronize()
    said["beside a copy"] = [first.elapsed_time(each) for each in (second, third)]
    del host, many
    work(main)
    first.record()
    side.wait_stream(main)
    second.record(side)
    torch.cuda.synchronize()
    said["waited"] = first.elapsed_time(second)

    # A block that another stream still uses is not given out again.
    fresh()
    used = tensor(256)
    work(side)
    with torch.cuda.stream(side):
        used.add_(1)
    used.record_stream(side)
    before = reserved()
    del used
    new = tensor(256)
    said["recorded"] = reserved() - before
    del new
    torch.cuda.synchronize()
    new = tensor(256)
    said["recorded, then waited for"] = reserved() - before
    del new

    # Without record_stream it is, at once: that mistake is the script's.
    fresh()
    used = tensor(256)
    work(side)
    before = reserved()
    del used
    new = tensor(256)
    said["not recorded"] = reserved() - before
    del new

    # Eight layers that each keep 64 MiB for the backward pass.
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * ctx.saved_tensors[0] * gradient

    def train(hooks=None):
        base = fresh()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        x = tensor(64).requires_grad_()
        start.record()
        y = x * 1
        with hooks if hooks is not None else torch.enable_grad():
            for _ in range(8):
                y = Square.apply(y)
        kept = torch.cuda.memory_allocated() - base
        forward = torch.cuda.memory_stats()["active_bytes.all.peak"] - base
        total = y.sum()
        del y
        total.backward()
        end.record()
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        return {
            "kept": kept // MIB,
            "forward": forward // MIB,
            "allocated": (stats["allocated_bytes.all.peak"] - base) // MIB,
            "reserved": (stats["active_bytes.all.peak"] - base) // MIB,
            "ms": start.elapsed_time(end),
        }

    class Recorded(saved_tensors_hooks):
        "Copies on a side stream, and has the allocator find out when they are done."

        def __init__(self, waits=False):
            self.waits = waits
            super().__init__(self.leave, self.come_back)

        def leave(self, saved):
            host = torch.empty(saved.shape, pin_memory=True)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                host.copy_(saved, non_blocking=True)
            saved.record_stream(side)
            if self.waits:
                side.synchronize()
            return host

        def come_back(self, host):
            with torch.cuda.stream(side):
                back = host.to(device, non_blocking=True)
            torch.cuda.current_stream().wait_stream(side)
            back.record_stream(torch.cuda.current_stream())
            return back

    class Stashed(saved_tensors_hooks):
        "Keeps the last two until their copies are done; the stream that computes waits for them."

        def __init__(self):
            self.stash = []
            super().__init__(self.leave, self.come_back)

        def leave(self, saved):
            host = torch.empty(saved.shape, pin_memory=True)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                host.copy_(saved, non_blocking=True)
            self.stash.append((saved, side.record_event()))
            if len(self.stash) > 2:
                torch.cuda.current_stream().wait_event(self.stash.pop(0)[1])
            return host

        def come_back(self, host):
            self.stash.clear()
            return host.to(device, non_blocking=True)

    del a, b, c
    said["plain"] = train()
    said["save_on_cpu"] = train(save_on_cpu(pin_memory=True))
    said["recorded offload"] = train(Recorded())
    said["recorded offload that waits"] = train(Recorded(waits=True))
    said["stashed offload"] = train(Stashed())

    # Sharded training: what is gathered for the next layer while this one computes.
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))

    def shard(how):
        base = fresh()
        layers = [nn.Linear(2048, 2048, bias=False, device=device) for _ in range(8)]
        for index, layer in enumerate(layers):
            layers[index] = how(layer)
        model = how(nn.Sequential(*layers))
        torch.cuda.reset_peak_memory_stats()
        for _ in range(2):
            model(torch.empty(16384, 2048, device=device)).sum().backward()
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        # A thread of autograd's may hold the last of its graph, and with it the model, for a moment longer.
        held = weakref.ref(model)
        del layer, layers, model
        while held() is not None:
            gc.collect()
        return (stats["active_bytes.all.peak"] - base) // MIB

    said["fsdp2"] = shard(fully_shard)
    said["fsdp1"] = shard(FullyShardedDataParallel)
    dist.destroy_process_group()
    answer(**said)
"""

HELD = """
    side = torch.cuda.Stream()
    a = torch.empty(8192, 8192, device=device)
    used = torch.empty(1 << 28, dtype=torch.uint8, device=device)
    with torch.cuda.stream(side):
        for _ in range(10):
            torch.mm(a, a)
    used.record_stream(side)
    del used
    new = torch.empty(1 << 29, dtype=torch.uint8, device=device)
    torch.cuda.synchronize()
"""


@functools.cache
def under(clock: str) -> Answer:
    options = ("--clock", clock, "--world-size", "8")
    with tempfile.TemporaryDirectory() as folder:
        answer = on_device(
            SCRIPT, Path(folder), "a100-80gb", lambda *asked: through_memfit(*asked, options=options)
        )
    assert answer.status == 0, answer.output
    assert answer.report["time"]["clock"] == clock
    return answer


def each(name: str) -> list[Any]:
    return [under(clock).said[name] for clock in CLOCKS]


def test_events_complete_when_the_clock_says() -> None:
    instant, estimate, never = each("one")
    # Ten products of 8192 x 8192 in single precision: no A100 exceeds 19.5 Tflop/s.
    least = 10 * 2 * 8192**3 / 19.5e12 * 1000
    assert instant[0] < 1
    assert least < estimate[0] < 3 * least
    assert never == pytest.approx(estimate, rel=0.05), "what is never done early still takes as long"
    assert [done for (done,) in each("one done")] == [True, False, False]
    instant, estimate, never = each("two")
    alone = each("one")[1][0]
    assert estimate[0] == pytest.approx(alone, rel=0.1), "its end was told before anything ran beside it"
    assert estimate[1] == pytest.approx(2 * alone, rel=0.1), "two streams have one card between them"
    computing, copying = each("beside a copy")[1]
    assert computing == pytest.approx(alone, rel=0.1)
    # 256 MiB over a link of 32 GB/s at most.
    assert 256 * MIB / 32e9 * 1000 < copying < alone, "a copy does not wait for kernels"
    assert each("two done") == [[True, True], [False, False], [False, False]]
    assert all(0 <= waited < 1 for waited in each("waited")), "behind what it waited for"


def test_memory_that_another_stream_uses_is_held() -> None:
    assert each("recorded") == [0, 256, 256]
    assert each("recorded, then waited for") == [0, 256, 256], "the block that was held serves the next"
    assert each("not recorded") == [0, 0, 0]


def test_saved_tensors_are_offloaded_to_the_host() -> None:
    for clock in CLOCKS:
        plain, saved = (under(clock).said[name] for name in ("plain", "save_on_cpu"))
        # The input and the last of the chain stay on the card.
        assert plain["kept"] - saved["kept"] == 8 * 64
        assert plain["allocated"] - saved["allocated"] >= 4 * 64
        assert under(clock).report["host"]["pinned"] >= 8 * 64 * MIB
    plain, saved = (under("estimate").said[name]["ms"] for name in ("plain", "save_on_cpu"))
    # Eight times 64 MiB each way, over a link of 32 GB/s at most.
    assert saved - plain > 2 * 8 * 64 * MIB / 32e9 * 1000


def test_an_offloader_on_a_side_stream_holds_what_it_copies() -> None:
    found = {name: each(name) for name in ("plain", "recorded offload", "stashed offload")}
    instant, estimate, never = (held["reserved"] for held in each("recorded offload"))
    assert instant <= estimate <= never, found
    # The host runs ahead of copies that take far longer than what is computed, so the allocator gets none of
    # them back.
    assert estimate - instant >= 5 * 64, found
    waited = under("estimate").said["recorded offload that waits"]["forward"]
    assert waited <= each("recorded offload")[0]["forward"] + 64, (waited, found)
    stashed = [held["reserved"] for held in each("stashed offload")]
    assert len(set(stashed)) == 1, ("streams that wait for each other need no clock", found)
    assert stashed[0] < each("plain")[0]["reserved"], found


def test_prefetched_parameters_stay_allocated() -> None:
    fsdp2, fsdp1 = each("fsdp2"), each("fsdp1")
    assert len(set(fsdp2)) == 1, "it orders its streams by events alone"
    assert fsdp1[0] <= fsdp1[1] <= fsdp1[2]


@pytest.mark.parametrize("clock", ["instant", "estimate"])
def test_the_report_says_when_the_clock_matters(clock: str, tmp_path: Path) -> None:
    answer = on_device(
        HELD, tmp_path, start=lambda *asked: through_memfit(*asked, options=("--clock", clock))
    )
    notes = [note for note in answer.report["fidelity"]["notes"] if "waiting for another stream" in note]
    if clock == "instant":
        assert notes == []
    else:
        assert len(notes) == 1
        # All of the block, less the workspace that the products had at the peak of what was allocated.
        assert 240 <= int(notes[0].split()[0]) <= 256
        assert "--clock instant" in notes[0]


PASSES = """
    first, second = (torch.nn.Linear(4096, 4096, device=device) for _ in range(2))
    x = torch.randn(8192, 4096, device=device)
    for _ in range(5):
        with torch.no_grad():
            {}
"""


GRADIENTS = """
    first = torch.nn.Linear(4096, 4096, device=device)
    x = torch.randn(8192, 4096, device=device)
    for _ in range(5):
        first.zero_grad()
        y = first(x)
        if {}:
            y.sum().backward()
"""


def test_passes_with_gradients_and_without_an_optimizer_have_a_time(tmp_path: Path) -> None:
    def length(both: bool) -> float:
        return on_device(GRADIENTS.format(both), tmp_path).report["time"]["step_ms_estimate"]

    # The gradients of the weights are one more product, and those of the bias a sum.
    assert 1.8 < length(True) / length(False) < 2.6


def test_a_script_that_only_infers_has_the_time_of_a_pass(tmp_path: Path) -> None:
    def length(passes: str) -> float:
        time = on_device(PASSES.format(passes), tmp_path).report["time"]
        assert time["step_ms_low"] < time["step_ms_estimate"] < time["step_ms_high"]
        return time["step_ms_estimate"]

    one, two = length("first(x)"), length("second(first(x))")
    assert 0 < one < two
    assert two == pytest.approx(2 * one, rel=0.05), "of models that take turns, it is that of a round"
