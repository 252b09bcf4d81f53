"""A billion parameters in fp32, moved to the card in one go.

cause: does-not-fit
line: .to(device)|.cuda()
"""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))
        return x + self.down(torch.relu(self.up(x)))


def main() -> None:
    device = "cuda"
    with torch.device("meta"):
        model = nn.Sequential(*(Block(2048) for _ in range(14)))
    model = model.to_empty(device="cpu").to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    loss = model(torch.randn(1, 64, 2048, device=device)).mean()
    loss.backward()
    optimizer.step()


main()
