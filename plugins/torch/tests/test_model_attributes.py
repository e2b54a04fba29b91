"""Changes of models and optimizers in training that ``state_dict`` does not contain."""

from __future__ import annotations

import copy
import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _lab import Lab, LineTrial, check_resume
from torch.nn import functional

from detcore.errors import DetcoreError, InvalidExperimentError
from detcore_torch import PyTorchCallback


class Counting(torch.nn.Module):  # type: ignore[misc]  # PyTorch has no types here
    """Scales by a mean in a buffer that is not persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5), persistent=False)
        self.register_buffer("last", None, persistent=False)
        self.gain = 1.0

    def forward(self, x: Any) -> Any:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            self.last = x.detach()[: len(x) // 2].sum(0)
        return self.gain * x - self.mean - 0.1 * (0 if self.last is None else self.last)


class FineTuned(LineTrial):
    """Freezes, unfreezes and adjusts layers at some batches, as tutorials on fine-tuning do."""

    def build_model(self) -> Any:
        model = torch.nn.Sequential(
            torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), Counting(), torch.nn.Dropout(0.4),
            torch.nn.Linear(5, 1),
        )  # fmt: skip
        model[0].requires_grad_(False)
        return model

    def build_optimizer(self, parameters: Any) -> Any:
        return torch.optim.Adam(
            [parameter for parameter in parameters if parameter.requires_grad], 0.05
        )

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        if batch_idx == 3:
            self.model[1].eval()
            self.model[3].p = 0.1
            self.model[2].gain = 0.5
            self.model[4].bias.requires_grad = False
        if batch_idx == 5:
            self.model[0].requires_grad_(True)
            group = {"params": self.model[0].parameters(), "lr": 0.01}
            self.optimizer.add_param_group(group)
        return super().train_batch(batch, epoch_idx, batch_idx)


@pytest.mark.parametrize("cut", [2, 4, 6, 9])
def test_fine_tuning_resumes(tmp_path: Path, cut: int) -> None:
    expected, later = check_resume(FineTuned, tmp_path, cut, 3, 12)
    assert torch.equal(later.trial.model[2].mean, expected.trial.model[2].mean)
    groups = [
        [{**group, "params": len(group["params"])} for group in lab.trial.optimizer.param_groups]
        for lab in (later, expected)
    ]
    assert groups[0] == groups[1]
    assert len(groups[0]) == 2
    assert later.controller.validate() == expected.controller.validate()


def test_start_from_other_trial_selects_moments(tmp_path: Path) -> None:
    class Reversed(FineTuned):
        def build_optimizer(self, parameters: Any) -> Any:
            return torch.optim.Adam([*parameters][:1:-1], 0.05)

    first = Lab(FineTuned).train(7)
    first.save(tmp_path)
    other = Lab(Reversed)
    other.controller.start_from(tmp_path)
    for optimizer in (first.trial.optimizer, other.trial.optimizer):
        assert len(optimizer.state) >= 4
    for parameter, moments in other.trial.optimizer.state.items():
        name = next(n for n, p in other.trial.model.named_parameters() if p is parameter)
        source = dict(first.trial.model.named_parameters())[name]
        assert torch.equal(moments["exp_avg"], first.trial.optimizer.state[source]["exp_avg"])
    assert len(other.trial.optimizer.param_groups) == 1


def test_unsaved_parameters_are_named() -> None:
    class Stray(LineTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 0:
                self.weight = torch.nn.Parameter(torch.ones(7, dtype=torch.float64))
                self.optimizer.add_param_group({"params": [self.weight]})
            return super().train_batch(batch, epoch_idx, batch_idx)

    lab = Lab(Stray).train(1)
    with pytest.raises(InvalidExperimentError, match=r"group 1 of Adam do not belong.*\(7,\)"):
        lab.controller.snapshot(Path())


def test_unknown_optimizer_parameters_are_rejected(tmp_path: Path) -> None:
    class Other(LineTrial):
        def build_model(self) -> Any:
            model = torch.nn.Linear(3, 1)
            model.weight = torch.nn.Parameter(model.weight.detach())
            model.register_buffer("bias", model._parameters.pop("bias").detach())
            return model

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            return functional.mse_loss(self.model(batch[0]), batch[1])

    Lab().train(2).save(tmp_path)
    with pytest.raises(DetcoreError, match=r"Adam of the checkpoint trains model-0\.bias"):
        Lab(Other).restore(tmp_path)


class Stopping(PyTorchCallback):
    """Counts, averages and adjusts a rate in plain attributes, without a ``state_dict``."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.reports = 0
        self.history: list[float] = []
        self.best: dict[str, Any] = {}
        self.generator = torch.Generator().manual_seed(3)

    def on_training_start(self) -> None:
        self.reports = 0  # once in an uninterrupted run

    def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
        self.reports += 1
        self.history.append(avg_metrics["loss"])
        self.best[f"report {self.reports}"] = torch.tensor(min(self.history))
        noise = torch.rand((), generator=self.generator).item()
        for group in self.optimizer.param_groups:
            group["lr"] = 0.05 * noise / self.reports


