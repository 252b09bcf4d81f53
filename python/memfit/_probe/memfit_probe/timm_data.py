"""Stands in for the readers of timm's data sets, where their files are missing: images of a usual size, which
timm decodes and transforms as it does with any other.
"""

import functools
import io
import os

from .known_datasets import KNOWN, picture
from .wrapping import alike

# timm's modules that make readers, with the function; older releases call them parsers.
FACTORIES = (
    ("timm.data.readers.reader_factory", "create_reader"),
    ("timm.data.parsers.parser_factory", "create_parser"),
)
# Its data sets are folders of images, as those of this class.
LIKE = "ImageFolder"


def arm(imports, made_up):
    """Replace timm's readers of folders that are not there."""
    for module, name in FACTORIES:
        imports.after(module, functools.partial(_replace, name, made_up))


def _replace(name, made_up, module):
    original = getattr(module, name, None)
    if original is None:
        return

    @alike(original)
    def create(reader, root=None, *args, **kwargs):
        try:
            return original(reader, root, *args, **kwargs)
        except Exception as error:
            if not isinstance(root, (str, os.PathLike)) or os.path.exists(root) or made_up.samples:
                raise
            reader = Reader(made_up, made_up.length or KNOWN[LIKE][4])
            made_up.note(
                f"timm's data set `{os.fspath(root)}` is missing ({type(error).__name__}); replaced by images "
                f"of {reader.width}x{reader.height} pixels of {reader.classes} classes ({len(reader)} samples)"
            )
            return reader

    setattr(module, name, create)


class Reader:
    """Reads made-up files."""

    def __init__(self, made_up, length):
        self.made_up = made_up
        self.length = length
        self.mode, self.width, self.height, self.classes, _ = KNOWN[LIKE]
        self.class_to_idx = {f"class {number}": number for number in range(self.classes)}

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.made_up.read_here()
        return io.BytesIO(encoded(self.mode, self.width, self.height)), index % self.classes

    def filename(self, index, basename=False, absolute=False):
        return f"{index}.jpg"

    def filenames(self, basename=False, absolute=False):
        return [self.filename(index) for index in range(self.length)]


@functools.cache
def encoded(mode, width, height):
    """Return an image of noise as a file has it."""
    file = io.BytesIO()
    picture(mode, width, height).save(file, "JPEG")
    return file.getvalue()
