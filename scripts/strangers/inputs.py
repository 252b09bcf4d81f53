"""Make small inputs for training scripts whose data is unavailable: images by class, text, tables.

inputs.py images FOLDER [--classes 4] [--count 8] [--size 256] [--suffix jpg]
inputs.py text FILE [--words 20000]
inputs.py series FILE [--rows 3000] [--columns 7]
"""

import argparse
import gzip
import json
import os
import random
from datetime import datetime, timedelta
from pathlib import Path

WORDS = ["the", "a", "small", "large", "model", "step", "trains", "on", "data", "batch", "layer", "loss"]


def images(arguments: argparse.Namespace) -> None:
    """Write folders of images, one for each class."""
    for kind in range(arguments.classes):
        folder = arguments.path / f"class{kind}" if arguments.classes > 1 else arguments.path
        for number in range(arguments.count):
            name = f"{kind}_{number:04}.{arguments.suffix}"
            noise(folder / name, arguments.size, arguments.size)


def text(arguments: argparse.Namespace) -> None:
    """Write lines of a few common words."""
    chance = random.Random(0)
    arguments.path.parent.mkdir(parents=True, exist_ok=True)
    with arguments.path.open("w") as file:
        for _ in range(arguments.words // 12):
            file.write(" ".join(chance.choices(WORDS, k=12)) + " .\n")


def series(arguments: argparse.Namespace) -> None:
    """Write an hourly table as forecasting data sets have it: a date, several columns, the target last."""
    chance = random.Random(0)
    arguments.path.parent.mkdir(parents=True, exist_ok=True)
    columns = [f"x{number}" for number in range(arguments.columns - 1)] + ["OT"]
    start = datetime(2016, 7, 1)
    with arguments.path.open("w") as file:
        file.write(",".join(["date", *columns]) + "\n")
        for row in range(arguments.rows):
            values = [f"{chance.gauss(0, 1):.3f}" for _ in columns]
            file.write(",".join([str(start + timedelta(hours=row)), *values]) + "\n")


def noise(path: Path, width: int, height: int) -> None:
    """Write an image of coarse noise."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = Image.frombytes("RGB", (8, 8), random.Random(path.name).randbytes(192))
    coarse.resize((width, height)).save(path)


def links(arguments: argparse.Namespace) -> None:
    """Give one image all the names of a list."""
    first = min(each for each in arguments.path.iterdir() if each.is_file())
    for line in arguments.file.read_text().splitlines():
        name = arguments.path / line.split()[0]
        if not name.exists():
            os.link(first, name)


def captioned(arguments: argparse.Namespace) -> None:
    """Write images with a caption each, as `datasets` reads a folder of them."""
    arguments.path.mkdir(parents=True, exist_ok=True)
    with (arguments.path / "metadata.jsonl").open("w") as file:
        for number in range(arguments.count):
            noise(arguments.path / f"{number}.jpg", 512, 512)
            file.write(json.dumps({"file_name": f"{number}.jpg", "text": "a small picture"}) + "\n")


def coco(arguments: argparse.Namespace) -> None:
    """Write the two splits of 2017 with five boxes an image."""
    chance = random.Random(0)
    for split in ("train2017", "val2017"):
        pictures, boxes = [], []
        for number in range(1, arguments.count + 1):
            name = f"{number:012}.jpg"
            noise(arguments.path / split / name, 640, 480)
            pictures.append({"id": number, "file_name": name, "width": 640, "height": 480})
            for _ in range(5):
                x, y = chance.randrange(300), chance.randrange(200)
                wide, high = chance.randrange(80, 280), chance.randrange(80, 280)
                corners = [x, y, x + wide, y, x + wide, y + high, x, y + high]
                boxes.append(
                    {
                        "id": len(boxes) + 1,
                        "image_id": number,
                        "category_id": chance.choice([1, 2, 3, 90]),
                        "bbox": [x, y, wide, high],
                        "area": wide * high,
                        "iscrowd": 0,
                        "segmentation": [corners],
                    }
                )
        kinds = [{"id": kind, "name": str(kind), "supercategory": "any"} for kind in range(1, 91)]
        whole = {"images": pictures, "annotations": boxes, "categories": kinds}
        target = arguments.path / "annotations" / f"instances_{split}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(whole))


def yolo(arguments: argparse.Namespace) -> None:
    """Write images and text files of boxes, and the table that names them."""
    chance = random.Random(0)
    for split in ("train", "val"):
        for number in range(arguments.count):
            noise(arguments.path / "images" / split / f"{number}.jpg", 640, 480)
            label = arguments.path / "labels" / split / f"{number}.txt"
            label.parent.mkdir(parents=True, exist_ok=True)
            sides = [[chance.uniform(0.3, 0.7) for _ in range(4)] for _ in range(4)]
            label.write_text("\n".join(f"{chance.randrange(80)} " + " ".join(map(str, box)) for box in sides))
    names = ", ".join(f"'c{kind}'" for kind in range(80))
    folders = "".join(f"{split}: {arguments.path}/images/{split}\n" for split in ("train", "val"))
    Path("mini.yaml").write_text(f"{folders}nc: 80\nnames: [{names}]\n")


def blender(arguments: argparse.Namespace) -> None:
    """Write views with the transforms of their cameras."""
    from PIL import Image

    still = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 4], [0, 0, 0, 1]]
    for split, count in (("train", 10), ("val", 4), ("test", 8)):
        (arguments.path / split).mkdir(parents=True, exist_ok=True)
        frames = []
        for number in range(count):
            coarse = Image.frombytes("RGBA", (8, 8), random.Random(number).randbytes(256))
            coarse.resize((800, 800)).save(arguments.path / split / f"r_{number}.png")
            frames.append({"file_path": f"./{split}/r_{number}", "rotation": 0.01, "transform_matrix": still})
        views = {"camera_angle_x": 0.69, "frames": frames}
        (arguments.path / f"transforms_{split}.json").write_text(json.dumps(views))


def compressed(arguments: argparse.Namespace) -> None:
    """Write as many letters as the first hundred million bytes of an encyclopaedia."""
    arguments.path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(arguments.path, "wb", 1) as file:
        for _ in range(100):
            file.write(" ".join(random.Random(0).choices(WORDS, k=250_000)).encode()[:1_000_000])


def rows(arguments: argparse.Namespace) -> None:
    """Write rows in the formats for fine-tuning language models."""
    chance = random.Random(0)

    def messages(role: str, count: int) -> list[dict[str, str]]:
        return [{"role": role, "content": " ".join(chance.choices(WORDS, k=count))}]

    make = {
        "text": lambda: {"text": messages("user", 300)[0]["content"]},
        "chat": lambda: {"messages": messages("user", 30) + messages("assistant", 120)},
        "preferences": lambda: {
            "prompt": messages("user", 30),
            "chosen": messages("assistant", 100),
            "rejected": messages("assistant", 80),
        },
        "unpaired": lambda: {
            "prompt": messages("user", 30),
            "completion": messages("assistant", 60),
            "label": chance.random() < 0.5,
        },
    }[arguments.kind]
    arguments.path.parent.mkdir(parents=True, exist_ok=True)
    with arguments.path.open("w") as file:
        for _ in range(400):
            file.write(json.dumps(make()) + "\n")


CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def qwen2(arguments: argparse.Namespace) -> None:
    """Write a model's configuration as the hub has it, and a tokenizer with its special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config

    pairs = Tokenizer(models.BPE())
    pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=special, initial_alphabet=letters)
    pairs.train_from_iterator([" ".join(WORDS)], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=pairs, eos_token=special[2], pad_token=special[0], model_max_length=32768
    )
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(arguments.path)
    config = Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        dtype="bfloat16",
        max_position_embeddings=131072,
    )
    config.architectures = ["Qwen2ForCausalLM"]
    config.save_pretrained(arguments.path)


