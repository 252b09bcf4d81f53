"""The memory techniques of one public ablation, one on top of the other, in plain PyTorch.

torchtune's README (v0.6, "Memory and Training Efficiency") lists, for a full fine-tune of Llama 3.2 3B in
bfloat16 on one A100 with 80 GB, batch 2 and 4096 tokens, what each of these techniques did to the peak of
active memory and to the tokens a second, each added to those above it. This is a model of that shape,
rewritten: it has the sizes of the model, and does what the techniques do, with random weights and tokens,
packed of documents as long as those of the recipe's data set are in the mean (Alpaca's examples have 535
bytes of text, as its hub's sizes say: about 120 tokens). Whose 8-bit AdamW the last row has, the README does
not say, and torchtune takes either: torchao's unless `--eight-bit bitsandbytes` says otherwise.

    memfit run --gpu a100-80gb --steps 3 -- python scripts/accuracy/ablation.py --level 3
"""

import argparse
import contextlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

LEVELS = (
    "packed baseline",
    "+ compile",
    "+ chunked CE",
    "+ activation checkpointing",
    "+ optimizer in backward",
    "+ activation offload",
    "+ 8-bit AdamW",
)
COMPILE, CHUNKS, CHECKPOINT, IN_BACKWARD, OFFLOAD, EIGHT_BIT = range(1, 7)

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD, HIDDEN, VOCABULARY = 3072, 28, 24, 8, 128, 8192, 128256


compiled_attention = torch.compile(flex_attention, dynamic=False)


@torch.compiler.disable(recursive=False)
def attend(query, key, value, mask):
    """As in the recipe, compiled by itself at each level, and not as a part of what is compiled around it."""
    return compiled_attention(query, key, value, block_mask=mask)


