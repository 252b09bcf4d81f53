"""Validation saves graphs, and collects the logits of every batch on the card as well.

cause: evaluation-with-gradients|retained-graph
line: logits = model(|collected.append(|outputs.append(
remedy: no-grad|release-graph
"""

import torch
import torchvision
from torch import nn
from torch.nn import functional as F

cfg = {"batch": 16, "classes": 50, "lr": 0.05, "epochs": 2}


def batches(n):
    for _ in range(n):
        yield torch.randn(cfg["batch"], 3, 112, 112), torch.randint(cfg["classes"], (cfg["batch"],))


def train_one_epoch(model, optimizer):
    model.train()
    for x, y in batches(3):
        loss = F.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def validation(model):
    model.eval()
    collected, answers = [], []
    for x, y in batches(60):
        logits = model(x.cuda())
        collected.append(logits)
        answers.append(y)
    logits, y = torch.cat(collected), torch.cat(answers).cuda()
    return F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()


model = torchvision.models.mobilenet_v3_small(num_classes=cfg["classes"]).cuda()
model.classifier[-1] = nn.Linear(1024, cfg["classes"]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=cfg["lr"], momentum=0.9)
for epoch in range(cfg["epochs"]):
    train_one_epoch(model, optimizer)
    print(epoch, validation(model))
