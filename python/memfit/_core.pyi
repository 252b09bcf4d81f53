import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, final

__all__ = [
    "Batches",
    "Controller",
    "Image",
    "ImageError",
    "Recipe",
    "Samples",
    "TileSamples",
    "Volume",
    "__version__",
    "format_size",
    "jpeg_decoder",
    "lever_conflict",
    "lever_label",
    "lever_stages",
    "main",
    "outline",
    "parse_size",
    "read_plan",
]

__version__: str
jpeg_decoder: str

def main(
    arguments: Sequence[str | os.PathLike[str]],
    *,
    python: str | os.PathLike[str] | None = None,
    libraries: str | os.PathLike[str] | None = None,
) -> int: ...
def read_plan(
    path: str | os.PathLike[str],
    *,
    torch: str | None = None,
    gpu: str | None = None,
    capacity: int | None = None,
) -> dict[str, Any]: ...
def outline(path: str | os.PathLike[str], *, points: int = 240) -> dict[str, Any] | None: ...
def parse_size(text: str) -> int: ...
def format_size(size: int) -> str: ...
def lever_conflict(names: Sequence[str]) -> str | None: ...
def lever_label(name: str) -> Literal["exact", "rounding", "precision", "changes-training"]: ...
def lever_stages() -> dict[str, str]: ...

