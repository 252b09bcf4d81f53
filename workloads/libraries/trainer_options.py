"""The Trainer of transformers with the settings that decide memory: precision, checkpointing, optimizer, compile."""

import argparse
import tempfile

import torch
from arithmetic import say, stored
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class RandomText(Dataset):
    def __init__(self, length, sequence):
        self.tokens = torch.randint(8000, (length, sequence))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="bf16")
    parser.add_argument("--optimizer", default="adamw_torch_fused")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()

    config = LlamaConfig(
        vocab_size=8000,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=args.layers,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    model = LlamaForCausalLM(config)
    settings = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="trainer-"),
        per_device_train_batch_size=args.batch_size,
        gradient_accumulation_steps=args.accumulate,
        max_steps=args.steps,
        bf16=args.precision == "bf16",
        fp16=args.precision == "fp16",
        optim=args.optimizer,
        gradient_checkpointing=args.gradient_checkpointing,
        torch_compile=args.compile,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
    )
    data = RandomText(args.batch_size * args.accumulate * args.steps, args.sequence)
    say(parameters=stored(model.parameters()))
    Trainer(model=model, args=settings, train_dataset=data).train()


if __name__ == "__main__":
    main()
