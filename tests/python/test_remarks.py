"""Each remark of a report is produced, with its id and what it may change.

The list is that of docs/remarks.md, which a Rust test holds to the table in the source. What needs
PyTorch happens in four runs; the rest is brought about where it arises.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from runs import MIB, ROOT, invoke
from test_stand_ins import STATIC

# Remarks that need no PyTorch are triggered in tests of their own: the file, and the name used there.
RANKS, SPARSE = "crates/memfit-vgpu/tests/libraries/nccl.rs", "crates/memfit-vgpu/tests/libraries/sparse.rs"
REMARKS, HERE = "crates/memfit-cli/tests/remarks.rs", "tests/python/test_remarks.py"
ELSEWHERE = {
    "files-kept": ("tests/python/test_checkpoints.py", "are unchanged on your disk"),
    "python-skipped": ("tests/python/test_run_failures.py", "str(bare) in note"),
    "ranks-full": (RANKS, "Remark::RanksFull"),
    "rank-silent": (RANKS, "Remark::RankSilent"),
    "nccl-split": (RANKS, "Remark::NcclSplit"),
    "cusparse-sum": (SPARSE, "Remark::CusparseSum"),
    "tally-full": (REMARKS, "Remark::TallyFull"),
    "log-full": (REMARKS, "Remark::LogFull"),
    "lever-refused": (REMARKS, "Remark::LeverRefused"),
    "pieces": (REMARKS, "Remark::Pieces"),
    "outside-stack": ("crates/memfit-run/src/outside.rs", "this torch is for CUDA 14"),
    "stalled": (REMARKS, "Remark::Stalled"),
    "crashed-at-end": (REMARKS, "Remark::CrashedAtEnd"),
    "waits-for-data": ("tests/python/test_data_feeding.py", "the GPU would wait for data"),
    "sampled": (REMARKS, "Remark::Sampled"),
    "first-card": (REMARKS, "Remark::FirstCard"),
    "cudnn-layout": (HERE, '(0, "cudnn-layout")'),
    "cudnn-card": (HERE, '(1, "cudnn-card")'),
    "no-watcher": (HERE, '"no-watcher": '),
    "no-sizes": (HERE, '"no-sizes": '),
    "no-place": (HERE, '"no-place": '),
    "probe-label": (HERE, '"probe-label": '),
    "probe-failed": (HERE, '"probe-failed": '),
    "all-alike": (HERE, '"all-alike": '),
    "largest-seen": (HERE, '"largest-seen": '),
    "probe-unarmed": (HERE, '"probe-unarmed": '),
    "plan-failed": (HERE, '"plan-failed": '),
    "plan-differs": (REMARKS, "Remark::PlanDiffers"),
    "torch-untried": (REMARKS, "Remark::TorchUntried"),
    "trainer-kept": (HERE, '"trainer-kept": '),
    "trainer-settings": (HERE, '"trainer-settings": '),
    "one-gpu-used": ("tests/python/test_several_gpus.py", "only GPU 0 of 2 was used"),
    "uneven-gpus": ("tests/python/test_several_gpus.py", "the GPUs are used unevenly"),
    "data-parallel": ("tests/python/test_several_gpus.py", "`nn.DataParallel` copies the model"),
}

# Libraries, stand-ins, the clock at its upper bound: one script does them all.
LIBRARIES = """
    import ctypes, os, sys, torch
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, folder)
    try:
        import carrier
    except ImportError:
        pass
    side = torch.cuda.Stream()
    x = torch.randn(512, 512, device="cuda")
    torch.fft.fft2(x)
    torch.linalg.cholesky(x)
    sparse = torch.eye(64).to_sparse_csr().cuda()
    sparse @ torch.randn(64, 8, device="cuda")
    sparse @ sparse
    sparse + sparse
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
        x.relu()
    big = torch.empty(64 << 20, device="cuda")
    with torch.cuda.stream(side):
        big.mul_(2)
    big.record_stream(side)
    del big
    also = torch.empty(80 << 20, device="cuda")
    torch.save({"x": 1}, "checkpoint.pt")
    torch.load("/nowhere/weights.pt")
    try:
        import torchvision
        len(torchvision.datasets.CIFAR10("/nowhere"))
    except ImportError:
        pass
    runtime = ctypes.CDLL(None)
    pointer = lambda: ctypes.c_void_p()
    handle, source, kernel, way, target = (pointer() for _ in range(5))
    runtime.cudnnCreate(ctypes.byref(handle))
    for made, create in ((source, "Tensor"), (kernel, "Filter"), (way, "Convolution"), (target, "Tensor")):
        getattr(runtime, f"cudnnCreate{create}Descriptor")(ctypes.byref(made))
    runtime.cudnnSetTensor4dDescriptor(source, 0, 0, 8, 16, 32, 32)
    runtime.cudnnSetFilter4dDescriptor(kernel, 0, 0, 16, 16, 3, 3)
    runtime.cudnnSetConvolution2dDescriptor(way, 1, 1, 1, 1, 1, 1, 1, 0)
    runtime.cudnnSetTensor4dDescriptor(target, 0, 0, 8, 16, 32, 32)
    found, results = ctypes.c_int(), ctypes.create_string_buffer(16 * 64)
    runtime.cudnnFindConvolutionForwardAlgorithm(
        handle, source, kernel, way, target, 4, ctypes.byref(found), results
    )
    runtime.cudaGraphicsMapResources(0, None, None)
    with open(os.path.join(os.environ["MEMFIT_RUN_DIR"], f"messages-{os.getpid()}.jsonl"), "a") as messages:
        messages.write("no message\\n")
    bool(x[x > 0].numel())
