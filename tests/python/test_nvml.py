"""Compares NVML with the virtual GPU: the same devices, the same memory, and the calls that PyTorch makes."""

from __future__ import annotations

from pathlib import Path

from support import on_device

# NVML as a tool loads it: by its own name, from the library path.
NVML = """
import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1")
assert nvml.nvmlInit_v2() == 0
handle = ctypes.c_void_p()
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
"""


def test_nvml_shows_what_cuda_shows(tmp_path: Path) -> None:
    answer = on_device(
        NVML
        + """
block = torch.zeros(1 << 28, device=device)
memory = (ctypes.c_uint64 * 3)()  # total, free, used
assert nvml.nvmlDeviceGetMemoryInfo(handle, memory) == 0
name = ctypes.create_string_buffer(96)
assert nvml.nvmlDeviceGetName(handle, name, 96) == 0
uuid = ctypes.create_string_buffer(96)
assert nvml.nvmlDeviceGetUUID(handle, uuid, 96) == 0
properties = torch.cuda.get_device_properties(0)
answer(
    nvml=[memory[1], memory[0]],
    cuda=list(torch.cuda.mem_get_info()),
    used=memory[2],
    names=[name.value.decode(), properties.name],
    uuids=[uuid.value.decode(), "GPU-" + str(properties.uuid)],
)
""",
        tmp_path,
    )
    assert answer.status == 0, answer.output
    assert answer.said["nvml"] == answer.said["cuda"]
    assert answer.said["used"] > 1 << 30
    assert len(set(answer.said["names"])) == 1
    assert len(set(answer.said["uuids"])) == 1


def test_nvml_names_the_process_and_what_it_holds(tmp_path: Path) -> None:
    answer = on_device(
        NVML
        + """
block = torch.zeros(1 << 28, device=device)
count = ctypes.c_uint(8)
processes = (ctypes.c_uint64 * 24)()  # pid, bytes, instances
assert nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), processes) == 0
answer(count=count.value, own=processes[0] == os.getpid(), held=processes[1])
""",
        tmp_path,
    )
    assert answer.status == 0, answer.output
    assert answer.said["count"] == 1
    assert answer.said["own"]
    assert answer.said["held"] > 1 << 30


# Expandable segments are memory that grows in place: they save what two segments leave free between them.
# PyTorch asks NVML about each card before it uses them.
GROWING = """
for size in (300, 500, 700):
    torch.empty(size << 20, dtype=torch.uint8, device=device)
answer(reserved=torch.cuda.max_memory_reserved() >> 20)
"""


def test_expandable_segments_grow(tmp_path: Path) -> None:
    reserved = {}
    for expandable in (False, True):
        setting = f"import os; os.environ['PYTORCH_ALLOC_CONF'] = 'expandable_segments:{expandable}'"
        setting += "; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = os.environ['PYTORCH_ALLOC_CONF']\n"
        folder = tmp_path / str(expandable)
        folder.mkdir()
        answer = on_device(setting + GROWING, folder)
        assert answer.status == 0, answer.output
        reserved[expandable] = answer.said["reserved"]
    assert reserved == {False: 300 + 500 + 700, True: 700}


def test_unsupported_nvml_queries_are_named_in_the_report(tmp_path: Path) -> None:
    answer = on_device(
        NVML
        + """
celsius = ctypes.c_uint()
torch.zeros(1, device=device)
answer(status=nvml.nvmlDeviceGetTemperature(handle, 0, ctypes.byref(celsius)))
""",
        tmp_path,
    )
    assert answer.status == 0, answer.output
    assert answer.said["status"] == 3, "not supported: there is no sensor"
    assert answer.unmodelled["nvmlDeviceGetTemperature"] == 1


def test_nvidia_smi_answers_as_nvml_does(tmp_path: Path) -> None:
    answer = on_device(
        """
import subprocess

block = torch.zeros(1 << 28, device=device)
free, total = torch.cuda.mem_get_info()

def smi(*words):
    done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, check=False)
    return [done.returncode, done.stdout]

answer(
    cuda=[total >> 20, total - free >> 20],
    name=torch.cuda.get_device_name(0),
    memory=smi("--query-gpu=name,memory.total,memory.used", "--format=csv,noheader,nounits"),
    listed=smi("-L"),
    pid=os.getpid(),
    processes=smi("--query-compute-apps=pid", "--format=csv,noheader"),
    table=smi(),
    unknown=smi("--query-gpu=speed", "--format=csv"),
)
""",
        tmp_path,
    )
    assert answer.status == 0, answer.output
    said = answer.said
    total, used = said["cuda"]
    assert said["memory"] == [0, f"{said['name']}, {total}, {used}\n"]
    assert said["listed"][1].startswith(f"GPU 0: {said['name']} (UUID: GPU-")
    # It shows the script, and not itself.
    assert said["processes"] == [0, f"{said['pid']}\n"]
    assert f"{used}MiB / {total:>6}MiB" in said["table"][1], said["table"]
    assert said["unknown"][0] == 2
