"""The attention kernel that PyTorch chooses for each generation of GPUs, by its own rules and the device's
reported properties.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import on_device
from tiers import first

torch = pytest.importorskip("torch")

MATH, FLASH, EFFICIENT, CUDNN = "math", "flash", "efficient", "cudnn"

# A card of each generation, in the order of the columns below.
CARDS = ("t4", "a100-80gb", "rtx-4090", "h100-sxm", "b200", "rtx-5090")

# The arguments of a call, and the kernels that PyTorch documents for it (Note [SDPA Runtime Dispatch] and the
# filters below it):
# - flash: compute capability 8.0 and later, 16 bits, heads of at most 256 values, no mask; training with
#   heads over 192 not on 8.6, 8.9 and 12.x, except over 224 without dropout
# - memory-efficient: any card; 16 and 32 bits, bfloat16 from 8.0 on; heads a multiple of 16 bytes from 7.0 on
# - cuDNN: preferred on 9.0 and 10.0; 16 bits, heads a multiple of 8, dropout in sixteenths
CALLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "float16": ("dtype=half", (EFFICIENT, FLASH, FLASH, CUDNN, CUDNN, FLASH)),
    "bfloat16": ("", (MATH, FLASH, FLASH, CUDNN, CUDNN, FLASH)),
    "float32": ("dtype=single", (EFFICIENT,) * 6),
    "float64": ("dtype=double", (MATH,) * 6),
    "causal": ("dtype=half, is_causal=True", (EFFICIENT, FLASH, FLASH, CUDNN, CUDNN, FLASH)),
    "mask of numbers": ("dtype=half, mask=half", (EFFICIENT, EFFICIENT, EFFICIENT, CUDNN, CUDNN, EFFICIENT)),
    "mask of truths": (
        "dtype=half, mask=torch.bool",
        (EFFICIENT, EFFICIENT, EFFICIENT, CUDNN, CUDNN, EFFICIENT),
    ),
    "dropout": ("dtype=half, dropout_p=0.1", (EFFICIENT, FLASH, FLASH, FLASH, FLASH, FLASH)),
    "dropout in sixteenths": ("dtype=half, dropout_p=0.25", (EFFICIENT, FLASH, FLASH, CUDNN, CUDNN, FLASH)),
    "heads of 200": ("dtype=half, head=200", (EFFICIENT, FLASH, EFFICIENT, FLASH, FLASH, EFFICIENT)),
    "heads of 200, not trained": (
        "dtype=half, head=200, train=False",
        (EFFICIENT, FLASH, FLASH, None, None, FLASH),
    ),
    "heads of 256 and dropout": (
        "dtype=half, head=256, dropout_p=0.1",
        (EFFICIENT, FLASH, EFFICIENT, FLASH, FLASH, EFFICIENT),
    ),
    "heads of 512": ("dtype=half, head=512", (EFFICIENT,) * 6),
    "heads of 36": ("dtype=half, head=36", (MATH, FLASH, FLASH, FLASH, FLASH, FLASH)),
    "fewer queries than keys, causal": (
        "dtype=half, queries=64, is_causal=True",
        (EFFICIENT, EFFICIENT, EFFICIENT, CUDNN, CUDNN, EFFICIENT),
    ),
}

SCRIPT = """
    import warnings
    from torch.nn.attention import SDPBackend
    half, single, double = torch.half, torch.float, torch.double

    def chosen(dtype=torch.bfloat16, head=64, queries=256, mask=None, train=True, **options):
        def make(length):
            return torch.empty(2, 4, length, head, device=device, dtype=dtype, requires_grad=train)
        query, key, value = make(queries), make(256), make(256)
        if mask is not None:
            mask = torch.empty(2, 4, queries, 256, device=device, dtype=mask)
        number = torch._fused_sdp_choice(query, key, value, mask, **options)
        # The kernel that was chosen is there for this card, forward and backward.
        output = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, **options)
        if train:
            output.sum().backward()
        return SDPBackend(number).name

    answer(cudnn=torch.backends.cudnn.version(), chosen={%s})
