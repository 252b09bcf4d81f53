"""Where an operation puts the samples that are in its inputs: only for those that never mix samples."""

import math

# What a loss function does with its losses.
NONE, MEAN = 0, 1
LOSSES = {
    *(
        "nll_loss_forward",
        "nll_loss2d_forward",
        "mse_loss",
        "smooth_l1_loss",
        "huber_loss",
        "soft_margin_loss",
    ),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "l1_loss"),
}
_REDUCTIONS = {
    *("sum", "mean", "var", "std", "var_mean", "std_mean", "amax", "amin", "aminmax", "max", "min", "prod"),
    *("logsumexp", "median", "any", "all", "argmax", "argmin", "linalg_vector_norm", "norm"),
}
_ALONG = {
    "_softmax",
    "_log_softmax",
    "_safe_softmax",
    "cumsum",
    "cumprod",
    "sort",
    "topk",
    "softmax",
    "log_softmax",
    "glu",
    "flip",
}
_SAME = {
    "_to_copy",
    "clone",
    "detach",
    "alias",
    "to",
    "contiguous",
    "copy",
    "dropout",
    "native_dropout",
    "lift_fresh",
}
_DRAWS = {"rand_like", "randn_like", "randint_like", "bernoulli", "zeros_like", "ones_like", "full_like"}
REWRITES = {"zero_", "fill_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_"}
_FOLDS = {"view", "_unsafe_view", "reshape", "_reshape_alias"}
# Pictures and sequences, each by itself: the samples stay along the first dimension.
_OF_PICTURES = (
    *(
        "convolution",
        "max_pool",
        "avg_pool",
        "adaptive_",
        "_adaptive_",
        "upsample_",
        "_upsample_",
        "reflection_pad",
    ),
    *(
        "replication_pad",
        "constant_pad_nd",
        "im2col",
        "col2im",
        "pixel_",
        "grid_sampler",
        "native_group_norm",
    ),
)
_ATTENTION = "_scaled_dot_product_"


class Rows:
    """A tensor has the samples along a dimension: all of them so many times, each in so many rows that follow
    each other.
    """

    def __init__(self, along, rows=1, times=1, uniform=False):
        self.along, self.rows, self.times = along, rows, times
        # Whether each sample has the same numbers, or some drawn for it alone.
        self.uniform = uniform

    def fits(self, tensor, samples):
        """Whether a tensor has them there."""
        return tensor.dim() > self.along and tensor.size(self.along) == self.times * samples * self.rows

    def at(self, along):
        """The same rows along another dimension."""
        return Rows(along, self.rows, self.times, self.uniform)

    def is_like(self, other, along=None):
        """Whether another tensor has them in the same order along the same dimension, or along this one."""
        along = self.along if along is None else along
        return isinstance(other, Rows) and (other.along, other.rows, other.times) == (
            along,
            self.rows,
            self.times,
        )


class Mean:
    """A mean over samples that count the same, or what follows linearly from one."""


class Total:
    """A sum over samples."""


class Unproven:
    """Depends on the batch in a way that proves nothing."""

    def __init__(self, why):
        self.why = why


class Call:
    """An operation, what it was given, and what is known of that."""

    def __init__(self, name, args, named, inputs, kinds, outputs, samples, pointwise):
        self.name, self.args, self.named = name, args, named
        self.inputs, self.kinds, self.outputs, self.samples = inputs, kinds, outputs, samples
        self.pointwise = pointwise
        rows = [(tensor, kind) for tensor, kind in zip(inputs, kinds, strict=True) if isinstance(kind, Rows)]
        # What is the same for each sample may lie otherwise by chance.
        self.first, self.kind = next(((each, kind) for each, kind in rows if not kind.uniform), rows[0])
        self.unfollowed = Unproven(f"`{name}` is not known to leave samples apart")
        self.mixes = Unproven(f"`{name}` takes the samples of the batch together")

    def aligned(self, shape):
        """Where the samples are in an output of this shape, if all inputs have them at one place or none at
        all.
        """
        along = self.kind.along + len(shape) - self.first.dim()
        for tensor, kind in zip(self.inputs, self.kinds, strict=True):
            shift = len(shape) - tensor.dim()
            there = along - shift
            if self.kind.is_like(kind, along - shift):
                continue
            if kind is not None and not kind.uniform:
                return None
            if there >= 0 and tensor.size(there) != 1:
                return None
        return self.kind.at(along)

    def dimensions(self, default=None):
        """The dimensions that it names; all where it names none."""
        value = self.named.get("dim", default)
        value = [value] if isinstance(value, int) and not isinstance(value, bool) else value
        count = self.first.dim()
        return {each % count for each in value} if value else set(range(count))


