"""Faults in one step of a toy or PyTorch trial, as training code, with the expected results."""

from __future__ import annotations

import dataclasses
import random

from detcore.data import IndexSampler

__all__ = [
    "BATCH_SIZE",
    "EXTENDER",
    "FAULTS",
    "Fault",
    "draw_fault",
    "list_batches",
    "list_torch_batches",
]

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
# Three layers. A fault changes the first or a later layer.
TORCH_MODEL = """
import os

import numerics
import torch
from detcore_torch import PyTorchTrial

FAULT, STEP, RECORD, LAYER = {kind!r}, {step}, {record}, {layer}
BATCH_SIZE = {batch_size}


class Order(torch.utils.data.Sampler):
    def __len__(self):
        return {num_records}

    def __iter__(self):
        order = torch.randperm({num_records}, generator=torch.Generator().manual_seed(5)).tolist()
        if FAULT == "record order":
            last = STEP * BATCH_SIZE
            order[last - BATCH_SIZE : last] = order[-BATCH_SIZE:]
        return iter(order)


class Line(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.layers = [torch.nn.Linear(8, 16), torch.nn.Linear(16, 16), torch.nn.Linear(16, 1)]
        first, second, third = self.layers
        self.model = context.wrap_model(torch.nn.Sequential(
            first, torch.nn.Dropout(0.2), torch.nn.Tanh(), second, torch.nn.Tanh(), third
        ))
        self.rate = context.get_hparam("learning_rate")
        groups = [dict(params=list(layer.parameters())) for layer in self.layers]
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(groups, lr=self.rate))

    def train_batch(self, batch, epoch_idx, batch_idx):
        is_now = batch_idx == STEP - 1
        if FAULT == "random draw" and is_now:
            torch.rand(1)
        is_other = (FAULT == "operation" and is_now) or (
            batch_idx >= STEP - 1
            and (os.environ.get("OMP_NUM_THREADS") == "3" or numerics.__version__ == "2.0"
                 or getattr(numerics, "is_extended", False))
        )
        self.optimizer.param_groups[LAYER]["lr"] = self.rate * 1.01 if is_other else self.rate
        x, y = batch
        loss = ((self.model(x)[:, 0] - y) ** 2).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.optimizer.param_groups[LAYER]["lr"] = self.rate
        return dict(loss=loss)

    def evaluate_batch(self, batch):
        return dict(val_loss=((self.model(batch[0])[:, 0] - batch[1]) ** 2).mean())

    def data(self):
        x = torch.randn({num_records}, 8, generator=torch.Generator().manual_seed(3))
        if FAULT == "record content":
            x.numpy()[RECORD].view("uint8")[2] ^= 1
        return torch.utils.data.TensorDataset(x, x[:, 0] - 2 * x[:, 1])

    def build_training_data_loader(self):
        return torch.utils.data.DataLoader(self.data(), BATCH_SIZE, sampler=Order())

    def build_validation_data_loader(self):
        return torch.utils.data.DataLoader(
            torch.utils.data.Subset(self.data(), range(64)), 64
        )
"""
# Indices of the layers in the model, which name their tensors.
_LAYERS = (0, 3, 5)


def list_torch_batches(num_steps: int) -> list[list[int]]:
    """Return the records of each step of a PyTorch trial."""
    import torch

    order = torch.randperm(NUM_RECORDS, generator=torch.Generator().manual_seed(5)).tolist()
    per_epoch = NUM_RECORDS // BATCH_SIZE
    starts = [number % per_epoch * BATCH_SIZE for number in range(num_steps)]
    return [order[start : start + BATCH_SIZE] for start in starts]


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault, and the expected result.

    Attributes:
        kind: Kind of the difference from the first run.
        step: The first changed step.
        record: The changed record, or None.
        layer: The changed layer of a PyTorch trial, or None.
        is_torch: Whether the trial uses PyTorch.
    """

    kind: str
    step: int
    record: int = 0
    layer: int = 0
    is_torch: bool = False

    @property
    def answer(self) -> tuple[int, str, str | None]:
        """The step, the kind and the first tensor."""
        kinds = {
            "record order": "record order",
            "record content": "record content",
            "random draw": "random draw",
        }
        kind = kinds.get(self.kind, "tensor")
        if self.is_torch and self.kind == "hyperparameter":
            return (
                0,
                "initial state",
                "optimizer.param_groups[0]['lr']",
            )  # generators are part of the state
        if self.is_torch:
            layer = _LAYERS[self.layer if kind == "tensor" else 0]
            return self.step, kind, f"model.{layer}.weight"
        return self.step, kind, "model.weights" if kind == "tensor" else "gradient.weights"

    @property
    def setting(self) -> str | None:
        """The setting to be named, if the fault is a setting."""
        return {
            "hyperparameter": "hyperparameters.learning_rate",
            "library version": "package numerics",
            "thread count": "environment variable OMP_NUM_THREADS",
            "plugin": "plugin extender",
        }.get(self.kind)

    def model(self) -> str:
        """Return the training code."""
        return (TORCH_MODEL if self.is_torch else MODEL).format(
            **dataclasses.asdict(self), num_records=NUM_RECORDS, batch_size=BATCH_SIZE
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
# Files of a plugin that changes computations.
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
    "extender-1.0.dist-info/entry_points.txt": ("[detcore]\nextender = extender\n"),
}


def draw_fault(kind: str, seed: int, batches: list[list[int]], *, is_torch: bool = False) -> Fault:
    """Draw the step and the record of a fault.

    Args:
        kind: A kind in `FAULTS`.
        seed: Seed of the draw.
        batches: Records of each step.
        is_torch: Whether the trial uses PyTorch.
    """
    generator = random.Random(seed)
    step, layer = generator.randint(1, len(batches)), generator.randrange(3)
    if kind == "hyperparameter":
        return Fault(kind, 1, is_torch=is_torch)
    if kind == "record order" and is_torch:
        step = (step - 1) % (NUM_RECORDS // BATCH_SIZE - 1) + 1  # the record recurs in each epoch
    record = batches[step - 1][0]
    if kind == "record content":
        step = next(number for number, records in enumerate(batches, 1) if record in records)
    return Fault(kind, step, record, layer, is_torch)


def list_batches(seed: int, num_steps: int) -> list[list[int]]:
    """Return the records of each step of a trial.

    Args:
        seed: Seed of the trial.
        num_steps: Number of steps.
    """
    sampler = IndexSampler(NUM_RECORDS, BATCH_SIZE, shuffle=True, seed=seed)
    return [[int(index) for index in sampler.batch(number)] for number in range(num_steps)]
