"""Replaces data sets whose files are missing: by samples as described on the command line, or, for known
torchvision data sets, by images of their size. The script's own transforms run on these images.
"""

from . import flows, hub_rows, imports, metrics, mmpretrain_data, network, timm_data, unset
from .described import Described
from .known_datasets import (
    DEFAULT_SAMPLES,
    KNOWN,
    OF_ONE_SIZE,
    as_stated,
    contents,
    picture,
    usual_length,
)
from .lacking_data import (
    ABSENT,
    GRAPH_LIBRARIES,
    is_absent,
    is_network_error,
    is_own,
    is_plain,
    root,
)
from .oom import frames_here
from .wrapping import alike

# Words of PyTorch's errors about types of elements.
OF_TYPES = ("dtype", "scalar type", "Input type (")
# Words of its errors about channels and features, which follow from the size of a sample alone.
OF_SIZES = ("doesn't match the broadcast shape", "shapes cannot be multiplied", "channels, but got")
# Attributes of torchvision's data sets that depend on the samples.
CONTENTS = ("data", "targets", "labels", "classes", "class_to_idx", "samples", "imgs")
# Names that scripts give to the labels of all samples, and to the number of classes, and the maximum that are
# listed one by one.
LABELS = ("targets", "labels", "label", "y")
NUMBERS_OF_CLASSES = (
    "num_classes",
    "n_classes",
    "nclasses",
    "num_class",
    "n_class",
    "nb_classes",
    "numClasses",
    "nClasses",
)
MAX_CLASSES = 1 << 20


