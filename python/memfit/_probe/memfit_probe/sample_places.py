"""Determines the dimension of an operation's output that holds the samples, if it never mixes samples."""

import math

# Reductions of a loss function.
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
COPIES = {"_to_copy", "clone", "detach", "alias", "to"}
_SAME = {
    *COPIES,
    "_pin_memory",
    "contiguous",
    "copy",
    "dropout",
    "native_dropout",
    "lift_fresh",
}
_DRAWS = {"rand_like", "randn_like", "randint_like", "bernoulli", "zeros_like", "ones_like", "full_like"}
REWRITES = {"zero_", "fill_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_"}
_FOLDS = {"view", "_unsafe_view", "reshape", "_reshape_alias"}
# Operations on images and sequences, each independently: the samples stay along the first dimension.
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
    """A tensor with the samples along a dimension: all samples `times` times, each in `rows` consecutive
    rows.
    """

    def __init__(self, along, rows=1, times=1, uniform=False):
        self.along, self.rows, self.times = along, rows, times
        # Set if the values are the same for each sample, or drawn independently for each.
        self.uniform = uniform

    def fits(self, tensor, samples):
        """Return `True` if a tensor's shape matches."""
        return tensor.dim() > self.along and tensor.size(self.along) == self.times * samples * self.rows

    def at(self, along):
        """Return the same rows along another dimension."""
        return Rows(along, self.rows, self.times, self.uniform)

    def is_like(self, other, along=None):
        """Return `True` if another tensor has the samples in the same order along the same dimension, or
        along the given one.
        """
        along = self.along if along is None else along
        return isinstance(other, Rows) and (other.along, other.rows, other.times) == (
            along,
            self.rows,
            self.times,
        )


class Mean:
    """A mean over equally weighted samples, or a linear function of one."""


class Total:
    """A sum over samples."""


class Unproven:
    """Depends on the batch in a way that proves nothing."""

    def __init__(self, why):
        self.why = why


class Call:
    """An operation, its arguments, and the facts about them."""

    def __init__(self, name, args, named, inputs, kinds, outputs, samples, pointwise):
        self.name, self.args, self.named = name, args, named
        self.inputs, self.kinds, self.outputs, self.samples = inputs, kinds, outputs, samples
        self.pointwise = pointwise
        rows = [(tensor, kind) for tensor, kind in zip(inputs, kinds, strict=True) if isinstance(kind, Rows)]
        # A uniform tensor may match another dimension by chance.
        self.first, self.kind = next(((each, kind) for each, kind in rows if not kind.uniform), rows[0])
        self.unfollowed = Unproven(f"`{name}` is not known to keep samples separate")
        self.mixes = Unproven(f"`{name}` combines the samples of the batch")

    def aligned(self, shape):
        """Return the rows in an output of this shape, if all inputs have the samples along the same dimension
        or do not depend on them.
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
        """Return the named dimensions, or all if none are named."""
        value = self.named.get("dim", default)
        value = [value] if isinstance(value, int) and not isinstance(value, bool) else value
        count = self.first.dim()
        return {each % count for each in value} if value else set(range(count))


def answer(call):
    """Return the facts about the outputs; a list if they differ."""
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
            else Unproven(f"`{name}` combines samples with values that are not theirs")
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
    """Handle a loss function's own reduction."""
    if call.named.get("weight") is not None:
        return Unproven("the loss weights classes, so the mean of a micro-batch divides by other weights")
    given = call.named["self"].shape
    reduction = call.named.get("reduction", MEAN)
    if call.name.startswith("nll"):
        labels = call.named["target"]
        known = dict(zip(map(id, call.inputs), call.kinds, strict=True)).get(id(labels))
        ignored = call.named.get("ignore_index", -100)
        if not isinstance(known, Rows) or not _labels(call, known):
            return Unproven("the labels of the loss could not be followed from the batch")
        if reduction == MEAN and (may_ignore or ignored >= 0):
            return Unproven("the loss ignores some labels in its mean")
        place = call.kind
    else:
        place = call.aligned(given)
    if place is None:
        return Unproven(f"`{call.name}` combines samples with values that are not theirs")
    if reduction == NONE:
        return place
    return Mean() if reduction == MEAN else Total()


def _labels(call, known):
    """Return `True` if each sample's scores meet its own labels, with the classes along the second
    dimension.
    """
    spread = call.named["self"].dim() - call.named["target"].dim() == 1
    return spread and call.kind.along == 0 and call.kind.is_like(known)


def _fold(call):
    """Keep samples separate if a single new dimension holds all of them."""
    shape, kind = call.outputs[0].shape, call.kind
    before, passed = math.prod(call.first.shape[: kind.along]) * kind.times, 1
    for along, size in enumerate(shape):
        times, rest = divmod(before, passed)
        if not rest and size and size % (times * call.samples) == 0:
            return Rows(along, size // (times * call.samples), times, kind.uniform)
        passed *= size
    return Unproven(f"`{call.name}` merges samples with other dimensions")


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
    """Handle slices along a dimension; along the samples, only the whole."""
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
            return Unproven(f"`{call.name}` joins samples with values that are not theirs")
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
    """Multiply each row by a matrix that does not depend on the batch."""
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
    """Multiply matrices separately along the first dimension."""
    same = call.kind.along == 0 and all(map(call.kind.is_like, call.kinds))
    return call.kind if same else call.mixes


def _look_up(call):
    """Look up a row of a table for each index."""
    knows = dict(zip(map(id, call.inputs), call.kinds, strict=True))
    table, indices = call.named["weight"], call.named["indices"]
    return call.unfollowed if knows.get(id(table)) is not None else knows[id(indices)]


def _index(call):
    """Index a table that does not depend on the batch, one entry per sample; nothing else is followed."""
    table, indices = call.args[0], call.args[1]
    knows = dict(zip(map(id, call.inputs), call.kinds, strict=True))
    one = len(indices) == 1 and indices[0] is not None and "int" in str(indices[0].dtype)
    return knows[id(indices[0])] if one and knows.get(id(table)) is None else call.mixes


def _gather(call):
    same = all(map(call.kind.is_like, call.kinds))
    return call.kind if same and call.args[1] % call.first.dim() != call.kind.along else call.mixes


def _normalise(call):
    """Normalise over the last dimensions of each row."""
    last = len(call.named["normalized_shape"])
    if call.first is not call.named["input"] or call.kind.along >= call.first.dim() - last:
        return call.mixes
    return call.kind


def _batch_normalise(call):
    """Normalise with statistics over the batch, or of each sample if the samples are along the channels."""
    training = call.named.get("training", call.named.get("train", True))
    if call.kind.along == 1 or not training:
        return [call.kind] + [None] * (len(call.outputs) - 1)
    return Unproven("batch normalisation computes its statistics over the batch")


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
    """Handle a recurrent network of cuDNN; its states have the layers before the samples."""
    along = 0 if call.named["batch_first"] else 1
    if not call.kind.is_like(Rows(along)) or call.named.get("batch_sizes"):
        return call.unfollowed
    return [call.kind, Rows(1), Rows(1), *[None] * (len(call.outputs) - 3)]


def _attention(call):
    """Check that each sample's queries meet its own keys."""
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