def answer(call):
    """What is known of the outputs; a list where they differ."""
    name = call.name
    if name in REWRITES or name in _DRAWS:
        return (
            call.kind.at(call.kind.along)
            if call.kind.fits(call.outputs[0], call.samples)
            else call.unfollowed
        )
    if call.pointwise or name.rstrip("_") in _SAME:
        found = call.aligned(call.outputs[0].shape)
        return (
            found
            if found is not None
            else Unproven(f"`{name}` combines samples with numbers that are not theirs")
        )
    for names, rule in _RULES:
        if name in names:
            return rule(call)
    if name.startswith(_ATTENTION):
        return _attention(call)
    if name.startswith(_OF_PICTURES):
        return _first_stays(call)
    return call.unfollowed


def of_loss(call, may_ignore):
    """A loss function's own mean."""
    if call.named.get("weight") is not None:
        return Unproven("classes are weighted in the loss, so a mean over a part divides by other weights")
    given = call.named["self"].shape
    reduction = call.named.get("reduction", MEAN)
    if call.name.startswith("nll"):
        labels = call.named["target"]
        known = dict(zip(map(id, call.inputs), call.kinds, strict=True)).get(id(labels))
        ignored = call.named.get("ignore_index", -100)
        if not isinstance(known, Rows) or not _labels(call, known):
            return Unproven("the loss's labels were not followed from the batch")
        if reduction == MEAN and (may_ignore or ignored >= 0):
            return Unproven("some labels are left out of the loss's mean")
        place = call.kind
    else:
        place = call.aligned(given)
    if place is None:
        return Unproven(f"`{call.name}` combines samples with numbers that are not theirs")
    if reduction == NONE:
        return place
    return Mean() if reduction == MEAN else Total()


def _labels(call, known):
    """Whether each sample's scores meet its own labels: classes lie along the second dimension of these."""
    spread = call.named["self"].dim() - call.named["target"].dim() == 1
    return spread and call.kind.along == 0 and call.kind.is_like(known)


