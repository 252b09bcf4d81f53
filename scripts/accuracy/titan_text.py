"""Replaces torchtitan's tokenizer and text, which are downloads: the same sizes, with other contents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torchtitan import datasets
from torchtitan.datasets import hf_datasets


class Tokenizer:
    """Has as many entries as that of Llama 3."""

    n_words = 128256


class Text(torch.utils.data.IterableDataset):
    """Yields sequences of random tokens, and the same shifted by one."""

    def __init__(self, _name: str, _path: str, tokenizer: Tokenizer, length: int, *_: Any) -> None:
        self.words, self.length = tokenizer.n_words, length

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            tokens = torch.randint(self.words, (self.length + 1,))
            yield tokens[:-1], tokens[1:]


datasets.build_tokenizer = lambda *_: Tokenizer()
hf_datasets.HuggingFaceDataset = Text
