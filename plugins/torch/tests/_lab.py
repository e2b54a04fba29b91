"""Controllers without a run: a clock with fixed periods, contexts, and saving on several ranks."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from detcore.core import DistributedContext
from detcore.trial import TrialSetup
from detcore.types import GradientSettings, TrialSettings
from detcore_torch import DataLoader, PyTorchTrial, PyTorchTrialContext
from detcore_torch.pytorch_controller import TorchController

SEED = 11


def line_data(num_records: int = 24) -> torch.utils.data.TensorDataset:
    """Points on a line, float64."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(num_records, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + 0.3
    return torch.utils.data.TensorDataset(x, y)


class LineTrial(PyTorchTrial):
    """Linear regression; subclasses change parts of it."""

    num_records = 24
    num_validated = 10

    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(self.build_model().double())
        self.optimizer = context.wrap_optimizer(self.build_optimizer(self.model.parameters()))

    def build_model(self) -> Any:
        return torch.nn.Linear(3, 1)

    def build_optimizer(self, parameters: Any) -> Any:
        return torch.optim.Adam(parameters, lr=0.05)

    def build_training_data_loader(self) -> Any:
        batch_size = self.context.get_per_slot_batch_size()
        return DataLoader(line_data(self.num_records), batch_size, shuffle=True)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(line_data(self.num_validated), 3)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        x, y = batch
        loss = functional.mse_loss(self.model(x), y)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> Any:
        x, y = batch
        return {"val_loss": functional.mse_loss(self.model(x), y)}


@dataclasses.dataclass
class Clock:
    """Ends units at fixed batches and stores the reports; stops at the last batch."""

    boundaries: list[int]
    reports: list[tuple[int, Mapping[str, float], Sequence[Mapping[str, float]], int]] = (
        dataclasses.field(default_factory=list)
    )
    interrupt_requested: bool = False

    @property
    def next_boundary(self) -> int:
        return self.boundaries[0]

    def boundary(
        self,
        steps_completed: int,
        training_metrics: Mapping[str, float],
        batch_metrics: Sequence[Mapping[str, float]],
        *,
        n_records: int,
    ) -> bool:
        assert self.boundaries.pop(0) == steps_completed
        self.reports.append((steps_completed, training_metrics, batch_metrics, n_records))
        return bool(self.boundaries)


class Lab:
    """A trial and its controller, as in a separate process."""

    def __init__(
        self,
        trial_class: type[PyTorchTrial] = LineTrial,
        *,
        distributed: Any = None,
        steps_completed: int = 0,
        batch_size: int = 4,
        seed: int = SEED,
        learning_rate: float | None = None,
        **optimizations: Any,
    ) -> None:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        self.place = distributed or DistributedContext()
        self.context = PyTorchTrialContext(
            TrialSetup(
                config={},
                settings=TrialSettings(gradients=GradientSettings(**optimizations)),
                hparams={"global_batch_size": batch_size, "learning_rate": learning_rate},
                seed=seed,
                distributed=self.place,
                steps_completed=steps_completed,
            )
        )
        self.trial: Any = trial_class(self.context)
        self.controller = TorchController(self.trial, self.context)
        self.clock = Clock([])

    def train(self, *boundaries: int) -> Lab:
        """Train up to the last of the given batches."""
        self.clock = Clock(list(boundaries))
        self.controller.run(self.clock)  # type: ignore[arg-type]  # what is used of it
        return self

    def save(self, directory: Path) -> Path:
        """Save as detcore does: the chief's directory is the checkpoint."""
        local = directory / "workers" / str(self.place.rank) if self.place.rank else directory
        local.mkdir(parents=True, exist_ok=True)
        if not self.place.rank:
            (directory / "clock.json").write_text(json.dumps({"workers": self.place.size}))
        self.controller.save(local)
        self.place.barrier()
        return directory

    def restore(self, directory: Path) -> Lab:
        self.controller.restore(directory)
        return self

    def state(self) -> dict[str, Any]:
        """Return weights, buffers and the optimizers' states as plain lists."""
        result = {
            f"{index}.{name}": value.tolist()
            for index, model in enumerate(self.context.models)
            for name, value in model.state_dict().items()
        }
        for index, optimizer in enumerate(self.context.optimizers):
            for name, state in optimizer.state_dict()["state"].items():
                result |= {f"o{index}.{name}.{key}": torch.as_tensor(value).tolist()
                          for key, value in state.items() if value is not None}  # fmt: skip
            result[f"lr.{index}"] = [group["lr"] for group in optimizer.param_groups]
        return result

    def close(self) -> None:
        self.controller.close()


def check_resume(
    trial_class: type[PyTorchTrial], folder: Path, cut: int, *boundaries: int, **options: Any
) -> tuple[Lab, Lab]:
    """Check that training resumed after a batch ends like uninterrupted training; return both."""
    expected = Lab(trial_class, **options).train(*boundaries)
    Lab(trial_class, **options).train(*[n for n in boundaries if n < cut], cut).save(folder)
    later = Lab(trial_class, steps_completed=cut, **options).restore(folder)
    later.train(*[n for n in boundaries if n > cut])
    assert later.state() == expected.state()
    return expected, later
