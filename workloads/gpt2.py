"""Language modelling with GPT-2, built from its configuration."""

import argparse
from contextlib import nullcontext

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--attention", choices=["sdpa", "eager"], default="sdpa")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = GPT2Config(
        vocab_size=args.vocabulary,
        n_positions=args.sequence,
        n_embd=args.hidden,
        n_layer=args.layers,
        n_head=args.heads,
        use_cache=False,
        attn_implementation=args.attention,
    )
    model = GPT2LMHeadModel(config).to(device)
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    model.train()
    for step in range(args.steps):
        tokens = torch.randint(args.vocabulary, (args.batch_size, args.sequence)).to(device)
        with torch.autocast(device, torch.bfloat16) if args.bf16 else nullcontext():
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
