"""The name `scan` holds one augmented CT scan of 1.5 GiB until the next one has been computed.

cause: two-batches-alive
line: scan = augment(|F.interpolate(
remedy: drop-variables
"""

import torch
import torch.nn.functional as F
from torch import nn

SIZE = (384, 512, 512)


def augment(raw):
    """Resample a scan to one spacing, mirrored at random."""
    if torch.rand(()) < 0.5:
        raw = raw.flip(4)
    scan = F.interpolate(raw, size=SIZE, mode="trilinear")
    return scan.sub_(0.2).div_(0.5)


class TwoScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.context = nn.Sequential(
            nn.Conv3d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv3d(8, 16, 3, 2, 1), nn.ReLU()
        )
        self.detail = nn.Sequential(nn.Conv3d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv3d(8, 16, 3, 2, 1), nn.ReLU())
        self.head = nn.Linear(32, 2)

    def forward(self, low, crop):
        return self.head(torch.cat([self.context(low).mean((2, 3, 4)), self.detail(crop).mean((2, 3, 4))], 1))


model = TwoScale().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
raw_scans = [torch.rand(4, 1, 96, 128, 128) for _ in range(2)]
for step in range(20):
    raw = raw_scans[step % 2].cuda()
    scan = augment(raw)
    low = F.avg_pool3d(scan, 8)
    crop = scan[..., 150:214, 200:264, 200:264]
    loss = F.cross_entropy(model(low, crop), torch.randint(2, (4,)).cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: {loss.item():.3f}")
