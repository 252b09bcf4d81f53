"""Five-fold cross-validation; each fold's network and optimizer stay in the list of results.

cause: leaking
line: results.append(|"optimizer": optimizer|"model": model
remedy: keep-on-cpu|drop-variables
"""

import torch
from torch import nn


def build():
    return nn.Sequential(
        nn.Linear(4096, 4096), nn.BatchNorm1d(4096), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(4096, 4096), nn.BatchNorm1d(4096), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(4096, 206),
    )  # fmt: skip


def run_fold(fold, features, targets, epochs=3):
    held_out = torch.arange(len(features)) % 5 == fold
    x, y = features[~held_out], targets[~held_out]
    model = build().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=epochs * (len(x) // 256 + 1))
    model.train()
    for _ in range(epochs):
        for xb, yb in zip(x.split(256), y.split(256), strict=True):
            loss = nn.functional.binary_cross_entropy_with_logits(model(xb.cuda()), yb.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
    model.eval()
    with torch.no_grad():
        pred = model(features[held_out].cuda()).sigmoid().cpu()
    score = nn.functional.binary_cross_entropy(pred, targets[held_out]).item()
    return {"fold": fold, "score": score, "model": model, "optimizer": optimizer}


features = torch.zeros(1500, 4096)
targets = torch.zeros(1500, 206)
results = []
for seed in range(3):
    torch.manual_seed(seed)
    for fold in range(5):
        results.append(run_fold(fold, features, targets))
        print(f"seed {seed} fold {fold}: {results[-1]['score']:.5f}")
