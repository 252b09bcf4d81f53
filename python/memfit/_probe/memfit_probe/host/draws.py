"""Random numbers that belong to samples: a sample has the same ones in a whole batch and in a part of it.

Each operation that draws is known by the line that calls it and by how often that line has drawn since the
last backward pass. Where each row of its result is drawn by itself, a row's numbers follow from that, from
the optimizer's step, and from how many rows were drawn there in the parts before. So the second part of a
batch draws what the second half of the whole batch drew.
"""

import functools
import hashlib
import linecache
import os
import sys

# Operations that draw each number by itself, without their last underscore and what tells variants apart.
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
# Dropout whose mask is drawn within a kernel, by the name of its share.
_FUSED = {"native_dropout": "p", "_fused_dropout": "p"}
# Weights are drawn as a whole: no part of a batch has fewer of them. So is what has more rows than a batch.
_INITIAL = os.path.join("torch", "nn", "init.py:")
MAX_ROWS = 1 << 12
# Folders whose frames stand between an operation and the line that calls it.
_BETWEEN = (
    os.path.dirname(os.path.abspath(__file__)),
    os.path.join("torch", "_dynamo"),
    os.path.join("torch", "overrides.py"),
    os.path.join("torch", "_compile.py"),
    os.path.join("torch", "utils", "_"),
)


class Draws:
    """How often each line has drawn."""

    def __init__(self, torch):
        self.torch = torch
        self.step = 0
        # Since the last backward, and rows since the last step.
        self.ordinals = {}
        self.rows = {}
        # What the parts before have drawn; this part's go there with its backward.
        self.rows_before = {}

    def arm(self):
        """From here on, in this thread."""
        mode = _mode(self)
        mode.__enter__()
        self._keep_with_state()

    def part_is_over(self):
        """A backward pass has ended."""
        for key, rows in self.rows.items():
            self.rows_before[key] = self.rows_before.get(key, 0) + rows
        self.ordinals.clear()
        self.rows.clear()

    def stepped(self):
        """An optimizer has stepped."""
        self.part_is_over()
        self.rows_before.clear()
        self.step += 1

    def _keep_with_state(self):
        """Who puts the generator's state back, as activation checkpointing does, draws the same again."""
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
        """How many rows are drawn each by itself; None where they are not, or are too many."""
        bare = name.rstrip("_")
        if bare not in _EACH_ITS_OWN or not isinstance(drawn, self.torch.Tensor) or drawn.ndim == 0:
            return None
        if bare == "multinomial" and drawn.ndim == 1:
            return None
        return drawn.shape[0] if 0 < drawn.shape[0] <= MAX_ROWS else None

    def _of_row(self, value, rows, row, ndim):
        if isinstance(value, self.torch.Tensor) and value.ndim == ndim and value.shape[0] == rows:
            return value[row : row + 1]
        # The sizes that a factory is told.
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
        """Draws in the place of the operations that draw."""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if drawing not in func.tags:
                return func(*args, **(kwargs or {}))
            return draws.draw(func, args, kwargs or {})

    return Drawing()


def _site():
    """The line that draws, by its text: a change of the script moves it, and leaves it as it is."""
    frame = sys._getframe(2)
    while frame is not None and any(part in frame.f_code.co_filename for part in _BETWEEN):
        frame = frame.f_back
    if frame is None:
        return ""
    code = frame.f_code
    return f"{code.co_filename}:{code.co_name}:{linecache.getline(code.co_filename, frame.f_lineno).strip()}"


def _with(func, args, kwargs, name, value):
    """The same arguments with another value for one of them."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.name == name and index < len(args):
            return (*args[:index], value, *args[index + 1 :]), kwargs
    return args, {**kwargs, name: value}