"""

# A rank of many, a data set too long to be looked at, no evaluation, a clock that stands still.
TRAINING = """
    import os, sys, torch
    import torch.distributed as dist

    class Many(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 40

        def __getitem__(self, index):
            return torch.zeros(64)

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(torch.zeros(64) for _ in range(1000))

    kind = sys.argv[1]
    if kind == "many":
        torch.cuda.set_device(0)
        dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
        part = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(4, device="cuda"), group=part)
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = {"many": Many(), "stream": Stream(), "none": None}[kind]
    loader = torch.utils.data.DataLoader(data, batch_size=8) if data is not None else [torch.zeros(8, 64)] * 9
    for number, batch in enumerate(loader):
        model(batch.cuda()).sum().backward()
        optimizer.step()
        if number > 50:
            break
"""


def rows() -> list[tuple[str, str, str]]:
    """Each remark of the documentation: its id, its text, and what it may change."""
    page = (ROOT / "docs/remarks.md").read_text().partition("## Assumptions")[0]
    return re.findall(r"^\| `([a-z-]+)` \| (.*) \| (.*) \|$", page, re.M)


def listed() -> dict[str, str]:
    return {name: effect for name, _, effect in rows() if name != "id"}


def run(
    code: str, folder: Path, options: list[str], *arguments: str, gpu: str = "rtx-4090"
) -> dict[str, Any]:
    script = folder / "script.py"
    script.write_text("\n".join(line[4:] for line in code.splitlines()))
    answer = invoke(
        ["run", "--gpu", gpu, "--format", "json", *options, "--", sys.executable, str(script), *arguments],
        cwd=folder,
    )
    assert answer.stdout.startswith("{"), answer.stderr
    return json.loads(answer.stdout)


def made_of(source: str, library: Path) -> None:
    code = library.with_suffix(".c")
    code.write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, code], check=True)


@functools.cache
def libraries() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made_of(STATIC, folder / "carrier.so")
        options = ["--steps", "0", "--clock", "never", "--other-processes", "700MiB"]
        return run(LIBRARIES, folder, [*options, "--synthetic-data", "--synthetic-weights"])


def effects(report: dict[str, Any]) -> dict[str, Any]:
    return {effect["id"]: effect for effect in report["fidelity"]["effects"]}


def test_each_remark_is_made(tmp_path: Path) -> None:
    calibration = tmp_path / "calibration.json"
    calibration.write_text(json.dumps(CALIBRATION))
    full = ["--cover", "full", "--clock", "instant"]
    many = [*full, "--world-size", "4", "--calibration", str(calibration)]
    reports = [
        libraries(),
        run(TRAINING, tmp_path, many, "many"),
        run(TRAINING, tmp_path, full, "stream"),
        run(TRAINING, tmp_path, full, "none"),
    ]
    seen = {name for report in reports for name in effects(report)}
    known = listed()
    assert len(known) > 30
    assert seen - set(known) == {"unmodelled", "value", "condition", "size"} & seen, (
        "a remark that nobody lists"
    )
    missing = set(known) - seen - set(ELSEWHERE)
    assert not missing, [report["fidelity"]["notes"] for report in reports]


def test_remarks_that_other_files_provoke_are_provoked_there() -> None:
    assert set(ELSEWHERE) <= set(listed())
    for name, (file, words) in ELSEWHERE.items():
        text = (ROOT / file).read_text()
        # Here, the table above is not a proof.
        assert text.count(words) > sum(ELSEWHERE[other] == (file, words) for other in ELSEWHERE) * (
            file == HERE
        ), name


# A cuDNN that does not say what it knows of a card, as releases before 9.8 do not; and one that says it, and
# knows no such card.
CUDNN = """
    #include <stddef.h>
    size_t cudnnGetVersion(void) { return TOLD ? 92600 : 90100; }
    int cudnnBackendCreateDescriptor(int kind, void **made) { *made = &cudnnGetVersion; return 0; }
    int cudnnBackendSetAttribute(void *of, int name, int type, long count, void *values) { return 0; }
    int cudnnBackendGetAttribute(void *of, int name, int type, long room, long *count, char *values) {
        for (*count = 0; *count < 2; ++*count)
            if (*count < room) values[*count] = "{}"[*count];
        return 0;
    }
    int cudnnBackendFinalize(void *descriptor) { static int asked; return TOLD && !asked++ ? 0 : 3000; }
    int cudnnBackendDestroyDescriptor(void *descriptor) { return 0; }