AUTOENCODER = {
    "_class_name": "AutoencoderKL",
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "layers_per_block": 2,
    "sample_size": 512,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
}
DENOISER = {
    "_class_name": "UNet2DConditionModel",
    "attention_head_dim": 8,
    "cross_attention_dim": 768,
    "layers_per_block": 2,
    "sample_size": 64,
}
NOISE = {
    "_class_name": "PNDMScheduler",
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "set_alpha_to_one": False,
    "skip_prk_steps": True,
    "steps_offset": 1,
}


def write(path: Path, value: object) -> None:
    """Write a value as JSON, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def vae(arguments: argparse.Namespace) -> None:
    """Write the autoencoder's configuration."""
    write(arguments.path / "config.json", AUTOENCODER)


def diffusion(arguments: argparse.Namespace) -> None:
    """Write the pipeline's configurations as the hub has them, and a tokenizer of letters."""
    from transformers import CLIPTextConfig
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    folder = arguments.path
    write(folder / "unet" / "config.json", DENOISER)
    write(folder / "vae" / "config.json", AUTOENCODER)
    write(folder / "scheduler" / "scheduler_config.json", NOISE)
    text = CLIPTextConfig(
        vocab_size=49408,
        hidden_size=768,
        intermediate_size=3072,
        num_attention_heads=12,
        projection_dim=768,
    )
    text.architectures = ["CLIPTextModel"]
    text.save_pretrained(folder / "text_encoder")
    letters = list(bytes_to_unicode().values())
    ends = ["<|startoftext|>", "<|endoftext|>"]
    known = [*letters, *(f"{letter}</w>" for letter in letters), *ends]
    write(folder / "tokenizer" / "vocab.json", {token: number for number, token in enumerate(known)})
    (folder / "tokenizer" / "merges.txt").write_text("#version: 0.2\n")
    names = {"bos_token": ends[0], "eos_token": ends[1], "unk_token": ends[1], "pad_token": ends[1]}
    kind = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77}
    write(folder / "tokenizer" / "tokenizer_config.json", kind | names)
    parts = {
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "scheduler": ["diffusers", "PNDMScheduler"],
    }
    write(folder / "model_index.json", {"_class_name": "StableDiffusionPipeline"} | parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(required=True)
    for name, make, options in (
        ("images", images, {"classes": 4, "count": 8, "size": 256, "suffix": "jpg"}),
        ("links", links, {}),
        ("captioned", captioned, {"count": 40}),
        ("coco", coco, {"count": 24}),
        ("yolo", yolo, {"count": 32}),
        ("blender", blender, {}),
        ("text", text, {"words": 20_000}),
        ("bytes", compressed, {}),
        ("rows", rows, {}),
        ("series", series, {"rows": 18_000, "columns": 7}),
        ("qwen2", qwen2, {}),
        ("diffusion", diffusion, {}),
        ("vae", vae, {}),
    ):
        kind = kinds.add_parser(name)
        kind.add_argument("path", type=Path)
        if make is links:
            kind.add_argument("file", type=Path)
        if make is rows:
            kind.add_argument("kind")
        for option, default in options.items():
            kind.add_argument(f"--{option}", type=type(default), default=default)
        kind.set_defaults(make=make)
    arguments = parser.parse_args()
    arguments.make(arguments)


if __name__ == "__main__":
    main()
