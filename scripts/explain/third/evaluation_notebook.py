"""Cells of a notebook, as ipykernel runs them: the last one computes test accuracy with the graph of all of
it.

cause: evaluation-with-gradients
line:
"""

CELLS = [
    "import torch, torch.nn as nn, torch.nn.functional as F\ndevice = 'cuda'",
    "net = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),"
    " nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).to(device)\n"
    "opt = torch.optim.Adam(net.parameters())",
    "for i in range(5):\n"
    "    x, y = torch.randn(64, 3, 64, 64).to(device), torch.randint(0, 10, (64,)).to(device)\n"
    "    loss = F.cross_entropy(net(x), y)\n    opt.zero_grad(); loss.backward(); opt.step()",
    "net.eval()\ncorrect = 0\n"
    "for i in range(8):\n"
    "    x, y = torch.randn(1024, 3, 64, 64).to(device), torch.randint(0, 10, (1024,)).to(device)\n"
    "    correct += (net(x).argmax(1) == y).sum()\n"
    "print(correct.item())",
]
scope = {"__name__": "__main__"}
for number, cell in enumerate(CELLS):
    exec(compile(cell, f"/tmp/ipykernel_4711/{1000 + number}.py", "exec"), scope)
