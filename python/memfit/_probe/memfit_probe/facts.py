"""Facts for a plan about a training run or inference, besides batches and blocks; sent once, at the end."""

import functools
import itertools
import weakref

from . import sparse
from .dividing import Division
from .independence import IGNORED
from .inputs import is_compiled, leaves, parts

TURNS = (
    "its optimizers take turns within a batch: one steps before the other's backward pass, so every "
    "micro-batch would have to run once for each of them"
)
CLIPPED = "gradients are clipped after the backward pass, when all of them are already freed"
# Levers that change a batch as it comes from a loader.
ARRIVING = ("resize-before-upload", "shorter-sequences")
# Maximum number of sample lengths that are reported.
MAX_LENGTHS = 1024


class Facts:
    """The facts seen so far."""

    def __init__(self, session):
        self.session = session
        # Number of parameters loaded into the model, which show that it is pretrained.
        self.loaded = 0
        self.division = Division(session)

    def forget(self):
        """Reset the state; weights loaded before the fork still count."""
        self.cached = 0
        self.tokens = 0
        self.pictures = (0, 0)
        # Length of the longest sequence of tokens from a loader.
        self.sequence = 0
        # Set if attention weights were seen as a matrix, and if labels are ignored by the loss.
        self.attends = False
        self.ignores = False
        # The first optimizer that stepped, the batch of the last step, and a flag for a backward pass since.
        self.asked_first = None
        self.asked_for = None
        self.backward_since = False
        self.alternates = False
        # Number of backward passes that accumulate gradients, their count at each optimizer's last step, the
        # largest number between two steps of one optimizer, and the number of micro-batches that a library's
        # own settings make for memfit.
        self.backwards = 0
        self.stepped_after = weakref.WeakKeyDictionary()
        self.most_backwards = 0
        self.pieces = 1
        # Set if a model's training forward pass drew random numbers, and the generators' offsets before the
        # current one.
        self.draws = False
        self.drawn = None
        # The proof that micro-batches train like the whole batch.
        self.division.forget()

    def arm(self):
        self.division.arm()
        for home in (self.session.torch, self.session.torch.Tensor):
            self._arm_softmax(home)
        module, facts = self.session.torch.nn.Module, self
        original = module.load_state_dict

        def load_state_dict(self, *args, **kwargs):
            result = original(self, *args, **kwargs)
            facts.loaded += sum(parameter.numel() for parameter in self.parameters())
            return result

        module.load_state_dict = load_state_dict

    def _arm_softmax(self, home):
        """Detect written-out attention by a softmax over a matrix per head, with a gradient."""
        original, facts, is_compiling = home.softmax, self, self.session.torch.compiler.is_compiling

        @functools.wraps(original)
        def softmax(scores, *args, **kwargs):
            if not facts.attends and not is_compiling() and isinstance(scores, facts.session.torch.Tensor):
                facts.attends = scores.requires_grad and is_attention(tuple(scores.shape))
            return original(scores, *args, **kwargs)

        home.softmax = softmax

    def forward_begins(self, model):
        """Record that an outermost module starts."""
        if self.session.planned.trains_on(model):
            self.division.effects.goes_on()
        self.drawn = self._drawn() if model.training and not self.draws else None

    def forward_ends(self):
        """Record that it has ended."""
        self.draws = self.draws or (self.drawn is not None and self._drawn() != self.drawn)

    def _drawn(self):
        """Return the offsets of the GPU generators."""
        cuda = self.session.torch.cuda
        return (
            [generator.get_offset() for generator in cuda.default_generators]
            if cuda.is_initialized()
            else None
        )

    def backward(self):
        """Record a backward pass."""
        self.backward_since = True
        self.backwards += 1

    def appeared(self, optimizer):
        """Record a new optimizer: earlier backward passes were not for it."""
        self.stepped_after[optimizer] = self.backwards

    def counts(self, optimizer):
        """Record an optimizer step, also one of a micro-batch only, and the backward passes since the last
        one.
        """
        since = self.backwards - self.stepped_after.get(optimizer, 0)
        self.most_backwards = max(self.most_backwards, since)
        self.stepped_after[optimizer] = self.backwards

    def asked_to_step(self, optimizer, batch):
        """Record an optimizer step. Return `True` the first time that two optimizers are seen to take turns
        within a batch, each after its own backward pass: micro-batches would then have to run once for each
        of them.
        """
        self.counts(optimizer)
        self.division.stepped()
        first = self.asked_first() if self.asked_first is not None else None
        after_its_own = self.backward_since and self.asked_for is batch
        if first is None:
            self.asked_first = weakref.ref(optimizer)
        self.asked_for, self.backward_since = batch, False
        if first is None or first is optimizer or self.alternates or not after_its_own:
            return False
        self.alternates = True
        return True

    def saw(self, arguments):
        """Record a language model's key-value cache among the arguments of an outermost module."""
        for value in itertools.islice(arguments[1].values() if arguments[1] else (), 32):
            layers = getattr(value, "layers", None)
            if isinstance(layers, list) and hasattr(value, "get_seq_length"):
                self.cached = max(self.cached, sum(nbytes(vars(layer)) for layer in layers))
                self.tokens = max(self.tokens, int(value.get_seq_length()))

    def batch(self, batch, trains):
        """Record the shape of images (four dimensions) in a loader's batch, the length of sequences of tokens
        (integers in two dimensions), and labels of -100, which losses ignore.
        """
        for value in leaves(batch, 16):
            if not self.ignores and str(getattr(value, "dtype", "")) == "torch.int64":
                with self.division.aside():
                    self.ignores = not value.is_cuda and bool((value == IGNORED).any())
            if getattr(value, "ndim", 0) == 2 and str(value.dtype) in ("torch.int64", "torch.int32"):
                self.sequence = max(self.sequence, value.shape[1])
            if getattr(value, "ndim", 0) == 4 and value.shape[1] <= 4:
                self.pictures = max(
                    self.pictures, tuple(value.shape[-2:]), key=lambda sides: sides[0] * sides[1]
                )
        if trains:
            self.division.given(batch, self.ignores)

    def collect(self, model, each):
        """Return the facts as fields of the message; a model may consist of several that are called
        separately.
        """
        torch = self.session.torch
        parameters = list(model.parameters()) if model is not None else []
        named = any(getattr(getattr(one, "config", None), "_name_or_path", "") for one in each)
        numbers = sum(parameter.numel() for parameter in parameters)
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        return {
            "parameters": sum(parameter.nbytes for parameter in parameters),
            "linears": sum(part.weight.nbytes for part in parts(model) if type(part) is torch.nn.Linear),
            "pretrained": named or 2 * self.loaded > numbers > 0,
            "cached": self.cached,
            "tokens": self.tokens,
            "pictures": list(self.pictures),
            "sequence": self.sequence,
            "alternates": self.alternates,
            "undivided": self.division.why_not(),
            "backwards": -(-self.most_backwards // self.pieces),
            "ignores": self.ignores,
            "compiled": any(map(is_compiled, each)),
            "draws": self.draws or drops(model),
            "processes": torch.distributed.get_world_size() if several else 1,
        }


def drops(model):
    """Return `True` if a module in training has dropout, according to its attributes: `p`, `dropout`,
    `attn_drop`.
    """
    return any(
        isinstance(value, float) and value > 0 and ("drop" in name or "drop" in type(each).__name__.lower())
        for each in parts(model)
        if each.training
        for name, value in vars(each).items()
    )


def is_attention(shape):
    """Return `True` if a softmax over the last dimension of this shape may be attention: rows of weights for
    several queries.
    """
    return len(shape) in (3, 4) and shape[-2] > 1 and shape[-1] > 1


def nbytes(table):
    """Return the bytes of the tensors in an object's attributes."""
    fields = [each for value in table.values() for each in (value if isinstance(value, list) else [value])]
    return sum(map(sparse.nbytes, fields))


def lengths(sizes):
    """Return a sample of the item sizes if they differ, else nothing."""
    if len(set(sizes.values())) < 2:
        return []
    return list(itertools.islice(sizes.values(), MAX_LENGTHS))


def output_bytes(output):
    """Return the bytes of a block's output."""
    return sum(map(sparse.nbytes, leaves(output, 64)))
