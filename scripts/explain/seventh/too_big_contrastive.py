"""Two views of each picture go through one encoder, and a contrastive loss brings them together.

cause: too-big
line: encoder(|model(
remedy: checkpointing|activation-offload|autocast-bf16|autocast-fp16|activation-budget
"""

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import resnet18


def nt_xent(first, second, temperature=0.2):
    z = F.normalize(torch.cat([first, second]), dim=1)
    similarity = z @ z.t() / temperature
    similarity.fill_diagonal_(-1e9)
    count = first.shape[0]
    labels = torch.cat([torch.arange(count, 2 * count), torch.arange(count)]).to(z.device)
    return F.cross_entropy(similarity, labels)


class SimCLR(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = resnet18(weights=None)
        self.encoder.fc = nn.Identity()
        self.projector = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128))

    def forward(self, x):
        return self.projector(self.encoder(x))


model = SimCLR().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=1e-4)
for step in range(5):
    one = torch.rand(72, 3, 224, 224, device="cuda")
    two = one.flip(-1)
    loss = nt_xent(model(one), model(two))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.3f}")
