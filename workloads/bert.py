"""Sequence classification with BERT, built from its configuration."""

import argparse

import torch
from transformers import BertConfig, BertForSequenceClassification


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=30522)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--attention", choices=["sdpa", "eager"], default="sdpa")
    parser.add_argument("--padding", action="store_true", help="sequences of different lengths")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = BertConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        intermediate_size=4 * args.hidden,
        max_position_embeddings=max(512, args.sequence),
        num_labels=4,
        attn_implementation=args.attention,
    )
    model = BertForSequenceClassification(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)

    model.train()
    for step in range(args.steps):
        tokens = torch.randint(args.vocabulary, (args.batch_size, args.sequence))
        mask = torch.ones_like(tokens)
        if args.padding:
            lengths = torch.randint(args.sequence // 2, args.sequence + 1, (args.batch_size,))
            mask = (torch.arange(args.sequence) < lengths[:, None]).long()
        batch = {
            "input_ids": tokens.to(device),
            "attention_mask": mask.to(device),
            "labels": torch.randint(4, (args.batch_size,)).to(device),
        }
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
