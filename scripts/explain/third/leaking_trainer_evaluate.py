"""Trainer.evaluate() gathers the logits of the whole evaluation set on the card before it moves them.

cause: leaking
line: trainer.evaluate()
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Lines(torch.utils.data.Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        tokens = torch.randint(0, 20000, (64,))
        return {"input_ids": tokens, "labels": tokens}


config = GPT2Config(vocab_size=20000, n_positions=64, n_embd=128, n_layer=2, n_head=2)
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    max_steps=2,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
)
trainer = Trainer(
    GPT2LMHeadModel(config),
    arguments,
    train_dataset=Lines(),
    eval_dataset=Lines(),
    compute_metrics=lambda prediction: {"n": len(prediction.predictions)},
)
trainer.train()
print(trainer.evaluate())
