"""Text generation with a cache of keys and values: greedy, sampled, in beams, or with a static cache."""

import argparse

import torch
from arithmetic import say, stored
from transformers import LlamaConfig, LlamaForCausalLM


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["greedy", "sample", "beam", "static"], default="greedy")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = LlamaConfig(
        vocab_size=8000,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        pad_token_id=0,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).to(device, torch.bfloat16).eval()
    prompt = torch.randint(3, 8000, (args.batch_size, args.prompt)).to(device)
    options = {
        "greedy": {"do_sample": False},
        "sample": {"do_sample": True, "top_p": 0.9, "top_k": 50, "temperature": 0.8},
        "beam": {"do_sample": False, "num_beams": 4},
        "static": {"do_sample": False, "cache_implementation": "static", "disable_compile": True},
    }[args.mode]
    say(parameters=stored(model.parameters()))
    with torch.no_grad():
        mask = torch.ones_like(prompt)
        output = model.generate(prompt, attention_mask=mask, max_new_tokens=args.new_tokens, **options)
    print("generated", tuple(output.shape))


if __name__ == "__main__":
    main()
