"""The models of `measurements/shrink.md` as training scripts, and the shapes of their layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ENDS = """
optimizer = torch.optim.AdamW(model.parameters())
for step, batch in enumerate(DataLoader(data, BATCH)):
    loss = loss_of(*[each.cuda() for each in batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del loss
"""
BEGINS = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.set_default_device("cuda")
"""
IMAGES = """
torch.set_default_device("cpu")
data = TensorDataset(torch.zeros(BATCH * 3, 3, 224, 224), torch.zeros(BATCH * 3, dtype=torch.long))
def loss_of(x, y): return F.cross_entropy(model(x), y)
"""
TOKENS = """
torch.set_default_device("cpu")
data = TensorDataset(torch.zeros(BATCH * 3, LENGTH, dtype=torch.long))
def loss_of(ids): return model(input_ids=ids, labels=LABELS(ids)).loss
"""
# Sides that are halved four times, as published for biomedical images.
U_NET = """
BATCH = 4
def pair(a, b):
    layers = [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())
class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        sides = [64, 128, 256, 512, 1024]
        self.down = nn.ModuleList(pair(a, b) for a, b in zip([3, *sides], sides))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * a, a, 2, stride=2) for a in sides[-2::-1])
        self.across = nn.ModuleList(pair(2 * a, a) for a in sides[-2::-1])
        self.out = nn.Conv2d(64, 2, 1)
    def forward(self, x):
        kept = []
        for place, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if place else x)
            kept.append(x)
        for up, across, old in zip(self.up, self.across, kept[-2::-1]):
            x = across(torch.cat((old, up(x)), 1))
        return self.out(x)
model = UNet()
"""
SEGMENTS = """
torch.set_default_device("cpu")
data = TensorDataset(torch.zeros(12, 3, 256, 256), torch.zeros(12, 256, 256, dtype=torch.long))
def loss_of(x, y): return F.cross_entropy(model(x), y)
"""


@dataclass(frozen=True)
class Model:
    """A training script in three parts, and the prefix of its repeated blocks."""

    build: str
    data: str
    blocks: str = ""

    @property
    def script(self) -> str:
        return BEGINS + self.build + self.data + ENDS


MODELS = {
    "ResNet-50, 32 images": Model(
        "BATCH = 32\nimport torchvision\nmodel = torchvision.models.resnet50()", IMAGES
    ),
    "ViT-B/16, 32 images": Model(
        "BATCH = 32\nimport torchvision\nmodel = torchvision.models.vit_b_16()", IMAGES, "encoder.layers."
    ),
    "BERT-base, 16 x 256 tokens": Model(
        "BATCH, LENGTH, LABELS = 16, 256, lambda ids: ids[:, 0]\nfrom transformers import BertConfig, "
        "BertForSequenceClassification\nmodel = BertForSequenceClassification(BertConfig())",
        TOKENS,
        "bert.encoder.layer.",
    ),
    "GPT-2, 4 x 1024 tokens": Model(
        "BATCH, LENGTH, LABELS = 4, 1024, lambda ids: ids\nfrom transformers import GPT2Config, GPT2LMHeadModel\n"
        "model = GPT2LMHeadModel(GPT2Config())",
        TOKENS,
        "transformer.h.",
    ),
    "U-Net, 4 images of 256 x 256": Model(U_NET, SEGMENTS),
    "a Llama of 1.24 G parameters, 1 x 1024 tokens": Model(
        "BATCH, LENGTH, LABELS = 1, 1024, lambda ids: ids\nfrom transformers import LlamaConfig, LlamaForCausalLM\n"
        "model = LlamaForCausalLM(LlamaConfig(vocab_size=128256, hidden_size=2048, intermediate_size=8192,\n"
        "    num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=True))",
        TOKENS,
        "model.layers.",
    ),
}


@dataclass(frozen=True)
class Layers:
    """Shapes, as numbers of outputs and inputs, of layers that no other module shares a weight with."""

    # Linear layers in the repeated blocks, all linear layers, and all matrices in the repeated blocks.
    adapted: list[tuple[int, int]]
    linear: list[tuple[int, int]]
    matrices: list[tuple[int, int]]


def elements(shapes: list[tuple[int, int]]) -> int:
    return sum(outputs * inputs for outputs, inputs in shapes)


def layers(model: Model) -> Layers:
    """Build the model without memory, and list its layers."""
    import torch
    from torch import nn

    within: dict[str, Any] = {}
    try:
        exec((BEGINS + model.build).replace('device("cuda")', 'device("meta")'), within)
    finally:
        torch.set_default_device("cpu")
    built = within["model"]
    shared = [id(each) for module in built.modules() for each in module._parameters.values()]
    found = Layers([], [], [])
    for path, module in built.named_modules():
        is_inside = bool(model.blocks) and path.startswith(model.blocks)
        weight = module._parameters.get("weight")
        is_turned = type(module).__name__ == "Conv1D"
        if (type(module) is nn.Linear or is_turned) and shared.count(id(weight)) == 1:
            outputs, inputs = weight.shape[::-1] if is_turned else weight.shape
            found.linear.append((outputs, inputs))
            if is_inside:
                found.adapted.append((outputs, inputs))
        if is_inside:
            own = [each for each in module._parameters.values() if each is not None and each.dim() == 2]
            found.matrices.extend((each.shape[0], each.shape[1]) for each in own)
    return found
