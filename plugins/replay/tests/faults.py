"""Faults in one step of a toy trial, as code that is trained, with the answer for each."""

from __future__ import annotations

import dataclasses
import random

from detcore.data import IndexSampler

__all__ = ["BATCH_SIZE", "EXTENDER", "FAULTS", "Fault", "draw_fault", "list_batches"]

NUM_RECORDS = 4096
BATCH_SIZE = 8
# A record is used once in an epoch of 512 steps.
MODEL = """
import os

import numpy as np
import numerics
from detcore_toy import ToyTrial

FAULT, STEP, RECORD = {kind!r}, {step}, {record}


class Other:
    def __init__(self, sampler):
        self.sampler = sampler
        self.batches_per_epoch = sampler.batches_per_epoch

    def batch(self, number):
        found = self.sampler.batch(number)
        return found[::-1] if number == STEP - 1 else found


class Twice:
    def __init__(self, inner, is_now):
        self.inner, self.is_now, self.bit_generator = inner, is_now, inner.bit_generator

    def normal(self, **arguments):
        if self.is_now:
            self.inner.normal()
        return self.inner.normal(**arguments)


class Line(ToyTrial):
    def noise_of(self, controller):
        return getattr(controller._noise, "inner", controller._noise)

    def build_data(self):
        x = np.random.default_rng(3).normal(size=({num_records}, 3))
        y = x @ np.array([1.0, -2.0, 0.5])
        if FAULT == "record content":
            x[RECORD].view(np.uint8)[4] ^= 1
        return x, y

    def on_batch(self, step):
        controller = self.controller
        if not hasattr(self, "rate"):
            self.rate = controller._rate
            if FAULT == "record order":
                controller._sampler = Other(controller._sampler)
        is_now = step == STEP - 1
        if FAULT == "random draw" and step >= 0:
            controller._noise = Twice(self.noise_of(controller), is_now)
        is_other = (FAULT == "operation" and is_now) or (
            step >= STEP - 1
            and (os.environ.get("OMP_NUM_THREADS") == "3" or numerics.__version__ == "2.0"
                 or getattr(numerics, "is_extended", False))
        )
        controller._rate = self.rate * 1.01 if is_other else self.rate
"""


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault, and the answer that names it.

    Attributes:
        kind: What differs from the first run.
        step: The first step that it changes.
        record: The record that it changes, if it does.
    """

    kind: str
    step: int
    record: int = 0

    @property
    def answer(self) -> tuple[int, str, str | None]:
        """The step, the kind and the first tensor."""
        kinds = {
            "record order": "record order",
            "record content": "record content",
            "random draw": "random draw",
        }
        kind = kinds.get(self.kind, "tensor")
        return self.step, kind, "model.weights" if kind == "tensor" else "gradient.weights"

    @property
    def setting(self) -> str | None:
        """The setting that has to be named, if the fault is one."""
        return {
            "hyperparameter": "hyperparameters.learning_rate",
            "library version": "package numerics",
            "thread count": "environment variable OMP_NUM_THREADS",
            "plugin": "plugin extender",
        }.get(self.kind)

    def model(self) -> str:
        """Return the code that is trained."""
        return MODEL.format(
            kind=self.kind, step=self.step, record=self.record, num_records=NUM_RECORDS
        )


FAULTS = (
    "record order",
    "record content",
    "random draw",
    "operation",
    "hyperparameter",
    "library version",
    "plugin",
    "thread count",
)
# Files of a plugin that changes how the code computes.
EXTENDER = {
    "extender.py": """
import numerics
from detcore import hookimpl

numerics.is_extended = True

@hookimpl
def detcore_register_framework():
    return []
""",
    "extender-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: extender\nVersion: 1.0\n",
    "extender-1.0.dist-info/entry_points.txt": (
        "[detcore]\nextender = extender\n[detcore.api]\nextender = 1.0\n"
    ),
}


def draw_fault(kind: str, seed: int, batches: list[list[int]]) -> Fault:
    """Draw the step of a fault, and its record.

    Args:
        kind: One of `FAULTS`.
        seed: Of the draw.
        batches: Records of each step.
    """
    step = random.Random(seed).randint(1, len(batches))
    if kind == "hyperparameter":
        return Fault(kind, 1)
    record = batches[step - 1][0]
    if kind == "record content":
        step = next(number for number, records in enumerate(batches, 1) if record in records)
    return Fault(kind, step, record)


def list_batches(seed: int, num_steps: int) -> list[list[int]]:
    """Return the records of each step of a trial.

    Args:
        seed: The trial's.
        num_steps: Its length.
    """
    sampler = IndexSampler(NUM_RECORDS, BATCH_SIZE, shuffle=True, seed=seed)
    return [[int(index) for index in sampler.batch(number)] for number in range(num_steps)]
