"""TRL's trainers with memfit: a batch of preferences is divided into pairs, and metrics count each batch
once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

trl = pytest.importorskip("trl", reason="trl is not installed: `make integrations` runs these")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
WORDS = [f"w{index}" for index in range(28)]


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<s>", "</s>", "<unk>", *WORDS]
    made = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
    )


def rows(kind: str) -> Any:
    datasets = pytest.importorskip("datasets")
    text = lambda start, length: " ".join(WORDS[(start * 5 + step * 3) % 28] for step in range(length))  # noqa: E731
    if kind == "sft":
        return datasets.Dataset.from_list([{"text": text(index, 4 + index % 5)} for index in range(16)])
    return datasets.Dataset.from_list(
        [
            {
                "prompt": text(index, 3),
                "chosen": " " + text(index + 1, 2 + index % 3),
                "rejected": " " + text(index + 2, 2 + index % 4),
            }
            for index in range(16)
        ]
    )


def trained(
    kind: str, folder: Path, wrap: Any = None, fails: bool = False
) -> tuple[Any, list[Any], torch.Tensor]:
    trainer_class, config = (
        (trl.SFTTrainer, trl.SFTConfig) if kind == "sft" else (trl.DPOTrainer, trl.DPOConfig)
    )
    args = config(
        output_dir=str(folder),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        logging_steps=1,
        optim="sgd",
        learning_rate=0.5,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    keywords: dict[str, Any] = {"processing_class": tokenizer()}
    if kind == "dpo":
        keywords["ref_model"] = model()
    trainer = (wrap or (lambda each: each))(trainer_class)(
        model=model(), args=args, train_dataset=rows(kind), **keywords
    )
    if fails:
        compute, failed = trainer.compute_loss, [0]

        def compute_loss(model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
            loss = compute(model, inputs, *arguments, **options)
            ids = inputs["input_ids"] if "input_ids" in inputs else inputs["chosen_input_ids"]
            whole = 16 if kind == "dpo" and "input_ids" in inputs else 8
            if len(ids) == whole:
                failed[0] += 1
                if failed[0] == 2:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return loss

        trainer.compute_loss = compute_loss
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    return trainer, logged, torch.cat([each.detach().flatten() for each in trainer.model.parameters()])


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_trl_trains_the_same_with_a_failure_and_without(kind: str, tmp_path: Path) -> None:
    from memfit.integrations.transformers import memfit_trainer

    plain = trained(kind, tmp_path)
    same = trained(kind, tmp_path, memfit_trainer)
    assert [entry["loss"] for entry in same[1]] == [entry["loss"] for entry in plain[1]]
    assert torch.equal(same[2], plain[2])
    assert same[0].memfit.micro_batches == 1
    failed = trained(kind, tmp_path, memfit_trainer, fails=True)
    assert (failed[0].memfit.retries, failed[0].memfit.micro_batches) == (1, 2)
    assert torch.allclose(failed[2], plain[2], atol=1e-6)
    for entry, known in zip(failed[1], plain[1], strict=True):
        # Each batch is counted once; a mean over parts of equal size is that of the batch.
        names = [
            name for name in ("loss", "num_tokens", "rewards/margins", "rewards/accuracies") if name in known
        ]
        assert len(names) >= (1 if kind == "sft" else 3)
        assert {name: entry[name] for name in names} == pytest.approx(
            {name: known[name] for name in names}, rel=1e-3
        )
