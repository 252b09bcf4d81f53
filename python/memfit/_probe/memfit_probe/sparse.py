"""Finds the memory of sparse tensors, which have no storage of their own."""

# Methods of compressed sparse tensors that return their indices, and the layouts that compress rows.
ROWS, COLUMNS = ("crow_indices", "col_indices"), ("ccol_indices", "row_indices")
BY_ROWS = ("torch.sparse_csr", "torch.sparse_bsr")


def parts(tensor):
    """Return the tensors that hold a sparse tensor's indices, and the one that holds its values."""
    layout = str(tensor.layout)
    if layout == "torch.sparse_coo":
        return [tensor._indices()], tensor._values()
    names = ROWS if layout in BY_ROWS else COLUMNS
    return [getattr(tensor, name)() for name in names], tensor.values()


def nbytes(value):
    """Return the bytes of a tensor, sparse or not, or of an array; 0 of any other value."""
    try:
        size = getattr(value, "nbytes", 0)
    except RuntimeError:
        indices, values = parts(value)
        size = sum(part.nbytes for part in (*indices, values))
    return size if isinstance(size, int) else 0
