"""Sequence-to-sequence training with T5, built from its configuration."""

import argparse

import torch
from transformers import T5Config, T5ForConditionalGeneration


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=32128)
    parser.add_argument("--source", type=int, default=512, help="length of the inputs")
    parser.add_argument("--target", type=int, default=128, help="length of the outputs")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = T5Config(
        vocab_size=args.vocabulary,
        d_model=args.hidden,
        d_kv=args.hidden // args.heads,
        d_ff=4 * args.hidden,
        num_layers=args.layers,
        num_heads=args.heads,
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    model.train()
    for step in range(args.steps):
        source = torch.randint(1, args.vocabulary, (args.batch_size, args.source)).to(device)
        target = torch.randint(1, args.vocabulary, (args.batch_size, args.target)).to(device)
        loss = model(input_ids=source, labels=target).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
