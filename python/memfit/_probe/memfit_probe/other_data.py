"""Data in place of the zeros that a copy from the GPU has where nobody computed them.

A further run has these. If it allocates the same, then no size depends on what the script does with the data
on the host, whether it compares, sorts or saves them. Scores and probabilities are on both sides of any
threshold, classes stay small enough for an index.
"""

# A multiplier whose multiples, modulo its power of two, visit all residues in a scattered order.
# The first element differs from zero, too: it may be the only one that is read.
_STRIDE, _RESIDUES, _FIRST = 40503, 1 << 16, 40000
# Every so many elements, a value as large as this, with either sign.
_RARE, _LARGE = 8, 8.0


def instead_of(torch, result, number):
    """Return what replaces the copy, in place where it is a tensor or an array.

    The larger `number` belongs to the first further run, which may fail: then the other has less variety.
    """
    is_plain = number < _RARE
    if isinstance(result, list):
        return _other(torch, torch.tensor(result), is_plain).tolist()
    tensor = result if isinstance(result, torch.Tensor) else torch.from_numpy(result)
    with torch.no_grad():
        tensor.detach().copy_(_other(torch, tensor, is_plain))
    return result


def _other(torch, tensor, is_plain):
    """Return other data of a tensor's shape and type on the host."""
    places = torch.arange(tensor.numel(), dtype=torch.int64, device="cpu")
    if tensor.dtype is torch.bool:
        return (places % 2 == 1).view(tensor.shape)
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return ((places + 1) % (2 if is_plain else 3)).to(tensor.dtype).view(tensor.shape)
    shares = ((places * _STRIDE + _FIRST) % _RESIDUES + 1).to(torch.float64) / (_RESIDUES + 1)
    if not is_plain:
        signs = 1 - 2 * (places // _RARE % 2)
        shares = torch.where(places % _RARE == 0, _LARGE * signs, shares)
    return shares.to(tensor.dtype).view(tensor.shape)
