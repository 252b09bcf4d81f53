"""Data in place of the zeros that a copy from the GPU has where nobody computed them.

A further run has these. If it allocates the same, then no size depends on what the script does with the data
on the host, whether it compares, sorts or saves them. Scores and probabilities are on both sides of any
threshold, also of one below zero, classes stay small enough for an index.
"""

# A multiplier whose multiples, modulo its power of two, visit all residues in a scattered order.
# The first element differs from zero, too: it may be the only one that is read.
_STRIDE, _RESIDUES, _FIRST = 40503, 1 << 16, 40000
# Every so many elements, a value as large as this, with either sign.
_RARE, _LARGE = 8, 8.0
# One in so many groups of elements is negative.
_NEGATIVE = 4
# Number of classes, and the number of elements after which all data begin again.
_CLASSES, _PLAIN_CLASSES = 3, 2
_PERIOD = _CLASSES * _RESIDUES
# Number of classes where they are scattered: among them are most of the tokens that have a meaning.
_VARIED_CLASSES = 16
# By type and variety: the longest beginning so far. Offloading copies hundreds of tensors in a step.
_beginnings = {}


def instead_of(torch, result, number, is_varied=False):
    """Return what replaces the copy, in place where it is a tensor or an array.

    The larger `number` belongs to the first further run, which may fail: then the other has less variety.
    Where numbers differ from read to read, so do classes.
    """
    classes = _VARIED_CLASSES if is_varied else _PLAIN_CLASSES if number < _RARE else _CLASSES
    if isinstance(result, list):
        return _filled(torch, torch.tensor(result), classes).tolist()
    tensor = result if isinstance(result, torch.Tensor) else torch.from_numpy(result)
    with torch.no_grad():
        _filled(torch, tensor.detach(), classes)
    return result


def _filled(torch, tensor, classes):
    """Fill a tensor on the host with other data, and return it."""
    period = _period(torch, tensor.dtype, min(_PERIOD, tensor.numel()), classes)
    flat = tensor.view(-1) if tensor.is_contiguous() else tensor.new_empty(tensor.numel())
    for first in range(0, flat.numel(), _PERIOD):
        part = flat[first : first + _PERIOD]
        part.copy_(period[: part.numel()])
    return tensor if tensor.is_contiguous() else tensor.copy_(flat.view(tensor.shape))


def _period(torch, dtype, length, classes):
    """Return the first elements of the data of a type, which are not to be changed."""
    known = _beginnings.get((dtype, classes))
    if known is None or known.numel() < length:
        known = _beginnings[dtype, classes] = _computed(torch, dtype, length, classes)
    return known[:length]


def _computed(torch, dtype, length, classes):
    places = torch.arange(length, dtype=torch.int64, device="cpu")
    if dtype is torch.bool:
        return places % 2 == 1
    scattered = (places * _STRIDE + _FIRST) % _RESIDUES
    if not (dtype.is_floating_point or dtype.is_complex):
        is_varied = classes == _VARIED_CLASSES
        return (scattered * classes // _RESIDUES if is_varied else (places + 1) % classes).to(dtype)
    shares = (scattered + 1).to(torch.float64) / (_RESIDUES + 1)
    if classes != _PLAIN_CLASSES:
        signs = torch.where(places // _RARE % _NEGATIVE == 1, -1, 1)
        shares = torch.where(places % _RARE == 0, _LARGE, shares) * signs
    return shares.to(dtype)
