"""Sizes and contents of torchvision's data sets, made up."""

import functools
import os
import random

# Number of samples of a data set of unknown size.
DEFAULT_SAMPLES = 10_000
# One of so many samples that a data set keeps at once is noise.
SPARSE = 100
# Mode, width, height, classes and number of training samples of torchvision's data sets. For photographs of
# different sizes, the size is a typical one.
KNOWN = {
    "CIFAR10": ("RGB", 32, 32, 10, 50_000),
    "CIFAR100": ("RGB", 32, 32, 100, 50_000),
    "MNIST": ("L", 28, 28, 10, 60_000),
    "FashionMNIST": ("L", 28, 28, 10, 60_000),
    "KMNIST": ("L", 28, 28, 10, 60_000),
    "QMNIST": ("L", 28, 28, 10, 60_000),
    "EMNIST": ("L", 28, 28, 47, 60_000),
    "SVHN": ("RGB", 32, 32, 10, 73_257),
    "STL10": ("RGB", 96, 96, 10, 5_000),
    "ImageNet": ("RGB", 500, 375, 1000, 1_281_167),
    "ImageFolder": ("RGB", 500, 375, 1000, 1_281_167),
    "DatasetFolder": ("RGB", 500, 375, 1000, 1_281_167),
    "Food101": ("RGB", 512, 512, 101, 75_750),
    "OxfordIIITPet": ("RGB", 500, 375, 37, 3_680),
    "Flowers102": ("RGB", 667, 500, 102, 1_020),
    "Caltech101": ("RGB", 300, 200, 101, 8_677),
    "Caltech256": ("RGB", 371, 326, 257, 30_607),
    "EuroSAT": ("RGB", 64, 64, 10, 27_000),
    "FakeData": None,
}
# Those whose images all have that size.
OF_ONE_SIZE = frozenset(
    ("CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "KMNIST", "QMNIST", "EMNIST", "SVHN", "STL10", "EuroSAT")
)
# Numbers of samples of their other parts, by what the constructor stores of its arguments.
PARTS = {
    "CIFAR10": {False: 10_000},
    "CIFAR100": {False: 10_000},
    "MNIST": {False: 10_000},
    "FashionMNIST": {False: 10_000},
    "KMNIST": {False: 10_000},
    "QMNIST": {"test": 60_000, "test10k": 10_000, "test50k": 50_000, "nist": 402_953},
    "EMNIST": {
        ("byclass", True): 697_932,
        ("byclass", False): 116_323,
        ("bymerge", True): 697_932,
        ("bymerge", False): 116_323,
        ("balanced", True): 112_800,
        ("balanced", False): 18_800,
        ("letters", True): 124_800,
        ("letters", False): 20_800,
        ("digits", True): 240_000,
        ("digits", False): 40_000,
        ("mnist", False): 10_000,
    },
    "SVHN": {"test": 26_032, "extra": 531_131},
    "STL10": {"test": 8_000, "unlabeled": 100_000, "train+unlabeled": 105_000},
    "ImageNet": {"val": 50_000},
    "Food101": {"test": 25_250},
    "OxfordIIITPet": {"test": 3_669},
    "Flowers102": {"test": 6_149},
}
# Names of folders that have ImageNet's images for validation.
VALIDATION = ("val", "valid", "validation", "test")


def usual_length(name, dataset):
    """Return the number of samples of the part of a known data set that its constructor was asked for."""
    own = vars(dataset)
    if name in ("ImageFolder", "DatasetFolder"):
        folders = os.fspath(own.get("root") or "").lower().split(os.sep)
        return PARTS["ImageNet"]["val"] if any(each in VALIDATION for each in folders) else KNOWN[name][4]
    part = own.get("what", own.get("split", own.get("_split")))
    if name == "EMNIST":
        part = (part, own.get("train", True))
    elif part is None:
        part = own.get("train", not own.get("test_mode", False))
    try:
        return PARTS.get(name, {}).get(part, KNOWN[name][4])
    except TypeError:
        # A subclass may have stored anything under these names.
        return KNOWN[name][4]


# Side of the crops that scripts train on where photographs differ in size.
CROP = 224


def as_stated(name):
    """Return the option for samples like those of a known data set, as tensors."""
    mode, width, height, classes, _ = KNOWN[name]
    channels = 3 if mode == "RGB" else 1
    width, height = (CROP, CROP) if max(width, height) > CROP else (width, height)
    return f"--synthetic-data='image:{channels}x{height}x{width}:float32,label:int64<{classes}'"


@functools.cache
def picture(mode, width, height):
    """Return an image of noise: scripts divide by the standard deviation of the pixels."""
    from PIL import Image

    count = width * height * (3 if mode == "RGB" else 1)
    return Image.frombytes(mode, (width, height), random.Random(0).randbytes(count))


def contents(torch, name, length, classes):
    """Return the attributes of a data set that hold all samples or labels. Most samples are zeros, which take
    no memory until they are copied; some are noise.
    """
    import numpy

    labels = Cycle(length, classes)
    mode, width, height, *_ = KNOWN[name]
    pixels = numpy.array(picture(mode, width, height))
    if mode == "L":
        data = torch.zeros((length, height, width), dtype=torch.uint8)
        data[::SPARSE] = torch.as_tensor(pixels)
        return {"data": data, "targets": torch.arange(length) % classes}
    if name in ("CIFAR10", "CIFAR100"):
        data = numpy.zeros((length, height, width, 3), "uint8")
        data[::SPARSE] = pixels
        return {"data": data, "targets": labels[:]}
    if name in ("SVHN", "STL10"):
        data = numpy.zeros((length, 3, height, width), "uint8")
        data[::SPARSE] = pixels.transpose(2, 0, 1)
        return {"data": data, "labels": numpy.arange(length) % classes}
    return {"targets": labels}


def samples(name, length):
    """Return the samples of a data set as a list, all with the same image."""
    import numpy

    mode, width, height, classes, _ = KNOWN[name]
    image = numpy.array(picture(mode, width, height))
    return [{"img": image, "gt_label": number % classes} for number in range(length)]


class Cycle:
    """The labels of all samples, as an attribute of a data set."""

    def __init__(self, length, classes):
        self.length, self.classes = length, classes

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(self.length))]
        if not 0 <= index < self.length:
            raise IndexError(index)
        return index % self.classes
