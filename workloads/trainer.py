"""Fine-tuning with the Trainer of transformers, evaluation included."""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    Trainer,
    TrainingArguments,
)


class RandomText(Dataset):
    def __init__(self, length, vocabulary, sequence):
        self.tokens = torch.randint(vocabulary, (length, sequence))
        self.labels = torch.randint(2, (length,))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens = self.tokens[index]
        return {
            "input_ids": tokens,
            "attention_mask": torch.ones_like(tokens),
            "labels": self.labels[index],
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=30522)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--eval-batch-size", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--output", default=None)
    args = parser.parse_args()

    config = DistilBertConfig(
        vocab_size=args.vocabulary,
        dim=args.hidden,
        hidden_dim=4 * args.hidden,
        n_layers=args.layers,
        n_heads=max(1, args.hidden // 64),
        max_position_embeddings=max(512, args.sequence),
    )
    examples = args.batch_size * args.accumulate * args.steps
    settings = TrainingArguments(
        output_dir=args.output or tempfile.mkdtemp(prefix="trainer-"),
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=args.eval_batch_size,
        gradient_accumulation_steps=args.accumulate,
        num_train_epochs=1,
        bf16=args.bf16,
        eval_strategy="epoch",
        logging_steps=1,
        report_to=[],
    )
    trainer = Trainer(
        model=DistilBertForSequenceClassification(config),
        args=settings,
        train_dataset=RandomText(examples, args.vocabulary, args.sequence),
        eval_dataset=RandomText(2 * args.eval_batch_size, args.vocabulary, args.sequence),
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