def _fold(call):
    """Samples stay apart where one of the new dimensions has them all."""
    shape, kind = call.outputs[0].shape, call.kind
    before, passed = math.prod(call.first.shape[: kind.along]) * kind.times, 1
    for along, size in enumerate(shape):
        times, rest = divmod(before, passed)
        if not rest and size and size % (times * call.samples) == 0:
            return Rows(along, size // (times * call.samples), times, kind.uniform)
        passed *= size
    return Unproven(f"`{call.name}` folds samples into what is not theirs")


def _order(call):
    count, along = call.first.dim(), call.kind.along
    order = list(range(count))
    if call.name == "permute":
        order = [each % count for each in call.named["dims"]]
    elif count > 1:
        one, other = (0, 1) if call.name in ("t", "numpy_T") else (call.args[1] % count, call.args[2] % count)
        order[one], order[other] = order[other], order[one]
    return call.kind.at(order.index(along))


def _insert(call):
    along = call.kind.along
    return call.kind.at(along + (call.args[1] % (call.first.dim() + 1) <= along))


def _remove(call):
    gone = call.dimensions() if "dim" in call.named else set(range(call.first.dim()))
    along = call.kind.along
    if call.first.size(along) == 1:
        return call.unfollowed
    return call.kind.at(along - sum(each < along and call.first.size(each) == 1 for each in gone))


def _spread(call):
    along = call.kind.along + call.outputs[0].dim() - call.first.dim()
    return call.kind.at(along)


def _select(call):
    gone, along = call.args[1] % call.first.dim(), call.kind.along
    return call.mixes if gone == along else call.kind.at(along - (gone < along))


def _part_of(call):
    """Some of what lies along a dimension; all along the samples'."""
    default = 1 if call.name == "slice" else 0
    named = call.named.get("dim", 0 if call.name != "narrow" else default)
    if named % call.first.dim() != call.kind.along:
        return call.kind
    whole = call.outputs[0].size(call.kind.along) == call.first.size(call.kind.along)
    return call.kind if whole and call.name in ("slice", "narrow") else call.mixes


def _unbind(call):
    gone, along = call.named.get("dim", 0) % call.first.dim(), call.kind.along
    return call.mixes if gone == along else call.kind.at(along - (gone < along))


def _join(call):
    count = call.first.dim() + (call.name == "stack")
    joined = call.named.get("dim", 0) % count
    along = call.kind.along + (call.name == "stack" and joined <= call.kind.along)
    if joined == along:
        return call.mixes
    for kind in call.kinds:
        if not call.kind.is_like(kind):
            return Unproven(f"`{call.name}` puts samples beside numbers that are not theirs")
    return call.kind.at(along)


def _along(call):
    named = call.named.get("dim", call.named.get("dims", -1))
    taken = {each % call.first.dim() for each in (named if isinstance(named, (list, tuple)) else [named])}
    return call.mixes if call.kind.along in taken else call.kind


def _reduce(call):
    taken, along = call.dimensions(), call.kind.along
    if along in taken:
        return {"mean": Mean(), "sum": Total()}.get(call.name, call.mixes)
    keeps = call.named.get("keepdim", False)
    return call.kind if keeps else call.kind.at(along - sum(each < along for each in taken))


def _product(call):
    """Each row by itself, times what holds nothing of the batch."""
    left = call.named["mat2"] if "mat2" in call.named else call.named.get("vec")
    knows = dict(zip(map(id, call.inputs), call.kinds, strict=True))
    first = call.named["mat1"] if "mat1" in call.named else call.named["self"]
    if knows.get(id(left)) is not None:
        return call.mixes
    kind = knows.get(id(first))
    if kind is None or kind.along != 0:
        return call.mixes
    added = call.named["self"] if "mat1" in call.named else None
    if added is not None and (knows.get(id(added)) is not None or (added.dim() == 2 and added.size(0) != 1)):
        return call.unfollowed
    return kind


def _products(call):
    """A product for each entry along the first dimension."""
    same = call.kind.along == 0 and all(map(call.kind.is_like, call.kinds))
    return call.kind if same else call.mixes


def _look_up(call):
    """Rows of a table, one for each index."""
    knows = dict(zip(map(id, call.inputs), call.kinds, strict=True))
    table, indices = call.named["weight"], call.named["indices"]
    return call.unfollowed if knows.get(id(table)) is not None else knows[id(indices)]


def _index(call):
    """Entries of a table that holds nothing of the batch, one for each sample; nothing else is followed."""
    table, indices = call.args[0], call.args[1]
    knows = dict(zip(map(id, call.inputs), call.kinds, strict=True))
    one = len(indices) == 1 and indices[0] is not None and "int" in str(indices[0].dtype)
    return knows[id(indices[0])] if one and knows.get(id(table)) is None else call.mixes


def _gather(call):
    same = all(map(call.kind.is_like, call.kinds))
    return call.kind if same and call.args[1] % call.first.dim() != call.kind.along else call.mixes


def _normalise(call):
    """Over the last dimensions of each row."""
    last = len(call.named["normalized_shape"])
    if call.first is not call.named["input"] or call.kind.along >= call.first.dim() - last:
        return call.mixes
    return call.kind


def _batch_normalise(call):
    """With statistics over the batch, or, where samples lie along the channels, of each by itself."""
    training = call.named.get("training", call.named.get("train", True))
    if call.kind.along == 1 or not training:
        return [call.kind] + [None] * (len(call.outputs) - 1)
    return Unproven("batch normalisation takes its statistics over the batch")


def _first_stays(call):
    if call.kind.along != 0 or any(kind is not None and not call.kind.is_like(kind) for kind in call.kinds):
        return call.unfollowed
    return [call.kind if call.kind.fits(each, call.samples) else None for each in call.outputs]


def _repeat(call):
    repeats = call.named["repeats"]
    along = call.kind.along + len(repeats) - call.first.dim()
    return call.kind.at(along) if repeats[along] == 1 else call.mixes


def _triangle(call):
    return call.kind if call.kind.along < call.first.dim() - 2 else call.mixes


def _recur(call):
    """A recurrent network of cuDNN's; its states have layers before the samples."""
    along = 0 if call.named["batch_first"] else 1
    if not call.kind.is_like(Rows(along)) or call.named.get("batch_sizes"):
        return call.unfollowed
    return [call.kind, Rows(1), Rows(1), *[None] * (len(call.outputs) - 3)]


def _attention(call):
    """Each sample's queries meet its own keys."""
    for tensor, kind in zip(call.inputs[:3], call.kinds[:3], strict=True):
        if call.kind.along != 0 or not call.kind.is_like(kind) or tensor.dim() != 4:
            return call.mixes
    for tensor, kind in zip(call.inputs[3:], call.kinds[3:], strict=True):
        if (kind is None or kind.along != 0) and tensor.dim() == 4 and tensor.size(0) != 1:
            return call.mixes
    return [call.kind if call.kind.fits(each, call.samples) else None for each in call.outputs]


_RULES = (
    (_FOLDS, _fold),
    (("t", "transpose", "permute", "numpy_T", "swapaxes"), _order),
    (("unsqueeze",), _insert),
    (("squeeze",), _remove),
    (("expand",), _spread),
    (("select",), _select),
    (("slice", "narrow", "split", "unsafe_split", "split_with_sizes", "chunk"), _part_of),
    (("unbind",), _unbind),
    (("cat", "stack"), _join),
    (_ALONG, _along),
    (_REDUCTIONS, _reduce),
    (("mm", "addmm", "mv"), _product),
    (("bmm", "baddbmm"), _products),
    (("embedding",), _look_up),
    (("index",), _index),
    (("gather", "scatter", "scatter_", "scatter_add", "scatter_add_"), _gather),
    (("repeat",), _repeat),
    (("tril", "triu"), _triangle),
    (("_cudnn_rnn",), _recur),
    (("native_layer_norm", "_fused_rms_norm"), _normalise),
    (
        ("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"),
        _batch_normalise,
    ),
)
