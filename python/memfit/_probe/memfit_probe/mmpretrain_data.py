"""Makes up the samples of mmpretrain's classes for torchvision's data sets, whose transforms run on a list of
samples.
"""

from .known_datasets import KNOWN, samples, usual_length
from .lacking_data import ABSENT, is_network_error
from .wrapping import alike

MODULES = ("mmpretrain.datasets.cifar", "mmpretrain.datasets.mnist")


def arm(imports, made_up):
    """Replace the lists of samples whose files are missing."""
    for name in MODULES:
        imports.after(name, lambda module: _replace(made_up, module))


def _replace(made_up, module):
    def wrap(original):
        @alike(original)
        def load_data_list(dataset):
            try:
                return original(dataset)
            except (*ABSENT, OSError) as error:
                if not isinstance(error, ABSENT) and not is_network_error(error):
                    raise
                name = next(cls.__name__ for cls in type(dataset).__mro__ if cls.__name__ in KNOWN)
                made = samples(name, made_up.length or usual_length(name, dataset))
                made_up.read_here()
                made_up.note(
                    f"the files of `{name}` are missing ({type(error).__name__}); replaced by {len(made)} "
                    "samples of its usual size"
                )
                return made

        return load_data_list

    for cls in [cls for name, cls in vars(module).items() if name in KNOWN]:
        if "load_data_list" in vars(cls):
            cls.load_data_list = wrap(cls.load_data_list)
