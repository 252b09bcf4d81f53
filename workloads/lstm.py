"""A recurrent language model, on sequences of one length or of many."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class RecurrentModel(nn.Module):
    def __init__(self, cell, vocabulary, width, layers, dropout):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.rnn = cell(width, width, num_layers=layers, dropout=dropout, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens, lengths=None):
        x = self.embedding(tokens)
        if lengths is None:
            x, _ = self.rnn(x)
        else:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            packed, _ = self.rnn(packed)
            x, _ = pad_packed_sequence(packed, batch_first=True, total_length=tokens.shape[1])
        return self.head(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cell", choices=["lstm", "gru"], default="lstm")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=650)
    parser.add_argument("--vocabulary", type=int, default=10000)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--packed", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    cell = {"lstm": nn.LSTM, "gru": nn.GRU}[args.cell]
    model = RecurrentModel(cell, args.vocabulary, args.width, args.layers, args.dropout).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    model.train()
    for step in range(args.steps):
        tokens = torch.randint(args.vocabulary, (args.batch_size, args.sequence + 1)).to(device)
        lengths = torch.randint(1, args.sequence + 1, (args.batch_size,)) if args.packed else None
        logits = model(tokens[:, :-1], lengths)
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
