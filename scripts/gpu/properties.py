"""Print what CUDA, cuDNN and NVML say of the first GPU: `python scripts/gpu/properties.py -o card.json`.

Under `memfit run --gpu NAME` it prints what the virtual GPU says. Libraries choose kernels and workspaces by
these values, so a difference explains others. Identifiers of the GPU are left out.
"""

from __future__ import annotations

import argparse
import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ATTRIBUTES = 160
# cudnnBackendDescriptorType_t, cudnnBackendAttributeName_t and cudnnBackendAttributeType_t
DEVICEPROP, DEVICE_ID, HANDLE, JSON_TEXT, TYPE_HANDLE, INT32, CHAR = 38, 2700, 2701, 2702, 0, 23, 24


def attributes() -> dict[int, int]:
    """Return `cuDeviceGetAttribute` of every number that the driver knows."""
    cuda, value, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), {}
    cuda.cuInit(0)
    for number in range(1, ATTRIBUTES):
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), number, 0) == 0:
            found[number] = value.value
    return found


def cudnn_properties(of_handle: bool) -> Any:
    """Return cuDNN's own description of the device, by which its heuristics choose."""
    cudnn = ctypes.CDLL("libcudnn.so.9")
    descriptor, handle = ctypes.c_void_p(), ctypes.c_void_p()
    device, count = ctypes.c_int32(0), ctypes.c_int64()
    status = [cudnn.cudnnCreate(ctypes.byref(handle))]
    status.append(cudnn.cudnnBackendCreateDescriptor(DEVICEPROP, ctypes.byref(descriptor)))
    what, kind, value = (HANDLE, TYPE_HANDLE, handle) if of_handle else (DEVICE_ID, INT32, device)
    one = ctypes.c_int64(1)
    status.append(cudnn.cudnnBackendSetAttribute(descriptor, what, kind, one, ctypes.byref(value)))
    status.append(cudnn.cudnnBackendFinalize(descriptor))
    text = ctypes.create_string_buffer(1 << 20)
    size = ctypes.c_int64(len(text))
    got = cudnn.cudnnBackendGetAttribute(descriptor, JSON_TEXT, CHAR, size, ctypes.byref(count), text)
    if any((*status, got)):
        return {"status": [*status, got]}
    return json.loads(text.value)


def runtime_properties() -> dict[str, Any]:
    """Return the properties that PyTorch passes on."""
    found = torch.cuda.get_device_properties(0)
    names = [name for name in dir(found) if not name.startswith("_") and name not in ("uuid", "pci_bus_id")]
    return {name: str(getattr(found, name)) for name in names}


def nvml_memory() -> dict[str, Any]:
    """Return NVML's two descriptions of the memory."""
    nvml, handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
    nvml.nvmlInit_v2()
    nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
    first, second = (ctypes.c_uint64 * 3)(), (ctypes.c_uint64 * 5)()
    second[0] = 40 | 2 << 24
    status = [
        nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(first)),
        nvml.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(second)),
    ]
    return {"status": status, "total_free_used": list(first), "total_reserved_free_used": list(second)[1:]}


def answer(part: Callable[[], Any]) -> Any:
    """Return a part, or why there is none."""
    try:
        return part()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("card.json"))
    given = parser.parse_args()
    torch.cuda.init()
    torch.ones(1, device="cuda")
    parts = {
        "attributes": attributes,
        "runtime": runtime_properties,
        "nvml": nvml_memory,
        "memory": lambda: list(torch.cuda.mem_get_info()),
        "cudnn": lambda: cudnn_properties(of_handle=True),
        "cudnn_by_number": lambda: cudnn_properties(of_handle=False),
    }
    found = {name: answer(part) for name, part in parts.items()}
    versions = {"torch": torch.__version__, "cudnn_version": torch.backends.cudnn.version()}
    given.output.write_text(json.dumps(versions | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
