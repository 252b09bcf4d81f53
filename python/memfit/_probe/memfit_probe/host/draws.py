"""Random numbers per sample: a sample gets the same ones in a whole batch and in a micro-batch.

Each random operation is identified by the line that calls it and by its count since the last backward pass.
If each row of its result is drawn independently, a row's seed follows from that, from the optimizer step, and
from the number of rows drawn there in earlier micro-batches. So the second micro-batch draws what the second
half of the whole batch drew.
"""

import functools
import hashlib
import linecache
import os
import sys

# Operations that draw each element independently, without trailing underscore and overload.
_EACH_ITS_OWN = frozenset(
    [
        "bernoulli",
        "binomial",
        "cauchy",
        "exponential",
        "geometric",
        "log_normal",
        "multinomial",
        "normal",
        "normal_functional",
        "poisson",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "random",
        "uniform",
    ]
)
# Operations with dropout inside a kernel, and the name of its probability.
_FUSED = {"native_dropout": "p", "_fused_dropout": "p"}
# Weight initialisation is drawn as a whole, since micro-batches do not divide weights. So are tensors with
# more rows than a batch.
_INITIAL = os.path.join("torch", "nn", "init.py:")
MAX_ROWS = 1 << 12
# Folders of frames between an operation and the line that calls it.
_BETWEEN = (
    os.path.dirname(os.path.abspath(__file__)),
    os.path.join("torch", "_dynamo"),
    os.path.join("torch", "overrides.py"),
    os.path.join("torch", "_compile.py"),
    os.path.join("torch", "utils", "_"),
)


class Draws:
    """Counts the draws of each line."""

    def __init__(self, torch):
        self.torch = torch
        self.step = 0
        # Draws since the last backward pass, and rows since the last step.
        self.ordinals = {}
        self.rows = {}
        # Rows drawn by earlier micro-batches; those of the current one are added after its backward pass.
        self.rows_before = {}

    def arm(self):
        """Activate it in this thread."""
        mode = _mode(self)
        mode.__enter__()
        self._keep_with_state()

    def part_is_over(self):
        """End a micro-batch, after a backward pass."""
        for key, rows in self.rows.items():
            self.rows_before[key] = self.rows_before.get(key, 0) + rows
        self.ordinals.clear()
        self.rows.clear()

    def stepped(self):
        """Record an optimizer step."""
        self.part_is_over()
        self.rows_before.clear()
        self.step += 1

    def _keep_with_state(self):
        """Save the counts with the random state, so that restoring it (as activation checkpointing does)
        repeats the draws.
        """
        torch = self.torch
        get, put = torch.random.get_rng_state, torch.random.set_rng_state

        @functools.wraps(get)
        def get_rng_state():
            state = get()
            state.memfit_draws = (dict(self.ordinals), dict(self.rows))
            return state

        @functools.wraps(put)
        def set_rng_state(new_state):
            kept = getattr(new_state, "memfit_draws", None)
            if kept is not None:
                self.ordinals, self.rows = dict(kept[0]), dict(kept[1])
            return put(new_state)

        for module in (torch, torch.random):
            module.get_rng_state, module.set_rng_state = get_rng_state, set_rng_state

    def draw(self, func, args, kwargs):
        name = func._schema.name.rpartition("::")[2]
        if name in _FUSED:
            return func(*_with(func, args, kwargs, _FUSED[name], 0.0)[0], **kwargs)
        site = _site()
        ordinal = self.ordinals.get(site, 0)
        self.ordinals[site] = ordinal + 1
        key = (site, ordinal)
        if "generator" in kwargs:
            kwargs = {**kwargs, "generator": None}
        self._seed(key, 0)
        drawn = func(*args, **kwargs)
        rows = None if _INITIAL in site else self._rows(name, drawn)
        if rows is None:
            return drawn
        before = self.rows_before.get(key, 0)
        self.rows[key] = rows
        in_place = bool(args) and drawn is args[0]
        for row in range(rows):
            self._seed(key, 1 + before + row)
            here = tuple(self._of_row(value, rows, row, drawn.ndim) for value in args)
            made = func(*here, **kwargs)
            if not in_place:
                drawn[row : row + 1].copy_(made)
        return drawn

    def _rows(self, name, drawn):
        """Return the number of rows drawn independently; None if they are not, or too many."""
        bare = name.rstrip("_")
        if bare not in _EACH_ITS_OWN or not isinstance(drawn, self.torch.Tensor) or drawn.ndim == 0:
            return None
        if bare == "multinomial" and drawn.ndim == 1:
            return None
        return drawn.shape[0] if 0 < drawn.shape[0] <= MAX_ROWS else None

    def _of_row(self, value, rows, row, ndim):
        if isinstance(value, self.torch.Tensor) and value.ndim == ndim and value.shape[0] == rows:
            return value[row : row + 1]
        # The size argument of a factory function.
        if isinstance(value, (list, tuple)) and len(value) == ndim and value[0] == rows:
            return [1, *value[1:]]
        return value

    def _seed(self, key, row):
        text = repr((key, self.step, row)).encode()
        seed = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")
        self.torch.default_generator.manual_seed(seed)


def _mode(draws):
    torch = draws.torch
    drawing = torch.Tag.nondeterministic_seeded

    class Drawing(torch.utils._python_dispatch.TorchDispatchMode):
        """Replaces random operations."""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if drawing not in func.tags:
                return func(*args, **(kwargs or {}))
            return draws.draw(func, args, kwargs or {})

    return Drawing()


def _site():
    """Identify the line that draws by its text, which stays the same when a change moves it."""
    frame = sys._getframe(2)
    while frame is not None and any(part in frame.f_code.co_filename for part in _BETWEEN):
        frame = frame.f_back
    if frame is None:
        return ""
    code = frame.f_code
    return f"{code.co_filename}:{code.co_name}:{linecache.getline(code.co_filename, frame.f_lineno).strip()}"


def _with(func, args, kwargs, name, value):
    """Return the arguments with another value for one of them."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.name == name and index < len(args):
            return (*args[:index], value, *args[index + 1 :]), kwargs
    return args, {**kwargs, name: value}
