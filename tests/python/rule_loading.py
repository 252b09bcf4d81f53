"""Measures the claims of the rules' pages about loaders and allocator settings: `test_rules_around.py` reads
its output on a virtual GPU.
"""

import base64
import io
import os

import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return torch.zeros(1).cuda()


class Copies(Images):
    def __getitem__(self, i):
        return torch.zeros(1).cuda().cpu()


def growing():
    """Return the reserved memory after batches of 20, 40 … MiB."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for size in range(20, 180, 20):
        torch.empty(size << 20, dtype=torch.uint8, device="cuda")
    return torch.cuda.memory_reserved() - before


if __name__ == "__main__":
    # As text: in a dry run, checkpoints that a script writes to files are led aside.
    checkpoint = io.BytesIO()
    torch.save(torch.zeros(1).cuda(), checkpoint)
    print(f"checkpoint:{base64.b64encode(checkpoint.getvalue()).decode()}:")
    try:
        next(iter(DataLoader(Images(), num_workers=1, multiprocessing_context="fork")))
    except RuntimeError as error:
        print("raised", "forked subprocess" in str(error))
    print("alone", next(iter(DataLoader(Images()))).is_cuda)
    free, _ = torch.cuda.mem_get_info()
    worker = iter(DataLoader(Copies(), num_workers=1, multiprocessing_context="spawn"))
    next(worker)
    print("context", (free - torch.cuda.mem_get_info()[0]) // 1024**2)
    del worker
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "nonsense:1"
    torch.empty(1 << 20, device="cuda")
    print("ignored")
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    print("late", growing())
    # As if it had been there in time.
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    print("early", growing())
    pinned = next(iter(DataLoader(torch.zeros(4, 2), pin_memory=True)))
    print("pinned", pinned.is_pinned(), torch.zeros(2).is_pinned())
