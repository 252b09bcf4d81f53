"""BERT-Large in transformers' Trainer, as transformers' page on memory measured it.

    python bert_trainer.py idle|loaded|train [--batch N] [--accumulate N] [--fp16] [--checkpointing]
    [--adafactor]

Reports the memory of the device in use at the end, as NVML counts it: 512 random sequences of 512 tokens,
one epoch.
"""

from __future__ import annotations

import argparse
import tempfile

import pynvml
import torch
from measured import report
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sequences(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.randint(100, 30000, (512,)), "labels": torch.tensor(index % 2)}


def used() -> int:
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used


def model() -> BertForSequenceClassification:
    config = BertConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        attn_implementation="eager",
    )
    return BertForSequenceClassification(config).to("cuda")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["idle", "loaded", "train"])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--adafactor", action="store_true")
    args = parser.parse_args()
    torch.ones((1, 1)).to("cuda")
    if args.what == "idle":
        report(used=used())
        return
    bert = model()
    if args.what == "loaded":
        report(used=used())
        return
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=args.batch,
            gradient_accumulation_steps=args.accumulate,
            gradient_checkpointing=args.checkpointing,
            fp16=args.fp16,
            optim="adafactor" if args.adafactor else "adamw_torch",
            max_steps=args.steps,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            dataloader_pin_memory=False,
        )
        Trainer(model=bert, args=settings, train_dataset=Sequences()).train()
        report(used=used())


if __name__ == "__main__":
    main()
