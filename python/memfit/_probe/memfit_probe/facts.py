"""What a plan has to know of a training or of a model at work, beyond its batches and blocks: told once, at
the end.
"""

import functools
import itertools
import weakref

from .dividing import Division
from .independence import IGNORED
from .inputs import is_compiled, leaves, parts

TURNS = (
    "its optimizers take turns within a batch: one steps before the other's backward, so all pieces would have to go through "
    "for each of them"
)
CLIPPED = "gradients are clipped after the backward, when all of them are gone"
# Of a data set's items so many lengths are told.
MAX_LENGTHS = 1024


class Facts:
    """What was seen on the way."""

    def __init__(self, session):
        self.session = session
        # Numbers that a script put into its model: it goes on from weights that were trained before.
        self.loaded = 0
        self.division = Division(session)

    def forget(self):
        """Nothing has happened yet; what was loaded before the fork stays so."""
        self.cached = 0
        self.tokens = 0
        self.pictures = (0, 0)
        # Whether attention's weights were seen as a matrix, and labels that are left out of a loss.
        self.attends = False
        self.ignores = False
        # The optimizer that was first asked to step, for which piece one was last, and whether a backward
        # came after that.
        self.asked_first = None
        self.asked_for = None
        self.backward_since = False
        self.alternates = False
        # Backwards that add up gradients, how many there were when each optimizer last stepped, the most from
        # one of its steps to the next, and how many pieces of a batch a library's own settings have for
        # memfit's sake.
        self.backwards = 0
        self.stepped_after = weakref.WeakKeyDictionary()
        self.most_backwards = 0
        self.pieces = 1
        # Whether a model's training forward drew random numbers, and how many the card had drawn before the
        # one that is under way.
        self.draws = False
        self.drawn = None
        # What shows that parts of a batch train as the whole does.
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
        """Weights of attention that is written out are a softmax of a matrix for each head, with a
        gradient.
        """
        original, facts, is_compiling = home.softmax, self, self.session.torch.compiler.is_compiling

        @functools.wraps(original)
        def softmax(scores, *args, **kwargs):
            if not facts.attends and not is_compiling() and isinstance(scores, facts.session.torch.Tensor):
                facts.attends = scores.requires_grad and is_attention(tuple(scores.shape))
            return original(scores, *args, **kwargs)

        home.softmax = softmax

    def forward_begins(self, model):
        """An outermost module begins."""
        self.drawn = self._drawn() if model.training and not self.draws else None

    def forward_ends(self):
        """It has ended."""
        self.draws = self.draws or (self.drawn is not None and self._drawn() != self.drawn)

    def _drawn(self):
        """How far the cards' random numbers have gone."""
        cuda = self.session.torch.cuda
        return (
            [generator.get_offset() for generator in cuda.default_generators]
            if cuda.is_initialized()
            else None
        )

    def backward(self):
        """A backward begins."""
        self.backward_since = True
        self.backwards += 1

    def appeared(self, optimizer):
        """An optimizer was made: what came before was not for it."""
        self.stepped_after[optimizer] = self.backwards

    def counts(self, optimizer):
        """An optimizer is asked to step, if only for a piece of a batch: how many backwards came since it
        last was.
        """
        since = self.backwards - self.stepped_after.get(optimizer, 0)
        self.most_backwards = max(self.most_backwards, since)
        self.stepped_after[optimizer] = self.backwards

    def asked_to_step(self, optimizer, batch):
        """An optimizer is asked to step: whether it is seen for the first time that it takes turns with
        another one within a batch, each after a backward of its own. Then pieces of the batch would have to
        go through for each of them.
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
        """What an outermost module is called with: a language model's cache may be among it."""
        for value in itertools.islice(arguments[1].values() if arguments[1] else (), 32):
            layers = getattr(value, "layers", None)
            if isinstance(layers, list) and hasattr(value, "get_seq_length"):
                self.cached = max(self.cached, sum(nbytes(vars(layer)) for layer in layers))
                self.tokens = max(self.tokens, int(value.get_seq_length()))

    def batch(self, batch, trains):
        """What a loader gave: pictures have four dimensions, and labels of -100 are left out of losses."""
        for value in leaves(batch, 16):
            if not self.ignores and str(getattr(value, "dtype", "")) == "torch.int64":
                self.ignores = not value.is_cuda and bool((value == IGNORED).any())
            if getattr(value, "ndim", 0) == 4 and value.shape[1] <= 4:
                self.pictures = max(
                    self.pictures, tuple(value.shape[-2:]), key=lambda sides: sides[0] * sides[1]
                )
        if trains:
            self.division.given(batch, self.ignores)

    def tell(self, model, each):
        """As fields of the message; a model may be several, each of which is called by itself."""
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
            "alternates": self.alternates,
            "undivided": self.division.why_not(),
            "backwards": -(-self.most_backwards // self.pieces),
            "ignores": self.ignores,
            "compiled": any(map(is_compiled, each)),
            "draws": self.draws or drops(model),
            "processes": torch.distributed.get_world_size() if several else 1,
        }


def drops(model):
    """Whether some module drops numbers at random while it trains, as its own fields say: `p`, `dropout`,
    `attn_drop`.
    """
    return any(
        isinstance(value, float) and value > 0 and ("drop" in name or "drop" in type(each).__name__.lower())
        for each in parts(model)
        if each.training
        for name, value in vars(each).items()
    )


def is_attention(shape):
    """Whether a softmax over the last of these dimensions may be that of attention: rows of weights for many
    queries.
    """
    return len(shape) in (3, 4) and shape[-2] > 1 and shape[-1] > 1


def nbytes(table):
    """Bytes of the tensors in an object's own fields."""
    fields = [each for value in table.values() for each in (value if isinstance(value, list) else [value])]
    return sum(getattr(each, "nbytes", 0) or 0 for each in fields)


def lengths(sizes):
    """Sizes of items, as many as tell how they differ; nothing where they are alike."""
    if len(set(sizes.values())) < 2:
        return []
    return list(itertools.islice(sizes.values(), MAX_LENGTHS))


def state_bytes(optimizer):
    """Bytes of the card that an optimizer keeps between steps."""
    values = (
        value
        for kept in optimizer.state.values()
        for value in (kept.values() if isinstance(kept, dict) else ())
    )
    return sum(value.nbytes for value in values if getattr(value, "is_cuda", False))


def output_bytes(output):
    """Bytes of a block's output."""
    return sum(getattr(value, "nbytes", 0) or 0 for value in leaves(output, 64))
