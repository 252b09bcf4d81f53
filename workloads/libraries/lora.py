"""Fine-tuning with peft's adapters, over a model in bf16, in 4 or 8 bits of bitsandbytes, or of torchao."""

import argparse

import torch
from arithmetic import adam_moments, say, stored, trainable
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import LlamaConfig, LlamaForCausalLM


def model_in_bf16(config):
    return LlamaForCausalLM(config).to(torch.bfloat16)


def replace_linears(model, make):
    """Replace linear layers as `from_pretrained(quantization_config=…)` does after loading the weights."""
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and "lm_head" not in name:
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], make(module))
    return model


def bitsandbytes_4bit(config):
    import bitsandbytes as bnb

    def make(linear):
        new = bnb.nn.Linear4bit(
            linear.in_features,
            linear.out_features,
            bias=False,
            compute_dtype=torch.bfloat16,
            quant_type="nf4",
        )
        new.weight = bnb.nn.Params4bit(
            linear.weight.data, requires_grad=False, quant_type="nf4", compress_statistics=True
        )
        return new

    model = replace_linears(model_in_bf16(config), make)
    model.is_loaded_in_4bit = True
    return model


def bitsandbytes_8bit(config):
    import bitsandbytes as bnb

    def make(linear):
        new = bnb.nn.Linear8bitLt(linear.in_features, linear.out_features, bias=False, has_fp16_weights=False)
        new.weight = bnb.nn.Int8Params(linear.weight.data, requires_grad=False, has_fp16_weights=False)
        return new

    model = replace_linears(model_in_bf16(config), make)
    model.is_loaded_in_8bit = True
    return model


def torchao_nf4(config):
    from torchao.quantization import to_nf4

    def make(linear):
        linear.weight = torch.nn.Parameter(to_nf4(linear.weight.data), requires_grad=False)
        return linear

    return replace_linears(model_in_bf16(config), make)


def torchao_int8(config):
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = model_in_bf16(config).to("cuda")
    quantize_(model.model, Int8WeightOnlyConfig())
    return model


BASES = {
    "bf16": model_in_bf16,
    "bnb-nf4": bitsandbytes_4bit,
    "bnb-int8": bitsandbytes_8bit,
    "torchao-nf4": torchao_nf4,
    "torchao-int8": torchao_int8,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--base", choices=BASES, default="bf16")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--optimizer", choices=["adamw", "paged-adamw8bit"], default="adamw")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()

    config = LlamaConfig(
        vocab_size=8000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=8,
        use_cache=False,
    )
    model = BASES[args.base](config).to("cuda")
    if args.base.startswith("bnb"):
        model = prepare_model_for_kbit_training(model)
    adapters = LoraConfig(
        r=args.rank,
        lora_alpha=32,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(model, adapters)
    model.print_trainable_parameters()
    learned = trainable(model)
    if args.optimizer == "adamw":
        optimizer = torch.optim.AdamW(learned, lr=1e-4)
        say(parameters=stored(model.parameters()), optimizer=adam_moments(learned))
    else:
        import bitsandbytes as bnb

        optimizer = bnb.optim.PagedAdamW8bit(learned, lr=1e-4)
        say(parameters=stored(model.parameters()))

    model.train()
    for step in range(args.steps):
        tokens = torch.randint(8000, (args.batch_size, args.sequence)).to("cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
