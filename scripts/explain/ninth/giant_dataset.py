# %% [markdown]
"""A notebook converts the whole data set to float32 on the card before it trains on batches of 128.

cause: giant-request
line: images.to(device).float()
remedy: keep-on-cpu|by-parts|resize-before-upload
"""

# %%
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"

# %%
images = torch.zeros(60_000, 3, 64, 64, dtype=torch.uint8)
labels = torch.randint(10, (60_000,))

# %%
X = images.to(device).float() / 255.0
y = labels.to(device)
X = (X - X.mean(dim=(0, 2, 3), keepdim=True)) / X.std(dim=(0, 2, 3), keepdim=True)

# %%
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(64, 10),
).to(device)
opt = torch.optim.Adam(model.parameters())

# %%
for epoch in range(5):
    order = torch.randperm(len(X), device=device)
    for idx in order.split(128):
        loss = F.cross_entropy(model(X[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
