"""Contents of device memory: uploads can be read back, few results are known, and the others follow
assumptions that are counted.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import in_one_process, on_device

pytest.importorskip("torch")

# Each piece runs unchanged, and fails the test by raising. It must not depend on a computed value.
TRUE = {
    "round trips": """
        labels = torch.tensor([5, 2, 9, -100])
        assert torch.equal(labels.cuda().cpu(), labels)
        for kind in (torch.bool, torch.uint8, torch.int32, torch.float16, torch.bfloat16, torch.float64):
            values = torch.arange(7).to(kind)
            assert torch.equal(values.cuda().cpu(), values), kind
        assert torch.tensor(5.0).cuda().item() == 5.0
        assert labels.pin_memory().cuda(non_blocking=True).tolist() == labels.tolist()
        halves = torch.cat([labels.cuda()[2:].cpu(), labels.cuda()[:2].cpu()])
        assert halves.tolist() == [9, -100, 5, 2]
        copy = torch.empty_like(labels, device=device)
        copy.copy_(labels.cuda())
        assert copy.tolist() == labels.tolist()
        assert labels.cuda()[3].item() == -100
    """,
    "made on the device": """
        assert torch.arange(6, device=device).tolist() == list(range(6))
        assert torch.arange(0, 1, 0.25, device=device).tolist() == [0, 0.25, 0.5, 0.75]
        for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8):
            spaced = torch.linspace(2, 11, 10, device=device, dtype=kind)
            assert spaced.tolist() == list(range(2, 12)), kind
        between = torch.linspace(0, 1, 7, device=device)
        assert torch.allclose(between.cpu(), torch.linspace(0, 1, 7), rtol=0, atol=1e-7)
        assert (between[0].item(), between[-1].item()) == (0, 1)
        assert torch.full((3,), 2.5, device=device).tolist() == [2.5] * 3
        assert torch.ones(4, dtype=torch.bool, device=device).tolist() == [True] * 4
        assert torch.zeros(4, dtype=torch.long, device=device).sum().item() == 0
    """,
    "cast, compared, counted": """
        labels = torch.tensor([5, 2, 9, -100], device=device)
        assert labels.float().tolist() == [5.0, 2.0, 9.0, -100.0]
        assert labels.to(torch.int32).long().tolist() == [5, 2, 9, -100]
        assert (labels != -100).sum().item() == 3
        assert (labels.max().item(), labels.min().item()) == (9, -100)
        assert (labels > 3).tolist() == [True, False, True, False]
        assert ((labels // 2).tolist(), (3 - labels).tolist()) == ([2, 1, 4, -50], [-2, 1, -6, 103])
        assert labels.clamp(min=0).tolist() == [5, 2, 9, 0]
        assert labels.masked_fill(labels < 0, 7).tolist() == [5, 2, 9, 7]
        assert torch.where(labels > 3, labels, labels * 0).tolist() == [5, 0, 9, 0]
        assert (labels == 9).any().item() and not (labels == 7).any().item()
        assert (labels > -200).all().item() and not (labels > 0).all().item()
        assert labels[labels != -100].shape == (3,)
        grid = torch.tensor([[1, 1, 0], [1, 0, 0]], device=device)
        assert (grid.sum(1).tolist(), grid.bool().sum(0).tolist()) == ([2, 1], [2, 1, 0])
        assert grid.t().contiguous().tolist() == [[1, 1], [1, 0], [0, 0]]
        assert grid[:, 1].float().tolist() == [1.0, 0.0]
    """,
    "range of what is too large to be kept": """
        for shape, dtype, size in (
            ((3, 900, 900), torch.int64, 8), ((2, 1024, 2048), torch.uint8, 1), ((300, 300), torch.int64, 8)
        ):
            host = torch.full(shape, 3, dtype=dtype)
            host[-1, 7] = 20
            mask = host.to(device)
            assert (mask.max().item(), mask.min().item()) == (20, 3), (shape, mask.max())
            assert mask.max() < 21 and not mask.max() < 20
            assert mask[:1].max() <= 20 and mask.clone().max() == 20
    """,
    "sorted, joined, indexed": """
        lengths = torch.tensor([3, 10, 5], device=device)
        values, order = lengths.sort(descending=True)
        assert (values.tolist(), order.tolist()) == ([10, 5, 3], [1, 2, 0])
        assert lengths[order].tolist() == [10, 5, 3]
        assert torch.cat([lengths, lengths]).tolist() == [3, 10, 5, 3, 10, 5]
        assert torch.stack([lengths, lengths], 1).tolist() == [[3, 3], [10, 10], [5, 5]]
        assert lengths.cumsum(0).tolist() == [3, 13, 18]
        assert torch.repeat_interleave(torch.arange(3, device=device), lengths).shape == (18,)
        assert torch.bincount(lengths).shape == (11,)
        assert torch.nn.functional.one_hot(lengths).shape == (3, 11)
    """,
    "sequences of different lengths": """
        from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
        lengths = torch.tensor([10, 7, 5, 2], device=device)
        packed = pack_padded_sequence(torch.randn(4, 10, 8, device=device), lengths.cpu(), batch_first=True)
        net = torch.nn.LSTM(8, 16, batch_first=True).to(device)
        out, back = pad_packed_sequence(net(packed)[0], batch_first=True)
        assert (out.shape, back.tolist()) == ((4, 10, 16), [10, 7, 5, 2])
        mask = torch.arange(10, device=device)[None] < lengths[:, None]
        assert (mask.sum().item(), mask.sum(1).tolist()) == (24, [10, 7, 5, 2])
        assert torch.randn(4, 10, 8, device=device)[mask].shape == (24, 8)
    """,
    "losses leave their targets alone": """
        targets = torch.tensor([1, 2, 0, 4], device=device)
        scores = torch.randn(4, 5, device=device, requires_grad=True)
        torch.nn.functional.cross_entropy(scores, targets).backward()
        torch.nn.functional.embedding(targets, scores).sum().backward()
        torch.nn.functional.one_hot(targets, 5)
        torch.bincount(targets)
        torch.nn.functional.nll_loss(scores.log_softmax(1), targets)
        assert targets.tolist() == [1, 2, 0, 4]
    """,
    "what is overwritten is gone": """
        values = torch.tensor([1.0, 2.0], device=device)
        values.normal_()
        assert str(values.tolist()) == "[0.0, 0.0]"
        values = torch.tensor([1.0, 2.0], device=device)
        torch._foreach_mul_([values], 3.0)
        assert str(values.tolist()) == "[0.0, 0.0]"
        counts = torch.tensor([1, 2], device=device)
        counts.add_(1)
        assert counts.tolist() == [2, 3]
        counts.random_(5)
        assert all(0 <= count < 5 for count in counts.tolist())
    """,
}


FOLLOWS = """
    values = torch.tensor([[3.0, 1.0, 2.0, 5.0], [4.0, 9.0, 0.0, 7.0]])
    numbers = torch.tensor([3, 1, 2, 1, 0, 5, 5, 2])
    function = torch.nn.functional
    operations = {
        "argmax": lambda x, i: x.argmax(-1),
        "argmin": lambda x, i: x.argmin(0),
        "argmax of all": lambda x, i: i.argmax(),
        "mean": lambda x, i: x.mean(),
        "means": lambda x, i: x.mean(0),
        "topk": lambda x, i: x.topk(2, -1)[1],
        "topk values": lambda x, i: x.topk(3, -1)[0],
        "least": lambda x, i: x.topk(2, -1, largest=False)[1],
        "sort": lambda x, i: x.sort(-1)[1],
        "sort down": lambda x, i: x.sort(-1, descending=True)[0],
        "argsort": lambda x, i: i.argsort(stable=True),
        "cumsum": lambda x, i: i.cumsum(0),
        "cumsum of rows": lambda x, i: i.view(2, 4).cumsum(1),
        "bincount": lambda x, i: torch.bincount(i),
        "bincount of more": lambda x, i: torch.bincount(i, minlength=9),
        "histc": lambda x, i: torch.histc(i.float(), bins=6, min=0, max=5),
        "one_hot": lambda x, i: function.one_hot(i),
        "scatter": lambda x, i: torch.zeros(8, 6, dtype=torch.long, device=x.device).scatter_(1, i[:, None], 1),
        "scatter_add": lambda x, i: torch.zeros_like(i).scatter_add_(0, i, torch.ones_like(i)),
        "gather": lambda x, i: x.gather(1, i.view(2, 4) % 4),
        "index": lambda x, i: i[i],
        "repeat_interleave": lambda x, i: torch.tensor(torch.repeat_interleave(i).shape),
        "split": lambda x, i: torch.tensor([len(each) for each in torch.arange(19).split(i.tolist())]),
        "cu_seqlens": lambda x, i: function.pad(i.cumsum(0), (1, 0)).int(),
        "isin": lambda x, i: torch.isin(i, torch.tensor([2, 3], device=i.device)),
        "all of none": lambda x, i: ((x.new_empty(8) > 0) & (i < 0)).sum(),
    }
    wrong = {}
    for name, operation in operations.items():
        there = operation(values.to(device), numbers.to(device)).tolist()
        here = operation(values, numbers).tolist()
        if there != here:
            wrong[name] = [there, here]
    answer(wrong=wrong)
"""


def test_values_that_follow_from_known_ones_are_computed(tmp_path: Path) -> None:
    answer = on_device(FOLLOWS, tmp_path)
    assert answer.status == 0, answer.output
    assert answer.said["wrong"] == {}


def test_uploaded_values_read_back_unchanged(tmp_path: Path) -> None:
    answer = on_device(in_one_process(TRUE), tmp_path)
    assert answer.said == {"failed": {}}, answer.output


def test_a_flag_is_known_however_large_the_weights_are_that_follow(tmp_path: Path) -> None:
    code = """
    class Normalised(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("initialised", torch.zeros(1))
            self.layers = torch.nn.ModuleList(torch.nn.Linear(256, 512) for _ in range(200))
        def forward(self, x):
            if not self.initialised:
                self.initialised += 1.0
                return "initialises"
            return "trains"
    model = Normalised().to(device)
    answer(said=[model(None) for _ in range(3)])
    """
    answer = on_device(code, tmp_path)
    assert answer.said == {"said": ["initialises", "trains", "trains"]}, answer.output
    assert answer.report["fidelity"]["values"] == []


def test_correct_scripts_pass_their_own_checks(tmp_path: Path) -> None:
    answer = on_device(
        """
        x = torch.randn(64, 64, device=device)
        assert torch.isfinite(x).all() and not torch.isnan(x).any() and not torch.isinf(x).any()
        loss = (x @ x).mean()
        assert torch.isfinite(loss) and not torch.isnan(loss)
        assert torch.equal(x, x.clone()) and torch.allclose(x, x)
        assert (torch.randint(0, 10, (8,), device=device) < 10).all()
        for made in (
            torch.distributions.Normal(x, x.exp()),
            torch.distributions.Categorical(logits=x),
            torch.distributions.Categorical(probs=x.softmax(-1)),
            torch.distributions.Bernoulli(probs=x.sigmoid()),
            torch.distributions.Beta(x.exp(), x.exp()),
        ):
            made.log_prob(made.sample())
        scaler = torch.amp.GradScaler()
        weight = torch.randn(4, 4, device=device, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scaler.scale((weight @ weight).sum()).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        assert before == scaler.get_scale() == 65536.0
        """,
        tmp_path,
    )
    assert answer.status == 0, answer.output


# Each writes a result over known contents, which must be unknown afterwards.
OVERWRITTEN = """
    import torch.nn.functional as F
    def known(*shape, dtype=torch.float32):
        count = torch.Size(shape).numel()
        return torch.arange(1, count + 1).to(dtype).to(device).view(shape)
    def raw(*shape, dtype=torch.float32):
        return torch.empty(*shape, dtype=dtype, device=device)
    assert known(4, 4).sum().item() == 136
    half, complex_ = torch.bfloat16, torch.complex64
    results = {
        "product": lambda t: torch.mm(raw(4, 8), raw(8, 4), out=t),
        "products": lambda t: torch.bmm(raw(2, 4, 8), raw(2, 8, 4), out=t),
        "vector": lambda t: torch.mv(raw(4, 8), raw(8), out=t),
        "sum of products": lambda t: t.addmm_(raw(4, 8), raw(8, 4)),
        "with a bias": lambda t: torch.addmm(raw(4), raw(4, 8), raw(8, 4), out=t),
        "a part of a block": lambda t: torch.mm(raw(2, 8), raw(8, 4), out=t[2:]),
        "convolution": lambda t: torch.ops.aten.cudnn_convolution.out(
            raw(1, 3, 8, 8), raw(4, 3, 3, 3), [0, 0], [1, 1], [1, 1], 1, False, True, False, out=t
        ),
        "cholesky": lambda t: torch.linalg.cholesky(raw(4, 4), out=t),
        "inverse": lambda t: torch.linalg.inv(raw(4, 4), out=t),
        "solution": lambda t: torch.linalg.solve(raw(4, 4), raw(4, 4), out=t),
        "triangular": lambda t: torch.linalg.solve_triangular(raw(4, 4), raw(4, 4), upper=True, out=t),
        "transform": lambda t: torch.fft.fft(raw(8, dtype=complex_), out=t),
        "sparse product": lambda t: torch.mm(torch.eye(4, device=device).to_sparse_csr(), raw(4, 4), out=t),
        "upload": lambda t: t.copy_(torch.ones(t.shape)),
    }
    shapes = {"products": (2, 4, 4), "vector": (4,), "convolution": (1, 4, 6, 6), "transform": (8,)}
    shapes["upload"] = (600, 600)
    kinds = {"transform": complex_}
    left = {}
    for name, write in results.items():
        target = known(*shapes.get(name, (4, 4)), dtype=kinds.get(name, torch.float32))
        write(target)
        numbers = target.cpu().flatten()
        # Of a part, the rest stays.
        left[name] = [abs(numbers[0].item()), abs(numbers[-1].item())]
    narrow = known(8, 16).to(half)
    torch.addmm(raw(16, dtype=half), raw(8, 8, dtype=half), raw(8, 16, dtype=half), out=narrow)
    left["in sixteen bits"] = narrow.flatten()[[0, -1]].tolist()
    norm = torch.nn.BatchNorm2d(4).to(device)
    norm.running_mean.copy_(known(4))
    norm(raw(8, 4, 8, 8))
    left["running mean"] = norm.running_mean.tolist()[:2]
    answer(left=left, counted=norm.num_batches_tracked.item())
"""


def test_memory_that_a_library_wrote_has_unknown_contents(tmp_path: Path) -> None:
    answer = on_device(OVERWRITTEN, tmp_path)
    assert answer.status == 0, answer.output
    left = answer.said["left"]
    assert left.pop("a part of a block") == [1, 0]
    assert {name: numbers for name, numbers in left.items() if numbers != [0, 0]} == {}
    assert answer.said["counted"] == 1


COMPILED = """
    import triton
    import triton.language as tl

    @triton.jit
    def shift(out, source, count, size: tl.constexpr):
        at = tl.arange(0, size)
        for _ in range(2):
            tl.store(out + at, tl.load(source + at, mask=at < count) + 1, mask=at < count)

    @torch.compile
    def in_place(x, y):
        x.add_(y.sin())
        return x * 2

    @torch.compile
    def loss(scores, labels):
        return torch.nn.functional.cross_entropy(scores, labels)

    def known():
        return torch.arange(1, 17, dtype=torch.float32).to(device)

    out, source, changed, labels = known(), known(), known(), torch.arange(16).to(device)
    shift[(1,)](out, source, 16, 16)
    in_place(changed, torch.empty(16, device=device))
    loss(torch.empty(16, 16, device=device), labels)
    answer(
        written=[tensor.tolist() for tensor in (out, changed)], read=source.tolist(), labels=labels.tolist()
    )
"""


def test_compiled_kernels_leave_what_they_only_read(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    # Triton wants the source of its kernels in a file, with nothing around them.
    answer = on_device(COMPILED, tmp_path)
    assert answer.status == 0, answer.output
    assert answer.said["written"] == [[0.0] * 16] * 2
    assert answer.said["read"] == list(range(1, 17))
    assert answer.said["labels"] == list(range(16))
