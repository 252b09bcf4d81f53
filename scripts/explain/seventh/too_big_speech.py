"""Spectrograms go through convolutions and a deep GRU for CTC; the longest recordings of the corpus were
left in.

cause: too-big
line: self.conv(|self.rnn(|model(
remedy: checkpointing|activation-offload|autocast-bf16|autocast-fp16|micro-batch|activation-budget
"""

import torch
from torch import nn


class DeepSpeech(nn.Module):
    def __init__(self, features=80, hidden=512, letters=29):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, 5, stride=(2, 2), padding=2),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
        )
        self.rnn = nn.GRU(32 * features // 2, hidden, num_layers=4, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(2 * hidden, letters)

    def forward(self, spectrogram):
        x = self.conv(spectrogram.unsqueeze(1))
        batch, channels, features, frames = x.shape
        x = x.permute(0, 3, 1, 2).reshape(batch, frames, channels * features)
        x, _ = self.rnn(x)
        return self.fc(x).log_softmax(-1)


def train(model, optimizer, batches):
    ctc = nn.CTCLoss(zero_infinity=True)
    for number in range(batches):
        sound = torch.randn(24, 80, 1800, device="cuda")
        text = torch.randint(1, 29, (24, 120), device="cuda")
        scores = model(sound).transpose(0, 1)
        lengths = torch.full((24,), scores.shape[0], dtype=torch.long)
        loss = ctc(scores, text, lengths, torch.full((24,), 120, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 400)
        optimizer.step()
        print(number, loss.item())


net = DeepSpeech().cuda()
train(net, torch.optim.AdamW(net.parameters(), lr=3e-4), 3)
