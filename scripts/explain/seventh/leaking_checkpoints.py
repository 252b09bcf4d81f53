"""The weights of every epoch are kept to average them at the end.

cause: leaking
line: .clone()|history.append|deepcopy
remedy: keep-on-cpu
"""

import torch
from torch import nn
from torchvision.models import resnet50

model = resnet50(weights=None, num_classes=100).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
history = []
for epoch in range(30):
    for _ in range(2):
        images = torch.randn(8, 3, 160, 160, device="cuda")
        labels = torch.randint(0, 100, (8,), device="cuda")
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()
    history.append({name: value.clone() for name, value in model.state_dict().items()})
average = {name: sum(state[name] for state in history) / len(history) for name in history[0]}
print(len(average))
