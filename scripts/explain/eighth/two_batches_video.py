"""Action recognition: the last clips are still bound to their name while the next ones are put on the card.

cause: two-batches-alive
line: clips = to_device(|return clips.to(
remedy: drop-variables|smaller-batch|micro-batch
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    """Decoded clips of 32 frames; the decoder is left out here."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        return torch.zeros(3, 32, 256, 256, dtype=torch.uint8), index % 10


def to_device(clips):
    return clips.to("cuda", non_blocking=True).float().div_(255)


class C3D(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv3d(3, 16, 7, stride=(4, 8, 8), padding=3),
            nn.BatchNorm3d(16),
            nn.ReLU(),
            nn.Conv3d(16, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool3d(1),
        )
        self.classifier = nn.Linear(64, classes)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


model = C3D().cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
loader = DataLoader(Clips(), batch_size=64, shuffle=True)
for epoch in range(3):
    for batch, labels in loader:
        clips = to_device(batch)
        loss = criterion(model(clips), labels.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: {loss.item():.3f}")
