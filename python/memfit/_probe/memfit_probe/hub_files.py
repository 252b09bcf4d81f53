"""Files of weights that a script, or a library, asks Hugging Face's hub for by name: those that cannot be had
stay missing, and what loads them keeps its own values.
"""

import functools
import os

from . import imports
from .wrapping import alike

MODULE, NAME = "huggingface_hub.file_download", "hf_hub_download"
# The parameters of the repository and of the file in it.
REPOSITORY, FILE = "repo_id", "filename"


def arm(note, holds_weights):
    """Let the call return the path of a file that is not there. `note(what)` tells it."""
    imports.after(MODULE, functools.partial(_replace, note, holds_weights))


def _replace(note, holds_weights, module):
    original = getattr(module, NAME, None)
    if original is None:
        return

    @alike(original)
    def hf_hub_download(*args, **kwargs):
        try:
            return original(*args, **kwargs)
        except OSError as error:
            asked = dict(zip((REPOSITORY, FILE), args, strict=False)) | kwargs
            if not holds_weights(asked.get(FILE)):
                raise
            path = os.path.join(os.sep, "missing", str(asked.get(REPOSITORY)), str(asked[FILE]))
            note(
                f"`{asked[FILE]}` of `{asked.get(REPOSITORY)}` is not on this machine ({type(error).__name__}): "
                "what loads it keeps its own values"
            )
            return path

    imports.replace(module, NAME, hf_hub_download)
