//! What other files of a project tell of collate functions and loss functions.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use support::files_with_finding;

#[test]
fn workers_of_another_file_run_a_collate_function() {
    let collate = "\
import torch

def pack(items):
    sounds = [torch.as_tensor(sound).cuda() for sound, _ in items]
    return torch.nn.utils.rnn.pad_sequence(sounds)

def other(items):
    return torch.stack(items).cuda()
";
    let loader = "import batches\nfrom torch.utils.data import DataLoader\nloader = DataLoader(data, 8, num_workers=WORKERS, collate_fn=batches.pack)\n";
    let (some, none) = (loader.replace("WORKERS", "4"), loader.replace("WORKERS", "0"));
    let files = [
        ("one/setup.py", ""),
        ("one/batches.py", collate),
        ("one/train.py", &*some),
        ("two/setup.py", ""),
        ("two/batches.py", collate),
        ("two/train.py", &*none),
    ];
    assert_eq!(files_with_finding("cuda-in-worker", &files), ["one/batches.py"]);
}

#[test]
fn a_loss_of_another_file_has_parameters() {
    let losses = "\
import torch
from torch import nn

class PairLoss(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.margin = nn.Parameter(torch.tensor(1.0, device=device))

    def forward(self, a, b):
        return (self.margin - (a - b).norm(dim=1)).clamp(min=0).mean()

class PlainLoss(nn.Module):
    def forward(self, a, b):
        return (1 - (a - b).norm(dim=1)).clamp(min=0).mean()

class JudgedLoss(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.judge = nn.Linear(4, 4).to(device)

    def forward(self, a, b):
        return (self.judge(a) - self.judge(b)).pow(2).mean()
";
    let train = "\
import torch
from losses import JudgedLoss, PairLoss, PlainLoss

def train(loader, device):
    model = torch.nn.Linear(4, 4).to(device)
    pairs = LOSS(device)
    optimizer = torch.optim.SGD(PARAMETERS, lr=0.1)
    for a, b in loader:
        optimizer.zero_grad()
        loss = pairs(model(a), model(b))
        loss.backward()
        optimizer.step()
";
    let found = |loss: &str, parameters: &str| {
        let train = train.replace("LOSS", loss).replace("PARAMETERS", parameters);
        let files = [("one/setup.py", ""), ("one/losses.py", losses), ("one/train.py", &*train)];
        files_with_finding("loss-parameters-untrained", &files)
    };
    assert_eq!(found("PairLoss", "model.parameters()"), ["one/train.py"]);
    assert_eq!(found("PairLoss", "[*model.parameters(), *pairs.parameters()]"), [] as [&str; 0]);
    assert_eq!(found("PlainLoss", "model.parameters()"), [] as [&str; 0]);
    assert_eq!(found("JudgedLoss", "model.parameters()"), [] as [&str; 0]);
}