class StoppingTrial(LineTrial):
    def build_callbacks(self) -> Any:
        self.callback = Stopping(self.optimizer)
        return {"stopping": self.callback}


@pytest.mark.parametrize("cut", [2, 4, 8])
def test_callback_attributes_resume(tmp_path: Path, cut: int) -> None:
    expected, later = check_resume(StoppingTrial, tmp_path, cut, 2, 4, 6, 8, 10)
    assert vars(later.trial.callback).keys() == vars(expected.trial.callback).keys()
    assert later.trial.callback.reports == 5
    assert later.trial.callback.history == expected.trial.callback.history
    assert later.trial.callback.best == expected.trial.callback.best


class Averaging(LineTrial):
    """Stores counters, losses, averages and a copy of the model in plain attributes."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.logger = logging.getLogger("averaging")
        self.layers = [*self.model.children()]
        self.whole = torch.nn.ModuleDict({"model": self.model})
        self.batches = 0
        self.losses: list[float] = []
        self.rates = np.zeros(2)
        self.average: Any = None
        self.slow = torch.optim.swa_utils.AveragedModel(self.model)
        self.generator = torch.Generator().manual_seed(3)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        metrics = super().train_batch(batch, epoch_idx, batch_idx)
        loss = metrics["loss"].detach()
        self.logger.info("loss %s", loss)
        self.batches += 1
        self.losses.append(loss.item())
        self.average = loss if self.average is None else 0.9 * self.average + 0.1 * loss
        self.rates[batch_idx % 2] += torch.rand((), generator=self.generator).item()
        self.slow.update_parameters(self.model)
        for group in self.optimizer.param_groups:
            group["lr"] = 0.05 * float(self.average + self.rates.sum()) / self.batches
        return metrics


@pytest.mark.parametrize("cut", [2, 7])
def test_trial_attributes_resume(
    tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    expected, later = check_resume(Averaging, tmp_path, cut, 10)
    assert later.trial.batches == 10
    assert later.trial.losses == expected.trial.losses
    for name, value in expected.trial.slow.state_dict().items():
        assert torch.equal(value, later.trial.slow.state_dict()[name])
    assert not [warning for warning in caplog.messages if "training has changed" in warning]
    attributes = json.loads((tmp_path / "worker.json").read_text())["attributes"]["trial"]
    assert attributes.keys() == {"average", "batches", "generator", "losses", "rates", "slow"}


class SparseBuffer(LineTrial):
    def build_model(self) -> Any:
        model = super().build_model()
        model.register_buffer("edges", torch.eye(3).to_sparse(), persistent=False)
        return model


class OpenFile(PyTorchCallback):
    def on_training_start(self) -> None:
        self.file = Path(os.devnull).open()  # noqa: SIM115  # open while it trains

    def on_trial_shutdown(self) -> None:
        self.file.close()


class OpeningTrial(LineTrial):
    def build_callbacks(self) -> Any:
        return {"opening": OpenFile()}


class CopyingTrial(LineTrial):
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.best = copy.deepcopy(self.model)
        return super().train_batch(batch, epoch_idx, batch_idx)


@pytest.mark.parametrize(
    ("trial", "topic", "message"),
    [
        (SparseBuffer, "buffer", "do not contain the buffer edges of Linear"),
        (
            OpeningTrial,
            "opening",
            "training has changed opening.file, which a checkpoint cannot hold",
        ),
        (CopyingTrial, "trial.", "training has changed trial.best, which a checkpoint cannot hold"),
    ],
)
def test_unsaved_trial_attributes_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, trial: Any, topic: str, message: str
) -> None:
    """Attributes of models and callbacks are also named, once each."""
    lab = Lab(trial).train(1)
    lab.save(tmp_path)
    lab.save(tmp_path)
    lab.close()
    (warning,) = [text for text in caplog.messages if topic in text]
    assert message in warning
    Lab(trial).restore(tmp_path).train(2).close()


def reweight(seen: list[float]) -> Any:
    """Return a loss that counts its calls, and weights them by the previous losses."""
    calls = 0

    def loss(prediction: Any, y: Any) -> Any:
        nonlocal calls
        calls += 1
        value = functional.mse_loss(prediction, y) * (1 + 0.1 * calls + sum(seen[-2:]))
        seen.append(value.item())
        return value

    return loss


@pytest.mark.parametrize("cut", [2, 7])
def test_loss_variables_resume(tmp_path: Path, cut: int) -> None:
    class Reweighted(LineTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.loss = reweight([])

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            loss = self.loss(self.model(batch[0]), batch[1])
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            return {"loss": loss}

    check_resume(Reweighted, tmp_path, cut, 10)
