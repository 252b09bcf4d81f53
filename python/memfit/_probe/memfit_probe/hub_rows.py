"""Replaces data sets of the Hugging Face hub that are not on this machine by generated rows, in the form that
the script asked for: one split or several, read as a table or as a stream.
"""

import inspect

from . import imports, network
from .known_datasets import DEFAULT_SAMPLES
from .wrapping import alike

# Bytes of the different rows of a table.
ROWS_BYTES = 16 << 20
# Splits of a data set if the script names none.
SPLITS = ("train", "validation", "test")


def arm(module, synthetic):
    """Wrap `datasets.load_dataset`."""
    # A script may have a `datasets` of its own, with a `load_dataset` that takes other arguments.
    if not hasattr(module, "DatasetDict"):
        return
    original = module.load_dataset

    @alike(original)
    def load_dataset(path, *args, **kwargs):
        try:
            return original(path, *args, **kwargs)
        except Exception as error:
            if not synthetic.samples:
                synthetic.note(
                    f"`{path}` is not on this machine, and its rows were not described: "
                    "`--synthetic-data='text:str,label:int64<2'`"
                )
                raise
            asked = inspect.signature(original).bind(path, *args, **kwargs).arguments
            network.forget()
            synthetic.read_here()
            rows = synthetic.length or DEFAULT_SAMPLES
            synthetic.note(
                f"`{path}` is not on this machine ({type(error).__name__}); replaced by {rows} rows of "
                f"{synthetic.samples}"
            )
            return _as_asked(module, _table(module, synthetic.samples, rows), asked)

    imports.replace(module, "load_dataset", load_dataset)


def _table(module, samples, rows):
    """Generate rows. The library stores each row, so large ones repeat."""
    kinds = min(rows, max(1, ROWS_BYTES // max(1, samples.row_bytes)))
    made = module.Dataset.from_dict({field["name"]: samples.column(field, kinds) for field in samples.fields})
    return made.select([i % kinds for i in range(rows)]) if kinds < rows else made


def _as_asked(module, made, asked):
    """Return rows as `load_dataset` returns them with these arguments."""
    streams = bool(asked.get("streaming"))
    if streams:
        made = made.to_iterable_dataset()
    split = asked.get("split")
    if isinstance(split, (list, tuple)):
        return [made for _ in split]
    if split is not None:
        return made
    kind = module.IterableDatasetDict if streams else module.DatasetDict
    return kind(dict.fromkeys(SPLITS, made))