class SyntheticData:
    """Replaces data sets."""

    def __init__(self, session, stated):
        self.session = session
        # Empty where samples are those of each class.
        self.samples = Described(session.torch, stated["fields"], stated["mapping"])
        self.length = stated["length"]
        self.wrapped = set()
        # Classes whose data sets have attributes that nobody set.
        self.lent = set()
        # torchvision's data sets.
        self.standard = set()
        # Places at which the script has read anything from a synthetic data set but its length.
        self.sites = set()
        # `True` while all samples have the size of those that they replace.
        self.exact = True

    def arm(self):
        data = self.session.torch.utils.data
        self._watch_subclasses(data.Dataset)
        if self.samples:
            self._watch_loaders(data.DataLoader)
        imports.after("torchvision.datasets", self._arm_torchvision)
        imports.after("datasets", lambda module: hub_rows.arm(module, self))
        metrics.arm(imports, self)
        mmpretrain_data.arm(imports, self)
        timm_data.arm(imports, self)
        return self

    def note(self, what, exact=False):
        """Report a replacement, and whether all of its samples have the size of those that they replace."""
        self.exact &= exact
        self.session.remark("synthetic-data", what=what)

    def may_reach(self, exception):
        """Return `False` if nothing of a synthetic data set was read, so that none can have caused this."""
        # Samples in place of torchvision's own have their types, and most have their size.
        if not self.samples:
            certain = OF_TYPES + OF_SIZES if self.exact else OF_TYPES
            if any(words in str(exception) for words in certain):
                return False
        if "_memfit_length" in getattr(getattr(exception, "obj", None), "__dict__", ()):
            return True
        sites = self.sites | self.session.loaders.sites
        if not sites or flows.is_in_data(exception):
            return bool(sites)
        return flows.may_reach(sites, exception.__traceback__)

    def read_here(self):
        """Record that something was read from a synthetic data set."""
        self.sites.add(flows.site(frames_here()))

    # Data sets of the script's own

    def _watch_subclasses(self, base):
        """Wrap classes that are defined from now on."""
        original, synthetic = base.__init_subclass__.__func__, self

        def init_subclass(cls, **kwargs):
            original(cls, **kwargs)
            # torchvision's data sets are replaced by name; those of torch need no files.
            if root(cls) not in ("torch", "torchvision"):
                synthetic._inherit(cls)
                synthetic._wrap(cls, synthetic._sample)

        base.__init_subclass__ = classmethod(init_subclass)

    def _inherit(self, cls):
        """Define the methods on a class that it inherits from one of torchvision's without known samples."""
        for method in ("__len__", "__getitem__"):
            owner = next((each for each in cls.__mro__ if method in vars(each)), None)
            if owner not in (None, cls) and root(owner) == "torchvision" and owner not in self.wrapped:
                setattr(cls, method, forwarding(cls, method))

    def _watch_loaders(self, loader):
        """Fill data sets of the script's own that found no files when they are given to a loader, and
        wrap the classes of those that extend none of torch's.
        """
        original, synthetic = loader.__init__, self

        @alike(original)
        def init(self, dataset, *args, **kwargs):
            for each in parts(dataset):
                for cls in filter(is_plain, type(each).__mro__):
                    synthetic._wrap(cls, synthetic._sample)
            if (
                (is_own(type(dataset)) or is_plain(type(dataset)))
                and type(dataset) in synthetic.wrapped
                and synthetic.is_empty(dataset)
            ):
                synthetic.replaced(dataset, synthetic._sample, (), {}, None)
            original(self, dataset, *args, **kwargs)

        loader.__init__ = init

    def is_empty(self, dataset):
        """Return `True` if a data set has no samples, and none were made up for it."""
        if isinstance(dataset, self.session.torch.utils.data.IterableDataset):
            return False
        return hasattr(dataset, "__len__") and not len(dataset) and "_memfit_length" not in vars(dataset)

    def _wrap(self, cls, sample):
        """Make a class return synthetic samples if its files are missing."""
        if cls in self.wrapped:
            return
        self.wrapped.add(cls)
        synthetic = self
        own = vars(cls)
        if "__init__" in own:
            init = cls.__init__

            @alike(init)
            def replaced_init(self, *args, **kwargs):
                if cls in synthetic.standard:
                    self._memfit_begun = True
                try:
                    init(self, *args, **kwargs)
                except Exception as error:
                    known = isinstance(error, (*ABSENT, ImportError)) or is_network_error(error)
                    known |= is_absent(error)
                    if not synthetic.builds(cls, self) or not (
                        synthetic.derives(self, error)
                        or (known and synthetic.can_replace(sample, self, error))
                    ):
                        raise
                    synthetic.replaced(self, sample, args, kwargs, error)

            cls.__init__ = replaced_init
        if "__len__" in own:
            length = cls.__len__

            @alike(length)
            def replaced_len(self):
                count = vars(self).get("_memfit_length")
                if count is not None and not synthetic.extended(type(self)):
                    return count
                try:
                    return length(self)
                except AttributeError as error:
                    if count is None or error.obj is not self:
                        raise
                    return count

            cls.__len__ = replaced_len
        if "__getitem__" in own:
            getitem = cls.__getitem__

            @alike(getitem)
            def replaced_getitem(self, index):
                if "_memfit_length" in vars(self):
                    synthetic.read_here()
                    if isinstance(index, int) and not -len(self) <= index < len(self):
                        raise IndexError(index)
                    if synthetic.samples or not synthetic.extended(cls):
                        return sample(self, index)
                    try:
                        return getitem(self, index)
                    except AttributeError as error:
                        # Its own constructor failed before it had set this.
                        if error.obj is not self:
                            raise
                        return synthetic._image(self, index)
                try:
                    return getitem(self, index)
                except ABSENT as error:
                    if not synthetic.can_replace(sample, self, error):
                        raise
                    synthetic.note(synthetic.describe_replacement(self, error))
                    synthetic.read_here()
                    return sample(self, index)

            cls.__getitem__ = replaced_getitem
        if "__iter__" in own and issubclass(cls, self.session.torch.utils.data.IterableDataset):
            cls.__iter__ = self._iterating(cls.__iter__, sample)

    def _iterating(self, iterate, sample):
        """Make a method that yields synthetic samples where a stream's files are missing."""

        @alike(iterate)
        def replaced_iter(dataset):
            if "_memfit_length" not in vars(dataset):
                try:
                    yield from iterate(dataset)
                    return
                except Exception as error:
                    absent = isinstance(error, ABSENT) or is_network_error(error) or is_absent(error)
                    if not absent or not self.can_replace(sample, dataset, error):
                        raise
                    self.note(self.describe_replacement(dataset, error))
            self.read_here()
            for index in range(vars(dataset).get("_memfit_length") or self.length or DEFAULT_SAMPLES):
                yield sample(dataset, index)

        return replaced_iter

    def extends(self, cls):
        """Return the class of torchvision's that a class is or extends, if any."""
        return next((each for each in cls.__mro__ if each in self.standard), None)

    def extended(self, cls):
        """Return `True` if a class of the script's extends one of torchvision's."""
        return self.extends(cls) not in (None, cls)

    def builds(self, cls, dataset):
        """Return `True` if the constructor of `cls` makes all of the data set that can be replaced: that of
        torchvision's class, or of one that extends it and does not call that.
        """
        standard = self.extends(type(dataset))
        own = type(dataset) if standard is None or "_memfit_begun" not in vars(dataset) else standard
        return cls is own

    def derives(self, dataset, error):
        """Return `True` if a data set of the script's own, made from one that was replaced, asked that for
        what its constructor would have set.
        """
        source = getattr(error, "obj", None)
        return (
            isinstance(error, AttributeError)
            and bool(self.samples)
            and source is not dataset
            and "_memfit_length" in getattr(source, "__dict__", ())
            and is_own(type(dataset))
        )

    def can_replace(self, sample, dataset, error):
        """Return `True` if samples can be synthesised; otherwise add a remark that says what to do."""
        # In a script's own code, a RuntimeError need not mean a missing file.
        absent = isinstance(error, OSError) or is_absent(error)
        if sample != self._sample:
            return True
        if self.extended(type(dataset)):
            return absent
        name = type(dataset).__name__
        if absent and any(root(kind) in GRAPH_LIBRARIES for kind in type(dataset).__mro__):
            self.note(
                f"the files of `{name}` are missing ({type(error).__name__}), and its samples are graphs, "
                "which cannot be synthesised: put the files where it looks for them"
            )
            return False
        if absent and self.samples:
            return True
        if absent:
            self.note(
                f"the files of `{name}` are missing, and its samples were not described: state what a sample "
                "has, as in `--synthetic-data='image:3x224x224:float32,label:int64<1000'`"
            )
        return False

    def describe_replacement(self, dataset, error):
        name, what = type(dataset).__name__, str(self.samples)
        if not self.samples:
            what = f"samples of its usual size; `{as_stated(self.name(dataset))}` sets another"
        why = f"missing ({type(error).__name__})" if error is not None else "missing: it is empty"
        return f"the files of `{name}` are {why}; replaced by {what}"

    def name(self, dataset):
        """Return the name of the class of torchvision's that a data set is of or extends, if any."""
        return (self.extends(type(dataset)) or type(dataset)).__name__

    def replaced(self, dataset, sample, args, kwargs, error):
        network.forget()
        name = self.name(dataset)
        known = KNOWN.get(name)
        sites = set(self.sites)
        dataset._memfit_length = self.length or (usual_length(name, dataset) if known else DEFAULT_SAMPLES)
        stated = self.samples.classes
        classes = stated or (known[3] if known else None)
        if classes is not None and classes <= MAX_CLASSES:
            names = [f"class {number}" for number in range(classes)]
            keep(dataset, classes=names, class_to_idx={name: number for number, name in enumerate(names)})
        if known is None and type(dataset) not in self.lent:
            self.lent.add(type(dataset))
            unset.lend(type(dataset), is_own, self._told_unset)
        if stated is not None and known is None:
            # A data set of the script's own may have any of these.
            keep(dataset, **dict.fromkeys(NUMBERS_OF_CLASSES, stated))
            label = self.samples.label_classes
            if label is not None and dataset._memfit_length <= MAX_CLASSES:
                labels = [index % label for index in range(dataset._memfit_length)]
                keep(dataset, **dict.fromkeys(LABELS, labels))
        if known is not None:
            # In the order of `VisionDataset`'s arguments.
            keep(dataset, root=args[0] if args else kwargs.get("root"))
            transforms = [value for value in args[1:] if callable(value)]
            keep(dataset, transform=kwargs.get("transform", transforms[0] if transforms else None))
            keep(
                dataset, target_transform=kwargs.get("target_transform"), transforms=kwargs.get("transforms")
            )
            keep(dataset, **contents(self.session.torch, name, dataset._memfit_length, classes))
        # What is kept was read for that alone.
        self.sites = sites
        if known is None:
            # A constructor of the script's own may have left anything unset.
            self.read_here()
        what = f"{self.describe_replacement(dataset, error)} ({dataset._memfit_length} samples)"
        self.note(what, exact=name in OF_ONE_SIZE)

    def _told_unset(self, dataset, name):
        self.read_here()
        self.note(
            f"`{name}` of `{type(dataset).__name__}` comes from its files, and was not set: a use of it ends the run"
        )

    # torchvision

    def _arm_torchvision(self, module):
        for name, known in KNOWN.items():
            cls = getattr(module, name, None)
            if cls is None or known is None:
                continue
            # Define inherited methods on the class itself, so that wrapping them affects no other class.
            for method in ("__init__", "__len__", "__getitem__"):
                if method not in vars(cls):
                    setattr(cls, method, forwarding(cls, method))
            self._wrap(cls, self._image)
            self._watch_contents(cls)
            self.standard.add(cls)

    def _watch_contents(self, cls):
        """Record that the script reads all samples or labels of a data set at once."""
        original, synthetic = cls.__getattribute__, self

        def __getattribute__(self, name):  # noqa: N807 - it takes the method's place
            if name in CONTENTS and "_memfit_length" in original(self, "__dict__"):
                synthetic.read_here()
            return original(self, name)

        cls.__getattribute__ = __getattribute__

    def _image(self, dataset, index):
        """Return an image like the data set's own, with the script's transforms applied."""
        if self.samples:
            return self._sample(dataset, index)
        mode, width, height, classes, _ = KNOWN[self.name(dataset)]
        image, target = picture(mode, width, height).copy(), index % classes
        if dataset.transforms is not None:
            return dataset.transforms(image, target)
        if dataset.transform is not None:
            image = dataset.transform(image)
        if dataset.target_transform is not None:
            target = dataset.target_transform(target)
        return image, target

    def _sample(self, _dataset, index):
        return self.samples.sample(index)


def parts(dataset):
    """Yield a data set, and those that torch's classes made it from."""
    yield dataset
    if root(type(dataset)) == "torch":
        made_from = (getattr(dataset, "dataset", None), *(getattr(dataset, "datasets", None) or ()))
        for part in made_from:
            if part is not None:
                yield from parts(part)


def keep(dataset, **attributes):
    """Set attributes that a failed constructor left unset."""
    for name, value in attributes.items():
        # A property of the class may need what is not there.
        if name not in vars(dataset) and not hasattr(type(dataset), name):
            setattr(dataset, name, value)


def forwarding(cls, method):
    """Make a method that calls the parent class's."""

    @alike(getattr(cls, method))
    def forward(self, *args, **kwargs):
        return getattr(super(cls, self), method)(*args, **kwargs)

    return forward
