"""The Hugging Face Trainer with a batch that a colleague's larger card could take.

cause: too-big
line: trainer.train()
"""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Reviews(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        return {"input_ids": torch.randint(0, 8000, (256,)), "labels": torch.tensor(index % 2)}


config = BertConfig(
    vocab_size=8000, hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536
)
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=96,
    max_steps=3,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
    logging_strategy="no",
)
trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=Reviews())
trainer.train()
