"""Fine-tuning of a model like Llama, built on the card itself: all of it, or adapters on frozen weights."""

import argparse
from contextlib import nullcontext

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


class Adapter(nn.Module):
    """A frozen layer, and the product of two thin matrices added to it."""

    def __init__(self, layer, rank, scale):
        super().__init__()
        self.layer = layer
        self.scale = scale
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x.to(self.down.weight.dtype))).to(x.dtype) * self.scale


def adapted(model, rank):
    model.requires_grad_(False)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name.endswith("_proj"):
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, Adapter(module, rank, 2.0))
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--intermediate", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--key-value-heads", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--bf16", action="store_true", help="weights in bf16")
    parser.add_argument("--lora", type=int, default=0, help="the rank of adapters; 0 trains all weights")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = LlamaConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.hidden,
        intermediate_size=args.intermediate,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.key_value_heads,
        max_position_embeddings=args.sequence,
        tie_word_embeddings=True,
        use_cache=False,
    )
    torch.set_default_dtype(torch.bfloat16 if args.bf16 else torch.float32)
    with torch.device(device):
        model = LlamaForCausalLM(config)
        torch.set_default_dtype(torch.float32)
        if args.lora:
            model = adapted(model, args.lora)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=1e-4)

    model.train()
    for step in range(args.steps):
        tokens = torch.randint(args.vocabulary, (args.batch_size, args.sequence)).to(device)
        with torch.autocast(device, torch.bfloat16) if args.lora else nullcontext():
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
