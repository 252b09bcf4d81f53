"""Training loops for `test_host_runs.py`: as they are, and changed."""

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(24, 6), torch.randint(0, 4, (24,)))
loader = DataLoader(data, batch_size=12, shuffle=True, num_workers=2, pin_memory=False)
model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.4), nn.ReLU(), nn.Linear(16, 4)).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
device = torch.device("cuda", 0)


def noisy(x):
    return model(x + 0.1 * torch.randn_like(x))


def pieces(x, y, size):
    for start in range(0, len(x), size):
        part = slice(start, start + size)
        yield x[part], y[part], len(x[part]) / len(x)

"""

WHOLE = """
for epoch in range(3):
    total = 0.0
    for x, y in loader:
        x, y = x.to(device), y.cuda()
        optimizer.zero_grad()
        loss = F.cross_entropy(noisy(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item() * len(y)
    print(f"epoch {epoch}: loss {total:.4f}")
"""

DIVIDED = """
for epoch in range(3):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        for x, y, share in pieces(x, y, 2):
            x, y = x.to(device), y.cuda()
            loss = F.cross_entropy(noisy(x), y)
            (loss * share).backward()
            total += loss.item() * len(y)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"epoch {epoch}: loss {total:.4f}")
"""

# A change of the divided loop, if it trains like the whole one, and if it prints the same.
CHANGES = {
    "divided": (DIVIDED, True, True),
    "recomputed": (
        DIVIDED.replace(
            "noisy(x)",
            "checkpoint(noisy, x, use_reentrant=False)",
        ),
        True,
        True,
    ),
    "every part as if it were the whole": (DIVIDED.replace("(loss * share)", "loss"), False, None),
    # With the bound as it was, clipping would undo it wherever all gradients are above the bound.
    "a hundredth too much": (
        DIVIDED.replace("(loss * share)", "(loss * share * 1.01)").replace("1.0)", "1.01)"),
        False,
        None,
    ),
    "the last part's loss printed": (
        DIVIDED.replace("            total += loss.item() * len(y)\n", "").replace(
            "        optimizer.step()\n", "        optimizer.step()\n        total += loss.item() * len(y)\n"
        ),
        True,
        False,
    ),
    "fewer steps": (
        DIVIDED.replace("        optimizer.step()", "        if epoch: optimizer.step()"),
        False,
        None,
    ),
}

OWN_BATCHES = """
batch_size = 4
for step in range(9):
    optimizer.zero_grad()
    x = torch.randn(batch_size, 6, device="cuda")
    y = torch.randint(0, 4, (batch_size,), device="cuda")
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print(f"step {step}: {loss.item():.3f}")
"""

OWN_SMALLER_BATCHES = """
batch_size = 2
for step in range(9):
    optimizer.zero_grad()
    whole = 0
    for _ in range(2):
        x = torch.randn(batch_size, 6, device="cuda")
        y = torch.randint(0, 4, (batch_size,), device="cuda")
        loss = F.cross_entropy(model(x), y)
        (loss / 2).backward()
        whole += loss.detach() / 2
    optimizer.step()
    print(f"step {step}: {whole.item():.3f}")
"""

STATEFUL = """
import copy

body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU())
model = nn.Sequential(body, nn.Linear(16, 4)).to(device)
average = copy.deepcopy(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def grow(*_):
    with torch.no_grad():
        # A fifth of an update of AdamW's.
        model[1].weight += 0.2 * 1e-2


def follow():
    with torch.no_grad():
        for mine, theirs in zip(average.parameters(), model.parameters()):
            mine.lerp_(theirs, 0.1)


for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        schedule.step()
        follow()
"""

# A deep model without a warm-up: a difference in the last place grows a hundredfold in two steps.
SENSITIVE = """
model = nn.Sequential(*(nn.TransformerEncoderLayer(6, 2, 24, batch_first=True) for _ in range(12))).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        model(x.to(device)[:, None]).square().mean().backward()
        optimizer.step()
"""

# A change of that loop, and the state in which it differs; None if it trains alike.
STATEFUL_CHANGES = {
    "checkpointed by layers without state": (
        STATEFUL.replace(
            "model(x.to(device))", "checkpoint(model[1], body(x.to(device)), use_reentrant=False)"
        ),
        None,
    ),
    "wrapped": (STATEFUL.replace("for epoch", "model = nn.Sequential(model)\nfor epoch"), None),
    "another optimizer's kernel": (STATEFUL.replace("lr=1e-2", "lr=1e-2, foreach=False"), None),
    "a fused kernel": (STATEFUL.replace("lr=1e-2", "lr=1e-2, fused=True"), None),
    "another update": (
        STATEFUL.replace("for epoch", "optimizer.register_step_post_hook(grow)\nfor epoch", 1),
        ("weight",),
    ),
    "the statistics updated twice": (
        STATEFUL.replace("model(x.to(device))", "checkpoint(model, x.to(device), use_reentrant=False)"),
        ("running_mean", "running_var", "num_batches_tracked"),
    ),
    "the average updated twice": (
        STATEFUL.replace("        follow()", "        follow(); follow()"),
        ("weight", "bias"),
    ),
    "the schedule stepped twice": (
        STATEFUL.replace("schedule.step()", "schedule.step(); schedule.step()"),
        ("param_groups[0]['lr']",),
    ),
}