"""

NAMES = {
    "MATH": MATH,
    "FLASH_ATTENTION": FLASH,
    "EFFICIENT_ATTENTION": EFFICIENT,
    "CUDNN_ATTENTION": CUDNN,
}


def release() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


@pytest.mark.skipif(release() < (2, 15), reason="the rules are those of 2.15: earlier releases prefer others")
@pytest.mark.parametrize("card", first(CARDS, besides=["rtx-4090", "b200"]))
def test_the_chosen_attention_kernel_is_that_of_the_gpu(card: str, tmp_path: Path) -> None:
    calls = ", ".join(f"{name!r}: chosen({given})" for name, (given, _) in CALLS.items())
    found = on_device(SCRIPT % calls, tmp_path, gpu=card)
    assert found.status == 0, found.output
    assert found.said["cudnn"] > 91500, "an older cuDNN is not preferred anywhere"
    column = CARDS.index(card)
    expected = {name: row[column] for name, (_, row) in CALLS.items() if row[column]}
    chosen = {name: NAMES[found.said["chosen"][name]] for name in expected}
    assert chosen == expected
    assert found.unmodelled == {}


def test_only_the_mathematical_form_makes_the_scores(tmp_path: Path) -> None:
    """The fused kernels keep the output and one number a row; the plain form keeps every score, forward and
    backward.
    """
    found = on_device(
        """
        from torch.nn.attention import SDPBackend, sdpa_kernel
        length, heads, head = 2048, 8, 64
        kept = {}
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH):
            query = torch.empty(1, heads, length, head, device=device, dtype=torch.bfloat16, requires_grad=True)
            with sdpa_kernel(backend):
                before = torch.cuda.memory_allocated()
                output = torch.nn.functional.scaled_dot_product_attention(query, query, query)
                kept[backend.name] = torch.cuda.memory_allocated() - before - output.nbytes
                output.sum().backward()
            del output, query
        answer(kept=kept, row=heads * length * 4, scores=heads * length * length * 2)
        """,
        tmp_path,
        gpu="a100-80gb",
    )
    assert found.status == 0, found.output
    kept, row, scores = found.said["kept"], found.said["row"], found.said["scores"]
    for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"):
        assert row <= kept[name] <= row + 4096, (
            name,
            kept,
            "the logarithm of each row's sum, and random state",
        )
    assert kept["MATH"] >= scores


# Dense bf16 in TFLOP/s, as the makers publish it.
PEAKS = {"a100-80gb": 312, "h100-sxm": 989}


@pytest.mark.parametrize("card", first(PEAKS, besides=["a100-80gb"]))
def test_each_fused_kernel_takes_the_time_of_what_it_computes(card: str, tmp_path: Path) -> None:
    """Two products of matrices forward, five backward, half of them where the future is left out, whatever
    the layout.
    """
    found = on_device(
        """
        from torch.nn.attention import SDPBackend, sdpa_kernel
        batch, heads, length = 16, 12, 2048

        def timed(work):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            result = work()
            end.record()
            torch.cuda.synchronize()
            return result, begin.elapsed_time(end)

        attend = torch.nn.functional.scaled_dot_product_attention
        mask = torch.zeros(batch, heads, length, length, device=device, dtype=torch.bfloat16)
        times = {}
        for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"):
            for head in (64, 128):
                for kind, options in {"plain": {}, "causal": {"is_causal": True}, "mask": {"attn_mask": mask}}.items():
                    if kind == "mask" and name == "FLASH_ATTENTION":
                        continue
                    query, key, value = (
                        torch.empty(batch, length, heads, head, device=device, dtype=torch.bfloat16, requires_grad=True)
                        for _ in range(3)
                    )
                    with sdpa_kernel(getattr(SDPBackend, name)):
                        output, forward = timed(lambda: attend(*(each.transpose(1, 2) for each in (query, key, value)), **options))
                        seed = torch.ones_like(output)
                        _, backward = timed(lambda: output.backward(seed))
                    times[f"{name} {head} {kind}"] = [forward, backward]
        answer(times=times, operations={head: 4 * batch * heads * length**2 * head for head in (64, 128)})
        """,
        tmp_path,
        gpu=card,
    )
    assert found.status == 0, found.output
    times = found.said["times"]
    for name, (forward, backward) in times.items():
        kernel, head, kind = name.split()
        operations = found.said["operations"][head] * (0.5 if kind == "causal" else 1.0)
        for took, products in ((forward, 1.0), (backward, 2.5)):
            share = products * operations / (took * 1e-3) / (PEAKS[card] * 1e12)
            assert 0.10 < share < 0.75, (name, share)
        for took, whole in zip((forward, backward), times[f"{kernel} {head} plain"], strict=True):
            assert took / whole == pytest.approx(0.53 if kind == "causal" else 1.0, abs=0.1), name


def test_attention_over_sequences_of_many_lengths(tmp_path: Path) -> None:
    """Packed sequences, nested tensors and compiled flex attention train, and ask for what their shapes
    say.
    """
    found = on_device(
        """
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        heads, head, lengths = 4, 64, [100, 400, 12]
        total = sum(lengths)
        half = {"device": device, "dtype": torch.bfloat16, "requires_grad": True}

        try:
            from torch.nn.attention.varlen import varlen_attn
        except ImportError:
            varlen_attn = None
        packed = torch.empty(total, heads, head, **half)
        if varlen_attn:
            ends = torch.tensor([0, 100, 500, 512], dtype=torch.int32).to(device)
            output = varlen_attn(packed, packed, packed, ends, ends, max(lengths), max(lengths))
            assert output.shape == packed.shape
            output.sum().backward()
            assert packed.grad.shape == packed.shape

        rows = [torch.empty(length, heads * head, **half) for length in lengths]
        nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        split = nested.unflatten(-1, [heads, head]).transpose(1, 2)
        output = torch.nn.functional.scaled_dot_product_attention(split, split, split)
        output.transpose(1, 2).flatten(-2).values().sum().backward()
        assert [row.grad.shape[0] for row in rows] == lengths

        flex = torch.compile(flex_attention)
        query = torch.empty(2, heads, 512, head, **half)
        mask = create_block_mask(lambda batch, head, q, k: q >= k, None, None, 512, 512, device=device)
        flex(query, query, query, block_mask=mask)  # compiles
        del output
        before = torch.cuda.memory_allocated()
        output = flex(query, query, query, block_mask=mask)
        kept = torch.cuda.memory_allocated() - before - output.nbytes
        output.sum().backward()

        # How long it takes follows from the blocks that a mask leaves; a CPU's mask is uploaded, a card's is computed again.
        document = torch.arange(4096) // 512

        def causal(batch, head, q, k):
            return q >= k

        def packed(batch, head, q, k):
            return (q >= k) & (document[q] == document[k])

        def nearby(batch, head, q, k):
            return (q - k).abs() < 256

        masks = {}
        for name, allowed, place in [("causal", causal, device), ("packed", packed, "cpu"), ("nearby", nearby, device)]:
            masks[name] = create_block_mask(allowed, 2, None, 4096, 4096, device=place).to(device)
        document = document.to(device)
        # It reads unknown values on the GPU: half of the blocks are assumed to remain.
        masks["unknown"] = create_block_mask(packed, 2, None, 4096, 4096, device=device)
        flex = torch.compile(flex_attention, dynamic=False)
        long = torch.empty(2, heads, 4096, head, **half)
        times = {}
        for name, mask in masks.items():
            for _ in range(2):  # the first one compiles
                marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
                marks[0].record()
                output = flex(long, long, long, block_mask=mask)
                marks[1].record()
                output.backward(output)
                marks[2].record()
                torch.cuda.synchronize()
            times[name] = [marks[0].elapsed_time(marks[1]), marks[1].elapsed_time(marks[2])]
        answer(kept=kept, row=2 * heads * 512 * 4, scores=2 * heads * 512 * 512 * 2, times=times)
        """,
        tmp_path,
        gpu="a100-80gb",
    )
    assert found.status == 0, found.output
    assert found.said["row"] <= found.said["kept"] < found.said["scores"], "flex attention keeps no scores"
    times = found.said["times"]
    for way in (0, 1):
        # Of 32 x 32 blocks, 528 lie on or below the diagonal, 80 of these within a document; 154 are nearby.
        causal, packed, nearby, unknown = (
            times[name][way] for name in ("causal", "packed", "nearby", "unknown")
        )
        assert packed < nearby < causal, times
        assert 0.9 < unknown / causal < 1.0, times
    assert found.unmodelled == {}
