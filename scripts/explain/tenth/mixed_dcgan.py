"""The tutorial's list of sample pictures, without the no_grad and the cpu that belong there.

cause: retained-graph|evaluation-with-gradients
line: img_list.append|netG(fixed_noise)
remedy: no-grad|release-graph
false: keep-on-cpu|checkpointing|micro-batch|drop-variables|fused-optimizer|expandable-segments
false: activation-offload
"""

import torch
import torch.nn as nn

nz, ngf, ndf, nc = 100, 64, 64, 3
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

netG = nn.Sequential(
    nn.ConvTranspose2d(nz, ngf * 8, 4, 1, 0, bias=False),
    nn.BatchNorm2d(ngf * 8),
    nn.ReLU(True),
    nn.ConvTranspose2d(ngf * 8, ngf * 4, 4, 2, 1, bias=False),
    nn.BatchNorm2d(ngf * 4),
    nn.ReLU(True),
    nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False),
    nn.BatchNorm2d(ngf * 2),
    nn.ReLU(True),
    nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
    nn.BatchNorm2d(ngf),
    nn.ReLU(True),
    nn.ConvTranspose2d(ngf, nc, 4, 2, 1, bias=False),
    nn.Tanh(),
).to(device)
netD = nn.Sequential(
    nn.Conv2d(nc, ndf, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
    nn.BatchNorm2d(ndf * 2),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1, bias=False),
    nn.BatchNorm2d(ndf * 4),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ndf * 4, 1, 8, 1, 0, bias=False),
    nn.Sigmoid(),
).to(device)

criterion = nn.BCELoss()
fixed_noise = torch.randn(64, nz, 1, 1, device=device)
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
img_list, G_losses, D_losses, iters = [], [], [], 0

for epoch in range(50):
    for i in range(8):
        real = torch.randn(128, nc, 64, 64, device=device)
        label = torch.full((128,), 1.0, device=device)
        netD.zero_grad()
        errD_real = criterion(netD(real).view(-1), label)
        errD_real.backward()
        fake = netG(torch.randn(128, nz, 1, 1, device=device))
        label.fill_(0.0)
        errD_fake = criterion(netD(fake.detach()).view(-1), label)
        errD_fake.backward()
        optimizerD.step()
        netG.zero_grad()
        label.fill_(1.0)
        errG = criterion(netD(fake).view(-1), label)
        errG.backward()
        optimizerG.step()
        G_losses.append(errG.item())
        D_losses.append((errD_real + errD_fake).item())
        if iters % 4 == 0:
            img_list.append(netG(fixed_noise))
        iters += 1
