"""What the pages of the rules say about loaders, and about settings of the allocator: `test_rules.py` reads what
this prints on a virtual GPU."""

import os

import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return torch.zeros(1).cuda()


if __name__ == "__main__":
    torch.zeros(1).cuda()
    try:
        next(iter(DataLoader(Images(), num_workers=1, multiprocessing_context="fork")))
    except RuntimeError as error:
        print("raised", "forked subprocess" in str(error))
    print("alone", next(iter(DataLoader(Images()))).is_cuda)
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "nonsense:1"
    torch.empty(1 << 20, device="cuda")
    print("ignored")
    pinned = next(iter(DataLoader(torch.zeros(4, 2), pin_memory=True)))
    print("pinned", pinned.is_pinned(), torch.zeros(2).is_pinned())
