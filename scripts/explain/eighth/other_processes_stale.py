"""Yesterday's run was suspended, not ended; its tensors are still on the card as today's is started.

cause: other-processes
line:
remedy: end-other-process
"""

import subprocess
import sys
import textwrap

import torch
import torch.nn as nn

YESTERDAY = textwrap.dedent("""
    import sys, torch
    net = torch.nn.Linear(8192, 8192, device="cuda")
    state = [torch.zeros_like(p) for p in net.parameters() for _ in range(3)]
    batch = torch.zeros(210_000_000, device="cuda")
    print("suspended", flush=True)
    sys.stdin.read()
""")


class SpeechNet(nn.Module):
    def __init__(self, mel=80, tokens=40):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(mel, 512, 5, 2, 2), nn.BatchNorm1d(512), nn.ReLU(),
            nn.Conv1d(512, 512, 5, 1, 2), nn.BatchNorm1d(512), nn.ReLU(),
        )  # fmt: skip
        self.mix = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(6)])
        self.out = nn.Linear(512, tokens)

    def forward(self, mels):
        return self.out(self.mix(self.front(mels).transpose(1, 2))).log_softmax(-1)


def train():
    net = SpeechNet().to("cuda")
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)
    for epoch in range(2):
        for _ in range(4):
            mels = torch.randn(64, 80, 1000, device="cuda")
            loss = -net(mels)[..., 1].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print("epoch", epoch, loss.item())


old = subprocess.Popen([sys.executable, "-c", YESTERDAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
old.stdout.readline()
try:
    train()
finally:
    old.stdin.close()