"""

ASKS_CUDNN = """
    import ctypes, os
    real = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libcudnn.so.9")
    real = ctypes.CDLL(real, ctypes.RTLD_GLOBAL)
    device = ctypes.CDLL("libcuda.so.1")
    handle, heuristics = ctypes.c_void_p(), ctypes.c_void_p()
    device.cudnnCreate(ctypes.byref(handle))
    device.cudnnBackendCreateDescriptor(4, ctypes.byref(heuristics))
    device.cudnnBackendFinalize(heuristics)
"""


@pytest.mark.parametrize(("told", "remark"), [(0, "cudnn-layout"), (1, "cudnn-card")])
def test_a_cudnn_that_cannot_be_asked_is_reported(told: int, remark: str, tmp_path: Path) -> None:
    made_of(f"#define TOLD {told}\n{CUDNN}", tmp_path / "libcudnn.so.9")
    assert remark in effects(run(ASKS_CUDNN, tmp_path, ["--steps", "0"]))


def test_possible_changes_are_stated_in_bytes() -> None:
    report = libraries()
    fidelity, found = report["fidelity"], effects(report)
    # Every reported call has a known effect, and every effect belongs to a reported call.
    told = [each["call"] for each in (*fidelity["unmodelled"], *fidelity["values"])] + fidelity["notes"]
    assert [effect["what"] for effect in fidelity["effects"]] == told
    assert found["cufft-areas"]["bytes"] == 512 * 512 * 8
    assert found["other-processes"]["bytes"] == 700 * MIB
    assert found["pending"]["bytes"] >= 256 * MIB
    assert found["cupti"]["bytes"] == 0
    assert found["clock-never"]["bytes"] is None
    assert found["unmodelled"]["bytes"] is None
    for name in ("cusolver-workspaces", "cusparse-buffers", "cusparse-product", "cudnn-find"):
        assert 0 < found[name]["bytes"] < 1 << 30, name
    outside = sum(
        max(part["high"] - part["typical"], part["typical"] - part["low"]) for part in report["outside_parts"]
    )
    assert found["outside"]["bytes"] == outside


def test_sizes_that_were_read_back_differ_by_what_both_runs_say(tmp_path: Path) -> None:
    code = """
    import torch
    x = torch.randn(32 << 20, device="cuda")
    y = x[x > 0] * 2
    """
    report = run(code, tmp_path, ["--steps", "0", "--sizes", "both"])
    ends = report["peak_interval"]
    between = ends["upper"]["device"] - ends["lower"]["device"]
    assert between > 100 * MIB
    assert effects(report)["size"]["bytes"] == between


CALIBRATION = {
    "schema": "memfit.calibrate/1",
    "card": {
        "id": "rtx-4090",
        "name": "NVIDIA GeForce RTX 4090",
        "memory": 25_250_000_000,
        "is_virtual": False,
    },
    "with": {"machine": "node", "date": "2026-01-01", "driver": None, "torch": "2.15.0", "cuda": "13.2"},
    "outside": {"context": None, "libraries": None, "per_communicator": None, "other_processes": None},
    "rates": {},
    "memory_bandwidth": None,
    "host_link": {
        "to_card_pinned": None,
        "to_host_pinned": None,
        "to_card_pageable": None,
        "to_host_pageable": None,
    },
    "peer_link": None,
    "launch_ns": None,
    "not_measured": [],
}
