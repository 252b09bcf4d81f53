"""One training loop over models of transformers, each built from its configuration."""

import argparse

import torch
import transformers as hf
from arithmetic import adam_moments, say, stored, trainable

DECODER = {"vocab_size": 8000, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}


def text(model, batch, length=512):
    tokens = torch.randint(8000, (batch, length))
    return {"input_ids": tokens, "labels": tokens}


def pairs(model, batch):
    return {"input_ids": torch.randint(8000, (batch, 256)), "labels": torch.randint(8000, (batch, 64))}


def pictures(model, batch):
    return {"pixel_values": torch.randn(batch, 3, 224, 224), "labels": torch.randint(10, (batch,))}


def speech(model, batch):
    return {"input_features": torch.randn(batch, 80, 3000), "labels": torch.randint(8000, (batch, 64))}


MODELS = {
    "llama": (hf.LlamaForCausalLM, lambda: hf.LlamaConfig(**DECODER, **HEADS), text),
    "mistral": (
        hf.MistralForCausalLM,
        lambda: hf.MistralConfig(**DECODER, **HEADS, sliding_window=256),
        text,
    ),
    "mixtral": (
        hf.MixtralForCausalLM,
        lambda: hf.MixtralConfig(**DECODER, **HEADS, num_local_experts=4, num_experts_per_tok=2),
        text,
    ),
    "qwen3": (hf.Qwen3ForCausalLM, lambda: hf.Qwen3Config(**DECODER, **HEADS, head_dim=64), text),
    "gemma2": (hf.Gemma2ForCausalLM, lambda: hf.Gemma2Config(**DECODER, **HEADS, head_dim=64), text),
    "t5": (
        hf.T5ForConditionalGeneration,
        lambda: hf.T5Config(
            vocab_size=8000, d_model=512, d_ff=1024, num_layers=3, num_heads=8, decoder_start_token_id=0
        ),
        pairs,
    ),
    "bert": (
        hf.BertForMaskedLM,
        lambda: hf.BertConfig(vocab_size=8000, hidden_size=512, num_hidden_layers=4, num_attention_heads=8),
        text,
    ),
    "vit": (
        hf.ViTForImageClassification,
        lambda: hf.ViTConfig(
            hidden_size=384, num_hidden_layers=4, num_attention_heads=6, intermediate_size=1536, num_labels=10
        ),
        pictures,
    ),
    "whisper": (
        hf.WhisperForConditionalGeneration,
        lambda: hf.WhisperConfig(
            vocab_size=8000,
            d_model=384,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=6,
            decoder_attention_heads=6,
            encoder_ffn_dim=1536,
            decoder_ffn_dim=1536,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
        ),
        speech,
    ),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="llama")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--fp32", action="store_true")
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    kind, config, sample = MODELS[args.model]
    config = config()
    config._attn_implementation = args.attention
    model = kind(config).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    say(parameters=stored(model.parameters()), optimizer=adam_moments(trainable(model)))

    for step in range(args.steps):
        batch = {name: value.to(device) for name, value in sample(model, args.batch_size).items()}
        with torch.autocast(device, torch.bfloat16, enabled=not args.fp32):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