@final
class Controller:
    def __new__(
        cls,
        *,
        accumulate: int = 1,
        micro_batch: int | None = None,
        careful: bool = False,
        pairs: bool = False,
    ) -> Controller: ...
    def arrive(
        self, shape: str, elements: int, items: int, expected: float, costs: Sequence[int] | None = None
    ) -> bool: ...
    def next(
        self, batch: int, space: Callable[[], tuple[int, int] | None] | None = None
    ) -> tuple[int, int, bool, bool] | None: ...
    def passed(self, batch: int, size: int, need: int | None = None) -> None: ...
    def gradients_take(self, size: int) -> None: ...
    def foreseen(self, shape: str, elements: int, size: int, first: bool = False) -> int | None: ...
    def largest(self, shape: str, elements: int, most: int, room: int) -> int | None: ...
    @staticmethod
    def update_need(
        kind: str,
        *,
        together: bool,
        fused: bool,
        momentum: bool,
        extra: bool,
        decays: bool,
        moved: int,
        largest: int,
        new: int,
    ) -> tuple[int, int]: ...
    def count(self, count: float) -> None: ...
    def failed(
        self, batch: int, size: int, types: Sequence[str], message: str, free: int, capacity: int
    ) -> Literal["again", "one-sample", "too-often", "sticky", "not-memory"]: ...
    def restart(self) -> None: ...
    def abandon(self) -> None: ...
    def divide_by(self, divisor: float) -> None: ...
    @property
    def divisor(self) -> float: ...
    @property
    def counted(self) -> float: ...
    @property
    def whole(self) -> bool: ...
    @property
    def empty(self) -> bool: ...
    @property
    def held(self) -> int: ...
    @property
    def parts(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def windows(self) -> int: ...
    @property
    def survived(self) -> int: ...
    def correction(self, total: float) -> float: ...
    def status(self, outcome: Literal["done", "again", "over"]) -> list[float]: ...
    @staticmethod
    def agree(
        statuses: Sequence[Sequence[float]], own: int
    ) -> tuple[Literal["step", "again", "over"], float]: ...
    def stepped(self, flushed: bool) -> None: ...
    def live(self, live: int, budget: Callable[[], int | None]) -> tuple[int, int | None] | None: ...
    @property
    def suspects_growth(self) -> bool: ...
    def scaled(self, scale: float, skipped: bool) -> str | None: ...
    @property
    def scales(self) -> list[float]: ...
    @property
    def skipped(self) -> int: ...
    @staticmethod
    def remedies(
        parameters: int,
        trained: int,
        states: int,
        sample: int,
        message: str,
        free: int,
        applied: Sequence[str],
    ) -> tuple[int, list[tuple[str, int, bool]]]: ...
    def memory(self) -> str: ...
    def remember(self, memory: str) -> None: ...
    @staticmethod
    def judge(
        types: Sequence[str], message: str, free: int, capacity: int
    ) -> Literal["device", "host", "sticky", "other"]: ...

class ImageError(ValueError): ...

@final
class Recipe:
    def __new__(
        cls,
        *,
        crop: str,
        part: tuple[int, ...] | None = None,
        size: tuple[int, int] | None = None,
        resize: int | None = None,
        scale: tuple[float, float] = ...,
        ratio: tuple[float, float] = ...,
        flip: float = 0.0,
        mode: str = "rgb",
        dtype: str | None = None,
        filter: str = "bilinear",  # noqa: A002
        margin: float | None = None,
        page: int = 0,
        upright: bool = True,
    ) -> Recipe: ...

@final
class Image:
    def __new__(
        cls,
        data: bytes | bytearray | memoryview | str | os.PathLike[str],
        recipe: Recipe,
        place: Sequence[int] = ...,
    ) -> Image: ...
    @property
    def source_size(self) -> tuple[int, int]: ...
    @property
    def format(self) -> str: ...
    @property
    def progressive(self) -> bool: ...
    @property
    def size(self) -> tuple[int, int]: ...
    @property
    def bands(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def denominator(self) -> int: ...
    @property
    def cost(self) -> int: ...
    @property
    def mapping(self) -> tuple[float, float, float, float]: ...
    def decode_into(self, address: int, length: int, planar: bool) -> None: ...

@final
class Samples:
    @staticmethod
    def folder(path: str | os.PathLike[str]) -> Samples: ...
    @staticmethod
    def files(paths: Sequence[str], labels: Sequence[int], classes: Sequence[str] = ...) -> Samples: ...
    @staticmethod
    def shards(paths: Sequence[str]) -> Samples: ...
    @staticmethod
    def fetched(fetch: Callable[[int], tuple[Any, Any]], count: int) -> Samples: ...
    def tiles(
        self, size: tuple[int, int], overlap: tuple[int, int], page: int, upright: bool
    ) -> TileSamples: ...
    def __len__(self) -> int: ...
    @property
    def classes(self) -> list[str]: ...
    def name(self, index: int) -> str: ...
    def first(self, recipe: Recipe) -> tuple[str, int]: ...

@final
class Batches:
    def __new__(
        cls,
        samples: Samples,
        recipe: Recipe,
        *,
        size: tuple[int, int],
        dtype: str,
        bands: int,
        convert: bool,
        planar: bool,
        batch_size: int,
        memory: int,
        threads: int,
        prefetch: int,
        pinned: bool,
        shuffle: bool,
        drop_last: bool,
        seed: int,
        epoch: int,
        start: int,
        rank: int,
        world_size: int,
        first: int,
        step: int,
        on_error: str,
        oversize: str,
        cache: tuple[str, int, int] | None = None,
    ) -> Batches: ...
    @property
    def batches(self) -> int: ...
    @property
    def slots(self) -> int: ...
    def position(self, batches: int) -> int: ...
    def offer(self, address: int, length: int) -> int | None: ...
    def take(
        self, milliseconds: int
    ) -> (
        tuple[list[int], list[Any], list[tuple[float, float, float, float]], list[tuple[str, str]]] | None
    ): ...
    def counts(self) -> tuple[int, int, int, int, int]: ...
    def cached(self) -> tuple[int, int, int, int]: ...
    def close(self) -> None: ...

@final
class TileSamples:
    def samples(self) -> Samples: ...
    def place(self, tile: int) -> tuple[int, tuple[int, int, int, int]]: ...

@final
class Volume:
    def __new__(cls, paths: Sequence[str], series: str | None = None, frame: int = 0) -> Volume: ...
    @property
    def shape(self) -> tuple[int, int, int]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def scale(self) -> tuple[float, float]: ...
    @property
    def spacing(self) -> tuple[float, float, float]: ...
    def read_into(
        self,
        depth: tuple[int, int],
        rows: tuple[int, int],
        columns: tuple[int, int],
        scaled: bool,
        address: int,
        length: int,
    ) -> None: ...
