"""Sequences for the loader tests, in a module that worker processes can import.

These are plain classes, because the loader does not depend on Keras.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import Any

import numpy as np


class Plain:
    """Items with a few records. Item i is filled with i."""

    def __init__(self, size: int = 20, records: int = 4) -> None:
        self.size = size
        self.records = records

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        x = np.full((self.records, 3), index, np.float32)
        return x, np.arange(self.records) + index


class Random(Plain):
    """Items that depend on Python's and NumPy's generators."""

    def __getitem__(self, index: int) -> Any:
        return np.random.rand(3), np.array([random.random(), index])


class OwnGenerators(Plain):
    """Items that depend on generators in attributes. One generator also shuffles the order."""

    def __init__(self, size: int = 20, seed: int | None = 4) -> None:
        super().__init__(size)
        self.rng = np.random.default_rng(seed)
        self.others = {"old": np.random.RandomState(seed), "python": [random.Random(seed)]}
        self.order = np.arange(size)

    def __getitem__(self, index: int) -> Any:
        numbers = [self.others["old"].rand(), self.others["python"][0].random()]
        return self.rng.normal(size=3), np.array([self.order[index], *numbers])

    def on_epoch_end(self) -> None:
        self.rng.shuffle(self.order)


class Shuffled(Random):
    """A Sequence that shuffles its order after each epoch."""

    def __init__(self, size: int = 20) -> None:
        super().__init__(size)
        self.order = list(range(size))

    def __getitem__(self, index: int) -> Any:
        return np.array([self.order[index]]), np.array([np.random.rand(), random.random()])

    def on_epoch_end(self) -> None:
        random.shuffle(self.order)
        np.random.shuffle(self.order)


class Given(Plain):
    """Items that `make` returns. Functions of this module can be pickled."""

    def __init__(self, make: Any, size: int = 4) -> None:
        super().__init__(size)
        self.make = make

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Slow(Plain):
    """Items that take time. Odd items take less time, so they could overtake."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.03 if index % 2 else 0.06)
        return np.array([index]), np.array([os.getpid()])


class Counting(Plain):
    """Counts started items in a file that processes share."""

    def __init__(self, path: str, size: int = 50) -> None:
        super().__init__(size)
        self.path = path

    def __getitem__(self, index: int) -> Any:
        with open(self.path, "ab") as file:
            file.write(b"x")
        return np.array([index]), np.array([0])


class SlowlyCounting(Counting):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.3)
        return super().__getitem__(index)


class Failing(Plain):
    def __getitem__(self, index: int) -> Any:
        if index == 7:
            self.deeper()
        return super().__getitem__(index)

    def deeper(self) -> None:
        raise KeyError("no such file: img_0007.png — ünïcode")


class Killed(Plain):
    """Kills the worker that prepares item 5, like the kernel when memory runs out."""

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
        return super().__getitem__(index)


class Exiting(Plain):
    def __getitem__(self, index: int) -> Any:
        os._exit(3)


class WithLambda(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.augment = lambda x: x


class WithLock(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Refuses(Plain):
    """Can be pickled, but not unpickled."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise OSError("the data file is locked by another process")


# -- functions for `Given` -------------------------------------------------------------------------


def nested(index: int) -> Any:
    return (
        {"image": np.ones((2, 3), np.uint8), "text": np.array([["é", ""], ["bc", "d"]], object)},
        [np.float32(index), np.arange(6).reshape(2, 3).T, 7, 0.5, "name", True, None],
        np.array([b"\x00\xff", b""], object),
        {3: np.array([None, 3], object)},
    )


def all_types(index: int) -> Any:
    kinds = "?bBhHiIlLefdFD"
    plain = [np.arange(5).astype(kind) for kind in kinds]
    record = np.array([(1, 2.5)], dtype=[("a", "<i4"), ("b", ">f8")])
    return [
        *plain,
        record,
        np.array(["2026-11-21"], "datetime64[D]"),
        np.array(["abc", "d"]),
        np.array([b"ab"]),
        np.array(3.5),
        np.zeros((0, 4), np.float32),
        np.asfortranarray(np.arange(12).reshape(3, 4)),
        np.arange(10)[::-2],
        np.broadcast_to(np.float32(2), (3, 3)),
        np.arange(3).astype(">i4"),
    ], None


def growing(index: int) -> Any:
    return np.full((1 + index * 5000, 3), index, np.float64), np.arange(index)


def changing_types(index: int) -> Any:
    return np.zeros(3, "if"[index % 2]), np.zeros(2 + index % 3)


def foreign(index: int) -> Any:
    return {"x": threading}, np.zeros(1)


def stuck(index: int) -> Any:
    if index:
        time.sleep(1000)
    return np.zeros(1), None


def stuck_deaf(index: int) -> Any:
    if index:
        sum(range(10**12))  # a call into C that does not release the GIL
    return np.zeros(1), None


def visible_gpus(index: int) -> Any:
    return os.environ["CUDA_VISIBLE_DEVICES"], np.zeros(1)