def packed(batch, length, document):
    """Return the attention blocks that remain if documents of one length are packed and tokens only see their
    own.
    """
    documents = (torch.arange(length) // document).expand(batch, -1).contiguous()

    def allowed(row, _head, query, key):
        return (query >= key) & (documents[row, query] == documents[row, key])

    mask = create_block_mask(allowed, batch, None, length, length, device="cpu").to("cuda")
    documents = documents.cuda()
    return mask


class Norm(nn.Module):
    """RMSNorm in single precision, as eager code spells it out."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        wide = x.float()
        normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x)
        return normed * self.scale


def rotate(x, cosine, sine):
    """Rotary positions, on pairs of neighbours, in single precision."""
    even, odd = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    turned = torch.stack((even * cosine - odd * sine, odd * cosine + even * sine), -1)
    return turned.flatten(-2).type_as(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = Norm(), Norm()
        self.q = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.k = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.v = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.output = nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x, cosine, sine, mask):
        batch, length, _ = x.shape
        normed = self.attention_norm(x)
        q = rotate(self.q(normed).view(batch, length, HEADS, HEAD), cosine, sine)
        k = rotate(self.k(normed).view(batch, length, KV_HEADS, HEAD), cosine, sine)
        v = self.v(normed).view(batch, length, KV_HEADS, HEAD)
        # Each key and value head serves several query heads.
        k, v = (
            t.unsqueeze(3).expand(-1, -1, -1, HEADS // KV_HEADS, -1).reshape(batch, length, HEADS, HEAD)
            for t in (k, v)
        )
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if mask is None:
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            attended = attend(q, k, v, mask)
        x = x + self.output(attended.transpose(1, 2).reshape(batch, length, -1))
        normed = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = Norm()
        self.checkpointed = False

    def forward(self, tokens, cosine, sine, mask):
        x = self.embedding(tokens)
        for block in self.blocks:
            if self.checkpointed:
                x = checkpoint(block, x, cosine, sine, mask, use_reentrant=False)
            else:
                x = block(x, cosine, sine, mask)
        return self.norm(x)

    def logits(self, hidden):
        return F.linear(hidden, self.embedding.weight)


def cross_entropy(logits, labels):
    return F.cross_entropy(logits.float(), labels, reduction="sum")


def whole(model, hidden):
    """All logits at once, in single precision, as the model itself gives them without chunks."""
    return [model.logits(hidden).float()]


def chunked(model, hidden):
    """A piece of the logits at a time, each turned into single precision within the loss."""
    return [model.logits(part) for part in hidden.chunk(8, 1)]


class Offload(torch.autograd.graph.saved_tensors_hooks):
    """Saved activations go to page-locked memory on a stream of their own, and come back on it.

    As in the recipe, only streams wait for each other, and the allocator is asked nothing: the last few saved
    tensors stay until their copies are done, and what came back stays until the node behind the one that used
    it has been queued.
    """

    KEPT_BEFORE = 5

    # Smaller tensors are not offloaded; among them the rotary angles, which are not activations.
    def __init__(self, least=2 << 20):
        self.stream = torch.cuda.Stream()
        self.saved = 0
        self.leaving = {}
        self.returned = []
        self.buffers = {}
        super().__init__(lambda tensor: self._leave(tensor, least), self._return)

    def _leave(self, tensor, least):
        self.saved += 1
        if tensor.nbytes < least or not tensor.is_cuda or isinstance(tensor, nn.Parameter):
            return tensor
        self._let_go()
        self._settle(self.saved - self.KEPT_BEFORE)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            waiting = self.buffers.setdefault((tensor.shape, tensor.dtype), [])
            host = waiting.pop() if waiting else torch.empty_like(tensor, device="cpu", pin_memory=True)
            host.copy_(tensor, non_blocking=True)
        self.leaving[self.saved] = (tensor, self.stream.record_event())
        return host, self.saved, tensor.device

    def _settle(self, last):
        """Lets tensors go that left long enough ago, once their copies are done."""
        for number in [number for number in self.leaving if number <= last]:
            torch.cuda.current_stream().wait_event(self.leaving.pop(number)[1])

    def _let_go(self):
        """Lets tensors go that were used, once they have been."""
        for own in self.returned:
            self.stream.wait_event(own.pop())
            # The node's hook, which lives as long as the graph, knows this list.
            own.clear()
        self.returned.clear()

    def _return(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        host, number, device = packed
        if number in self.leaving:
            tensor = self.leaving[number][0]
        else:
            with torch.cuda.stream(self.stream):
                tensor = host.to(device, non_blocking=True)
            torch.cuda.current_stream().wait_stream(self.stream)
            own = [tensor]

            def used(*_):
                # The tensor of the previous node; this node's own stays until the next has been queued.
                self._let_go()
                own.append(torch.cuda.current_stream().record_event())
                self.returned.append(own)

            torch._C._current_autograd_node().register_hook(used)
        self._settle(self.saved)
        self.buffers[(host.shape, host.dtype)].append(host)
        return tensor


def optimizers(model, level, library):
    """The optimizers to step, and those that step by themselves in the backward."""
    if level >= EIGHT_BIT:
        if library == "torchao":
            try:
                from torchao.optim import AdamW8bit
            except ImportError:  # before 0.10
                from torchao.prototype.low_bit_optim import AdamW8bit
        else:
            from bitsandbytes.optim import AdamW8bit

        def made(parameters):
            return AdamW8bit(parameters, lr=2e-5)

    else:

        def made(parameters):
            return torch.optim.AdamW(parameters, lr=2e-5, fused=True)

    if level < IN_BACKWARD:
        return [made(model.parameters())]
    own = {parameter: made([parameter]) for parameter in model.parameters()}

    def step(parameter):
        own[parameter].step()
        own[parameter].zero_grad()

    for parameter in own:
        parameter.register_post_accumulate_grad_hook(step)
    model.own_optimizers = own
    return []


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--level", type=int, choices=range(len(LEVELS)), default=0)
    arguments.add_argument("--batch", type=int, default=2)
    arguments.add_argument("--length", type=int, default=4096)
    arguments.add_argument("--steps", type=int, default=4)
    arguments.add_argument(
        "--document", type=int, default=120, help="0: no documents, fused causal attention"
    )
    arguments.add_argument("--eight-bit", choices=["torchao", "bitsandbytes"], default="torchao")
    arguments.add_argument(
        "--chunked", action="store_true", help="the recipe's loss in chunks, at whichever level"
    )
    arguments.add_argument(
        "--divide-loss",
        action="store_true",
        help="the loss divided by the tokens, not the gradients, at whichever level",
    )
    given = arguments.parse_args()
    level = given.level

    # As in the recipe, only the model is made with this default: an optimizer's own tensors are in single
    # precision.
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Model()
    torch.set_default_dtype(torch.float32)
    model.checkpointed = level >= CHECKPOINT
    loss = cross_entropy
    if level >= COMPILE:
        for block in model.blocks:
            block.compile()
        # That release compiles only the chunked loss: it discards a compiled plain one.
        loss = torch.compile(cross_entropy) if level >= CHUNKS else cross_entropy
    if given.chunked and level < CHUNKS:
        loss = torch.compile(cross_entropy)
    stepped = optimizers(model, level, given.eight_bit)

    angles = torch.outer(
        torch.arange(given.length, dtype=torch.float32),
        500_000.0 ** -(torch.arange(0, HEAD, 2).float() / HEAD),
    )
    cosine, sine = (f(angles)[None, :, None, :].cuda() for f in (torch.cos, torch.sin))
    mask = packed(given.batch, given.length, given.document) if given.document else None
    head = chunked if level >= CHUNKS or given.chunked else whole
    divide_loss = level >= IN_BACKWARD or given.divide_loss
    offload = Offload() if level >= OFFLOAD else contextlib.nullcontext()
    for _ in range(given.steps):
        tokens = torch.randint(VOCABULARY, (given.batch, given.length)).cuda()
        labels = torch.randint(VOCABULARY, (given.batch, given.length)).cuda()
        with offload:
            hidden = model(tokens, cosine, sine, mask)
        logits = head(model, hidden)
        pieces = zip(logits, labels.chunk(len(logits), 1), strict=True)
        total = sum(loss(piece.flatten(0, 1), label.reshape(-1)) for piece, label in pieces)
        if divide_loss:
            total = total / labels.numel()
        # `zip` holds a reference to its last pair.
        del logits, hidden, pieces
        total.backward()
        if not divide_loss:
            # The recipe divides the gradients by the number of tokens, not the loss.
            for parameter in model.parameters():
                parameter.grad *= 1 / labels.numel()
        for optimizer in stepped:
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
