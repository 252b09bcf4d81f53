"""The mathematics and communication libraries, as PyTorch calls them: everything runs, and asks for memory as
on a card.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import in_one_process, on_device

pytest.importorskip("torch")

MIB = 1024**2

# Each piece runs unchanged and fails the test by raising; a refused call would show errors that it does not
# check.
PIECES = {
    "convolutions": """
        net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 32, 7, stride=2, padding=3), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
            torch.nn.MaxPool2d(2), torch.nn.Conv2d(32, 64, 3, padding=1, groups=4), torch.nn.BatchNorm2d(64),
            torch.nn.Conv2d(64, 64, 3, padding=2, dilation=2, groups=64), torch.nn.ReLU(),
            torch.nn.ConvTranspose2d(64, 16, 2, stride=2), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
            torch.nn.Linear(16, 10),
        ).to(device)
        images = torch.randn(8, 3, 64, 64, device=device)
        net(images).sum().backward()
        with torch.no_grad():
            net.eval()
            assert net(images).shape == (8, 10)
    """,
    "convolutions, channels last": """
        net = torch.nn.Sequential(
            torch.nn.Conv2d(8, 32, 3), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.Conv2d(32, 8, 3)
        ).to(device, memory_format=torch.channels_last)
        images = torch.randn(8, 8, 64, 64, device=device).contiguous(memory_format=torch.channels_last)
        for kind in (torch.float32, torch.bfloat16, torch.float16):
            with torch.autocast("cuda", kind, enabled=kind != torch.float32):
                net(images).sum().backward()
    """,
    "convolutions in half precision": """
        for kind in (torch.bfloat16, torch.float16):
            net = torch.nn.Sequential(torch.nn.Conv2d(8, 32, 3), torch.nn.BatchNorm2d(32)).to(device, kind)
            net(torch.randn(8, 8, 64, 64, device=device, dtype=kind)).sum().backward()
    """,
    "convolutions, timed": """
        torch.backends.cudnn.benchmark = True
        net = torch.nn.Conv2d(16, 32, 3, padding=1).to(device)
        images = torch.randn(8, 16, 32, 32, device=device, requires_grad=True)
        for _ in range(3):
            net(images).sum().backward()
    """,
    "convolutions, deterministic": """
        torch.backends.cudnn.deterministic = True
        net = torch.nn.Conv2d(16, 32, 3, padding=1).to(device)
        net(torch.randn(8, 16, 32, 32, device=device, requires_grad=True)).sum().backward()
    """,
    "convolutions by the older interface": """
        assert os.environ["TORCH_CUDNN_V8_API_DISABLED"] == "1"
        for benchmark in (False, True):
            torch.backends.cudnn.benchmark = benchmark
            net = torch.nn.Conv2d(16, 32, 3, padding=1).to(device)
            net(torch.randn(8, 16, 32, 32, device=device, requires_grad=True)).sum().backward()
    """,
    "convolutions in one and three dimensions": """
        for net, shape in (
            (torch.nn.Conv1d(8, 16, 5), (4, 8, 100)),
            (torch.nn.Conv3d(4, 8, 3), (2, 4, 16, 32, 32)),
            (torch.nn.ConvTranspose3d(4, 8, 2, stride=2), (2, 4, 8, 16, 16)),
            (torch.nn.ConvTranspose1d(4, 8, 4, stride=2), (2, 4, 50)),
        ):
            net.to(device)(torch.randn(shape, device=device, requires_grad=True)).sum().backward()
    """,
    "fused convolution and bias": """
        images, weight = torch.randn(2, 8, 16, 16, device=device), torch.randn(8, 8, 3, 3, device=device)
        bias = torch.randn(8, device=device)
        assert torch.cudnn_convolution_relu(images, weight, bias, (1, 1), (1, 1), (1, 1), 1).shape == (2, 8, 16, 16)
        add_relu = torch.cudnn_convolution_add_relu
        assert add_relu(images, weight, images, 1.0, bias, (1, 1), (1, 1), (1, 1), 1).shape == (2, 8, 16, 16)
    """,
    "recurrent networks": """
        for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
            for options in (
                {}, {"num_layers": 2, "bidirectional": True}, {"num_layers": 3, "dropout": 0.5}, {"batch_first": True},
                {"bias": False},
            ):
                net = kind(32, 64, **options).to(device)
                output, _ = net(torch.randn(20, 8, 32, device=device, requires_grad=True))
                output.sum().backward()
                assert all(each.grad is not None for each in net.parameters())
        net = torch.nn.LSTM(32, 64, proj_size=16, num_layers=2).to(device)
        net(torch.randn(20, 8, 32, device=device))[0].sum().backward()
        net = torch.nn.LSTM(32, 64).to(device).half()
        net(torch.randn(20, 8, 32, device=device).half())[0].sum().backward()
        with torch.autocast("cuda", torch.bfloat16):
            torch.nn.GRU(32, 64).to(device)(torch.randn(20, 8, 32, device=device))[0].sum().backward()
        with torch.no_grad():
            net.eval()(torch.randn(20, 8, 32, device=device).half())
    """,
    "packed sequences": """
        from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
        net = torch.nn.LSTM(16, 32, num_layers=2, bidirectional=True).to(device)
        packed = pack_padded_sequence(torch.randn(12, 4, 16, device=device), torch.tensor([12, 9, 5, 1]))
        output, lengths = pad_packed_sequence(net(packed)[0])
        assert output.shape == (12, 4, 64) and lengths.tolist() == [12, 9, 5, 1]
        output.sum().backward()
    """,
    "linear algebra": """
        square = torch.eye(50, device=device).expand(3, 50, 50).contiguous()
        for matrix in (square, square.double(), square.to(torch.complex64)):
            torch.linalg.eigh(matrix), torch.linalg.cholesky(matrix), torch.linalg.qr(matrix), torch.linalg.svd(matrix)
            torch.linalg.inv(matrix), torch.linalg.det(matrix), torch.linalg.solve(matrix, matrix)
            torch.linalg.lu_factor(matrix), torch.linalg.eigvalsh(matrix), torch.linalg.svdvals(matrix)
            torch.cholesky_inverse(matrix), torch.linalg.ldl_factor(matrix)
            torch.linalg.lstsq(matrix, matrix), torch.linalg.solve_triangular(matrix, matrix, upper=True)
            torch.linalg.pinv(matrix)
        for driver in ("gesvd", "gesvdj", "gesvda"):
            torch.linalg.svd(square, driver=driver)
        torch.linalg.eigh(square[0]), torch.linalg.svd(square[0]), torch.linalg.lstsq(square[0], square[0])
        torch.linalg.qr(torch.randn(200, 30, device=device)), torch.linalg.svd(torch.randn(200, 30, device=device))
    """,
    "products": """
        matrix = torch.randn(64, 64, device=device, requires_grad=True)
        vector = torch.randn(64, device=device)
        for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64):
            a, v = matrix.to(kind), vector.to(kind)
            a @ a, a @ v, torch.dot(v, v), torch.addmm(v, a, a), torch.baddbmm(a[None], a[None], a[None]), torch.outer(v, v)
        torch.nn.functional.linear(matrix, matrix, vector).sum().backward()
        torch.nn.functional.bilinear(matrix, matrix, torch.randn(8, 64, 64, device=device)).sum().backward()
        torch._int_mm(torch.ones(32, 64, device=device, dtype=torch.int8), torch.ones(64, 32, device=device, dtype=torch.int8))
        torch.backends.cuda.matmul.allow_tf32 = True
        (matrix @ matrix).sum().backward()
    """,
    "products in 8 bits": """
        a = torch.ones(64, 64, device=device).to(torch.float8_e4m3fn)
        one = torch.ones((), device=device)
        assert torch._scaled_mm(a, a.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16).shape == (64, 64)
    """,
    "Fourier transforms": """
        for shape in ((64,), (8, 100), (4, 33, 131)):
            data = torch.randn(shape, device=device, requires_grad=True)
            torch.fft.fftn(data).abs().sum().backward()
            torch.fft.irfft(torch.fft.rfft(data), n=shape[-1]).sum().backward()
        torch.fft.fft(torch.randn(64, device=device, dtype=torch.float64))
        torch.fft.fft(torch.randn(64, device=device).half())
        torch.stft(torch.randn(4, 4000, device=device), 400, window=torch.ones(400, device=device), return_complex=True)
    """,
    "sparse matrices": """
        dense = torch.eye(40, device=device)
        indices = torch.arange(40)
        coo = torch.sparse_coo_tensor(torch.stack([indices, indices]), torch.ones(40), (40, 40)).to(device)
        torch.sparse.mm(coo, dense), coo @ dense[0]
        offsets = torch.arange(41)
        csr = torch.sparse_csr_tensor(offsets, indices, torch.ones(40), (40, 40)).to(device)
        csr @ dense, csr @ dense[0], torch.sparse.sampled_addmm(csr, dense, dense)
        torch.triangular_solve(dense, csr)
        product = csr @ csr
        assert product.shape == (40, 40) and product.values().numel() == 40
        total = torch.add(csr, csr)
        assert total.shape == (40, 40) and 40 <= total.values().numel() <= 80
    """,
    "embedding bags": """
        bag = torch.nn.EmbeddingBag(100, 16, mode="mean").to(device)
        bag(torch.arange(50).to(device), torch.tensor([0, 10, 30]).to(device)).sum().backward()
    """,
    "connectionist temporal classification": """
        scores = torch.randn(50, 4, 20, device=device, requires_grad=True)
        loss = torch.nn.functional.ctc_loss
        targets = torch.randint(1, 20, (4, 10), dtype=torch.int32)
        lengths, sizes = torch.full((4,), 50, dtype=torch.int32), torch.full((4,), 10, dtype=torch.int32)
        log = scores.log_softmax(2)
        loss(log, targets.to(device).long(), lengths.long(), sizes.long()).backward()
        on_device = [each.to(device) for each in (targets.flatten(), lengths, sizes)]
        loss(scores.log_softmax(2), *on_device).backward()
    """,
    "attention, all backends": """
        from torch.nn.attention import SDPBackend, sdpa_kernel
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH):
            query = torch.randn(2, 4, 128, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
            with sdpa_kernel(backend):
                for causal in (False, True):
                    torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=causal).sum().backward()
    """,
    "normalisations": """
        data = torch.randn(8, 16, 10, 10, device=device, requires_grad=True)
        for net in (torch.nn.BatchNorm2d(16), torch.nn.GroupNorm(4, 16), torch.nn.InstanceNorm2d(16), torch.nn.LayerNorm(10)):
            net.to(device)(data).sum().backward()
        torch.nn.BatchNorm1d(16).to(device)(data[..., 0, 0]).sum().backward()
        torch.nn.BatchNorm3d(16).to(device)(data[:, :, None]).sum().backward()
        torch.nn.functional.local_response_norm(data, 3).sum().backward()
    """,
    "spatial transformers": """
        theta = torch.eye(2, 3, device=device).expand(4, 2, 3).contiguous().requires_grad_()
        grid = torch.nn.functional.affine_grid(theta, [4, 3, 16, 16])
        torch.nn.functional.grid_sample(torch.randn(4, 3, 16, 16, device=device), grid).sum().backward()
    """,
    "kernels compiled at run time": """
        function = torch.cuda.jiterator._create_jit_fn("template <typename T> T twice(T x) { return x + x; }")
        assert function(torch.randn(100, device=device)).shape == (100,)
        torch.special.bessel_j0(torch.randn(100, device=device)), torch.special.zeta(*torch.rand(2, 100, device=device))
    """,
    "profiler": """
        from torch.profiler import ProfilerActivity, profile
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True) as trace:
            (torch.randn(64, 64, device=device) @ torch.randn(64, 64, device=device)).sum().item()
        assert "aten::mm" in trace.key_averages().table()
    """,
    "collectives in one process": """
        import torch.distributed as dist
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda:0"))
        data = torch.full((4,), 3.0).to(device)
        dist.all_reduce(data)
        dist.broadcast(data, 0), dist.barrier()
        parts = [torch.empty(4, device=device)]
        dist.all_gather(parts, data)
        assert data.tolist() == [3.0] * 4 and parts[0].tolist() == [3.0] * 4
        objects = [None]
        dist.all_gather_object(objects, {"a": 1})
        assert objects == [{"a": 1}]
        group = dist.new_group([0])
        dist.all_reduce(data, group=group)
        dist.destroy_process_group()
    """,
    "parallel data": """
        from torch.nn.parallel import DistributedDataParallel
        import torch.distributed as dist
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        net = DistributedDataParallel(torch.nn.Linear(64, 64).to(device))
        net(torch.randn(8, 64, device=device)).sum().backward()
        dist.destroy_process_group()
    """,
}

# These set what holds for the whole process.
ALONE = {
    "convolutions, timed",
    "convolutions, deterministic",
    "convolutions by the older interface",
    "products",
    "profiler",
    "collectives in one process",
    "parallel data",
}
ENVIRONMENT = {"convolutions by the older interface": {"TORCH_CUDNN_V8_API_DISABLED": "1"}}


@pytest.mark.parametrize("name", sorted(ALONE))
def test_a_library_function_runs_on_the_virtual_gpu(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in ENVIRONMENT.get(name, {}).items():
        monkeypatch.setenv(variable, value)
    answer = on_device(PIECES[name], tmp_path)
    assert answer.status == 0, answer.output
    assert answer.unmodelled == {}, "calls of the libraries were refused"


def test_library_functions_run_on_the_virtual_gpu(tmp_path: Path) -> None:
    """One process runs all pieces that leave it as it was, since importing PyTorch takes most of the time."""
    answer = on_device(in_one_process({name: PIECES[name] for name in PIECES if name not in ALONE}), tmp_path)
    assert answer.status == 0, answer.output
    assert answer.said == {"failed": {}}
    assert answer.unmodelled == {}, "calls of the libraries were refused"


def test_a_convolution_asks_for_the_workspace_of_the_card(tmp_path: Path) -> None:
    """The first plan of this convolution wants 24.64 MiB on an RTX 4090, and needs no backward pass."""
    answer = on_device(
        """
        net = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False).to(device)
        images = torch.randn(32, 64, 56, 56, device=device)
        with torch.no_grad():
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            result = net(images)
        peak = torch.cuda.max_memory_allocated()
        answer(cudnn=torch.backends.cudnn.version(), workspace=peak - before - result.nbytes)
        """,
        tmp_path,
    )
    assert answer.status == 0, answer.output
    if answer.said["cudnn"] >= 92600:
        assert answer.said["workspace"] / MIB == pytest.approx(24.64, abs=0.01)
    else:
        assert 0 <= answer.said["workspace"] < 100 * MIB


def test_persistent_batch_norm_asks_for_the_workspace_of_the_card(tmp_path: Path) -> None:
    """Channels-last half precision takes cuDNN's persistent kernels, whose workspace depends on the card."""
    answer = on_device(
        """
        net = torch.nn.BatchNorm2d(256).to(device)
        images = torch.randn(64, 256, 56, 56, device=device, dtype=torch.float16)
        images = images.contiguous(memory_format=torch.channels_last).requires_grad_()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = net(images)
        answer(workspace=torch.cuda.max_memory_allocated() - before - result.nbytes)
        """,
        tmp_path,
    )
    assert answer.status == 0, answer.output
    # cuDNN 9.10 to 9.26 report this for the shape on an RTX 4090, and the two saved statistics; an unwritten
    # size was 4 GiB.
    assert answer.said["workspace"] == pytest.approx(2_591_408 + 2_048, abs=1_024)


def test_a_recurrent_network_keeps_what_the_backward_pass_needs(tmp_path: Path) -> None:
    answer = on_device(
        """
        net = torch.nn.LSTM(128, 256, num_layers=2).to(device)
        data = torch.randn(50, 32, 128, device=device)
        net(data)[0].sum().backward()
        before = torch.cuda.memory_allocated()
        output, state = net(data)
        kept = torch.cuda.memory_allocated() - before - output.nbytes - sum(each.nbytes for each in state)
        del output, state
        with torch.no_grad():
            torch.cuda.reset_peak_memory_stats()
            net(data)
        answer(kept=kept, workspace=torch.cuda.max_memory_allocated() - before)
        """,
        tmp_path,
    )
    assert answer.status == 0, answer.output
    # Four gates and a cell's state for each step, layer and unit: what a backward pass cannot do without.
    least = 50 * 32 * 256 * 2 * 5 * 4
    assert least <= answer.said["kept"] < 2 * least
    assert answer.said["workspace"] > 0
