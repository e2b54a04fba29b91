"""Faults in a restore are reported before the first batch, with the part that differs.

Most faults are planted in the live objects between the restore and the comparison. The others
replace functions of detcore that save or restore, as in faults that detcore once had.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _lab import Lab, LineTrial
from torch.nn import functional

from detcore.checkpoint.restore_audit import audited, check_restored, read_audit
from detcore.errors import InexactResumeError
from detcore.trial import AttributeTracker
from detcore_torch import LRScheduler, PyTorchCallback
from detcore_torch.callbacks import Callbacks
from detcore_torch.data.data_loader import BatchStream
from detcore_torch.state import model_attributes, shared_state, state_files, worker_state


class Model(torch.nn.Module):
    """With batch normalization, dropout, and a buffer that is not persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.dropout = torch.nn.Dropout(0.3)
        self.last = torch.nn.Linear(4, 1)
        self.register_buffer("seen", torch.zeros(2), persistent=False)
        self.temperature = 1.0

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            self.seen += 1
        return self.last(self.dropout(self.norm(self.first(x)))) / self.temperature


class Helper:
    """An object of the user's code with containers."""

    def __init__(self) -> None:
        self.history: list[list[float]] = []
        self.counts: dict[str, int] = {}


class Stopper(PyTorchCallback):
    def __init__(self) -> None:
        self.wait = 0
        self.best = np.zeros(3)

    def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
        self.wait += 1
        self.best = self.best + avg_metrics["loss"]


class Own(PyTorchCallback):
    """With methods for its state, which contains a time."""

    calls = 0

    def __init__(self) -> None:
        self.count = 0

    def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        Own.calls += 1
        return {"count": self.count, "time": Own.calls}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["count"]


class FullTrial(LineTrial):
    """Has each kind of state that a trial may have."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.scheduler = context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20),
            LRScheduler.StepMode.STEP_EVERY_BATCH,
        )
        self.scaler = context.wrap_scaler(
            torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
        )
        self.average = torch.optim.swa_utils.AveragedModel(
            self.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        self.side = torch.nn.Parameter(torch.ones(2))
        self.side_optimizer = torch.optim.SGD([self.side], lr=0.1, momentum=0.9)
        self.helper = Helper()
        self.generators = [random.Random(1), np.random.default_rng(2)]
        self.torch_generator = torch.Generator().manual_seed(3)
        self.total = 0.0
        self.best: float | None = 1.0

    def build_model(self) -> Any:
        return Model()

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        return {"stopper": Stopper(), "own": Own()}

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        x, y = batch
        if batch_idx == 2:
            self.model.first.bias.requires_grad = False
            self.model.norm.eval()
            self.model.dropout.p = 0.2
        noise = torch.rand(y.shape, generator=self.torch_generator)
        noise = noise * self.generators[0].random() * self.generators[1].random()
        loss = functional.mse_loss(self.model(x), y + noise)
        self.context.backward(self.scaler.scale(loss))
        self.context.step_optimizer(self.optimizer, scaler=self.scaler)
        self.scaler.update()
        self.average.update_parameters(self.model)
        self.side_optimizer.zero_grad()
        (self.side**2).sum().backward()
        self.side_optimizer.step()
        self.helper.history.append([loss.item(), float(batch_idx)])
        self.helper.counts["batches"] = batch_idx + 1
        self.total += loss.item()
        self.best = None if batch_idx % 2 else loss.item()
        return {"loss": loss}


class LayoutTrial(LineTrial):
    """With L-BFGS, which sums over the memory of all parameters, and two parameter groups."""

    def build_optimizer(self, parameters: Any) -> Any:
        return torch.optim.LBFGS(list(parameters), lr=0.1, max_iter=2)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        x, y = batch

        def closure() -> Any:
            self.optimizer.zero_grad()
            loss = functional.mse_loss(self.model(x), y)
            loss.backward()
            return loss

        return {"loss": self.optimizer.step(closure)}


def save(folder: Path, trial: type[LineTrial] = FullTrial, batches: int = 6) -> Path:
    lab = Lab(trial).train(batches)
    (folder / "clock.json").write_text('{"workers": 1}')
    audited(lab.controller, lab.controller.save)(folder)
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("checkpoint"))


def check(lab: Lab, folder: Path) -> None:
    assert check_restored(lab.controller, read_audit(folder), reaction="warn")


def first_moment(lab: Lab) -> Any:
    return lab.trial.optimizer.state[lab.trial.model.first.weight]["exp_avg"]


def misalign(tensor: Any) -> None:
    memory = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape)
    tensor.data = memory.copy_(tensor)


def transpose(tensor: Any) -> None:
    tensor.data = tensor.data.t().contiguous().t()


def set_scaler(lab: Lab, **changes: float) -> None:
    lab.trial.scaler.load_state_dict({**lab.trial.scaler.state_dict(), **changes})


def drop_slot(lab: Lab) -> None:
    del lab.trial.optimizer.state[lab.trial.model.last.weight]["exp_avg_sq"]


def swap_average(lab: Lab) -> None:
    average = lab.trial.average.module.last.weight
    average.data, lab.trial.model.last.weight.data = lab.trial.model.last.weight.data, average.data


MOMENT = r"optimizer\.state\['first\.weight'\]\['exp_avg'\] was saved"
PLANTED: dict[str, tuple[Callable[[Lab], Any], str]] = {
    "optimizer slot zeroed": (lambda lab: first_moment(lab).zero_(), MOMENT + " and not restored"),
    "optimizer slot missing": (
        drop_slot, r"optimizer\.state\['last\.weight'\]\['exp_avg_sq'\] was"
    ),
    "optimizer step": (
        lambda lab: lab.trial.optimizer.state[lab.trial.model.last.bias]["step"].fill_(1),
        r"optimizer\.state\['last\.bias'\]\['step'\] was",
    ),
    "optimizer slot transposed": (
        lambda lab: transpose(first_moment(lab)),
        MOMENT + " with the strides",
    ),
    "optimizer slot misaligned": (
        lambda lab: misalign(first_moment(lab)),
        r"optimizer\.state\['first\.weight'\]\['exp_avg'\]\.alignment exists now",
    ),
    "optimizer slot of another type": (
        lambda lab: setattr(first_moment(lab), "data", first_moment(lab).float()),
        MOMENT + r" as float64 \[4, 3\] and is float32",
    ),
    "learning rate": (
        lambda lab: lab.trial.optimizer.param_groups[0].update(lr=0.05),
        r"optimizer\.param_groups\[0\]\['lr'\] was",
    ),
    "weight": (lambda lab: lab.trial.model.last.bias.data.add_(1e-9), r"model\.last\.bias was"),
    "weight of another layout": (
        lambda lab: transpose(lab.trial.model.first.weight),
        r"model\.first\.weight was saved with the strides",
    ),
    "statistics of normalization": (
        lambda lab: lab.trial.model.norm.running_mean.zero_(), r"model\.norm\.running_mean was"
    ),
    "buffer that is not persistent": (
        lambda lab: lab.trial.model.seen.zero_(), r"model\.seen was saved and not restored"
    ),
    "requires_grad": (
        lambda lab: lab.trial.model.first.bias.requires_grad_(True),
        r"model\.first\.bias\.requires_grad was saved and not restored: it was False and is True",
    ),
    "mode of a module": (lambda lab: lab.trial.model.norm.train(), r"model\.norm\.training was"),
    "attribute of a module": (
        lambda lab: setattr(lab.trial.model.dropout, "p", 0.3), r"model\.dropout\.p was"
    ),
    "scheduler": (
        lambda lab: setattr(lab.trial.scheduler, "last_epoch", 0),
        r"scheduler\.last_epoch was",
    ),
    "scaler": (
        lambda lab: set_scaler(lab, scale=8.0), r"scaler\.scale was .* it was 32\.0 and is 8"
    ),
    "count of the scaler": (
        lambda lab: set_scaler(lab, _growth_tracker=2), r"scaler\.growth_tracker was"
    ),
    "average": (
        lambda lab: lab.trial.average.module.last.weight.data.zero_(),
        r"trial\.average\['module\.last\.weight'\] was",
    ),
    "swapped average": (swap_average, r"model\.last\.weight was(.|\n)*trial\.average\["),
    "count of the average": (
        lambda lab: lab.trial.average.n_averaged.zero_(), r"trial\.average\['n_averaged'\] was"
    ),
    "optimizer in an attribute": (
        lambda lab: lab.trial.side_optimizer.state.clear(),
        r"trial\.side_optimizer\['state'\]\[0\]\['momentum_buffer'\] was",
    ),
    "Python's generator": (lambda lab: random.random(), r"random\.python was"),
    "NumPy's generator": (lambda lab: np.random.rand(), r"random\.numpy was"),
    "PyTorch's generator": (lambda lab: torch.rand(1), r"random\.torch was"),
    "generators in attributes": (
        lambda lab: (lab.trial.generators[0].random(), lab.trial.generators[1].random()),
        r"trial\.generators\[0\](.|\n)*trial\.generators\[1\]",
    ),
    "PyTorch's generator in an attribute": (
        lambda lab: lab.trial.torch_generator.manual_seed(3), r"trial\.torch_generator was"
    ),
    "number in an attribute": (
        lambda lab: setattr(lab.trial, "total", 0.0), r"trial\.total was saved and not restored"
    ),
    "None in an attribute": (lambda lab: setattr(lab.trial, "best", 1.0), r"trial\.best was"),
    "list in an attribute": (
        lambda lab: lab.trial.helper.history.pop(), r"trial\.helper\.history\[5\] was"
    ),
    "dictionary in an attribute": (
        lambda lab: lab.trial.helper.counts.update(batches=0),
        r"trial\.helper\.counts\['batches'\] was saved and not restored: it was 6 and is 0",
    ),
    "count of a callback": (
        lambda lab: setattr(lab.controller._callbacks._callbacks["stopper"], "wait", 0),
        r"callback stopper\.wait was",
    ),
    "array of a callback": (
        lambda lab: lab.controller._callbacks._callbacks["stopper"].best.fill(0),
        r"callback stopper\.best was",
    ),
    "state of a callback": (
        lambda lab: setattr(lab.controller._callbacks._callbacks["own"], "count", 0),
        r"callback own\['count'\] was",
    ),
    "data position": (
        lambda lab: lab.controller._feed.seek(5), r"data\.position was .* it was 6 and is 5"
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_fault_is_named(checkpoint: Path, fault: str) -> None:
    plant, part = PLANTED[fault]
    lab = Lab(FullTrial).restore(checkpoint)
    plant(lab)
    with pytest.raises(InexactResumeError, match=part):
        check(lab, checkpoint)
    check_restored(lab.controller, read_audit(checkpoint), reaction="ignore")


def test_fault_without_effect_on_later_batches_is_ignored(checkpoint: Path) -> None:
    lab = Lab(FullTrial).restore(checkpoint)
    lab.trial.model.last.weight.grad = torch.ones_like(lab.trial.model.last.weight)
    lab.trial.resumed_at = 12.5  # no part of the checkpoint
    check(lab, checkpoint)


@pytest.mark.parametrize("trial", [FullTrial, LayoutTrial, LineTrial])
def test_exact_restore_is_not_reported(tmp_path: Path, trial: type[LineTrial]) -> None:
    for batches in range(1, 18):
        folder = tmp_path / str(batches)
        folder.mkdir()
        save(folder, trial, batches)
        lab = Lab(trial).restore(folder)
        check(lab, folder)
        again = folder / "again"
        again.mkdir()
        audited(lab.controller, lab.controller.save)(again)  # a trial that is killed twice
        check(Lab(trial).restore(again), again)


def skip_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_state, "restore_generators", lambda *states: None)


def skip_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    read = shared_state.attributes_in
    monkeypatch.setattr(
        shared_state,
        "attributes_in",
        lambda models, folder: read(models, folder, model_attributes.restore_buffers),
    )


def share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore all tensors of a file into one block that is not aligned, as safetensors does."""

    def place_tensors(tensors: dict[str, Any], layouts: Any) -> dict[str, Any]:
        placed = {name: tensor.clone() for name, tensor in tensors.items()}
        for name, tensor in placed.items():
            if name.startswith("optimizer."):
                misalign(tensor)
        return placed

    monkeypatch.setattr(state_files, "place_tensors", place_tensors)


def restart_schedulers(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = torch.optim.lr_scheduler.CosineAnnealingLR
    monkeypatch.setattr(kind, "load_state_dict", lambda scheduler, state: None)


def forget_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    load = torch.optim.Adam.load_state_dict

    def load_some(optimizer: Any, state: dict[str, Any]) -> None:
        load(optimizer, {**state, "state": {k: v for k, v in state["state"].items() if k}})

    monkeypatch.setattr(torch.optim.Adam, "load_state_dict", load_some)


def restore_wrong_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    seek = BatchStream.seek
    monkeypatch.setattr(BatchStream, "seek", lambda stream, start: seek(stream, start + 1))


def forget_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Callbacks, "load_state_dict", lambda callbacks, states: None)


def forget_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttributeTracker, "restore", lambda tracker, values: None)


def omit_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttributeTracker, "capture", lambda tracker: {})


def omit_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save an optimizer without one slot, as an optimizer with its own ``state_dict`` may."""
    full = torch.optim.Adam.state_dict

    def state_dict(optimizer: Any) -> dict[str, Any]:
        state = full(optimizer)
        kept = {
            key: {name: value for name, value in slots.items() if name != "exp_avg_sq"}
            for key, slots in state["state"].items()
        }
        return {**state, "state": kept}

    monkeypatch.setattr(torch.optim.Adam, "state_dict", state_dict)


def omit_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_attributes, "restore_buffers", lambda model, state: None)


EARLIER_FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (skip_generators, r"random\.torch was saved and not restored"),
    (skip_flags, r"model\.first\.bias\.requires_grad was(.|\n)*model\.norm\.training was"),
    (share_memory, r"optimizer\.state\['first\.weight'\]\['exp_avg'\]\.alignment exists now"),
    (restart_schedulers, r"scheduler\.last_epoch was saved and not restored"),
    (forget_optimizer, r"optimizer\.state\['first\.weight'\]\['exp_avg'\] was"),
    (restore_wrong_batch, r"data\.position was saved and not restored: it was 6 and is 7"),
    (forget_callbacks, r"callback stopper\.wait was"),
    (forget_attributes, r"trial\.(average|helper)(.|\n)*more parts"),
    (omit_attributes, r"trial\.(average|helper)(.|\n)*more parts"),
    (omit_slots, r"optimizer\.state\['first\.weight'\]\['exp_avg_sq'\] was"),
    (omit_buffers, r"model\.seen was saved and not restored"),
]


@pytest.mark.parametrize(("plant", "part"), EARLIER_FAULTS)
def test_earlier_fault_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Any, part: str
) -> None:
    plant(monkeypatch)
    folder = save(tmp_path)
    lab = Lab(FullTrial).restore(folder)
    with pytest.raises(InexactResumeError, match=part):
        check(lab, folder)


class Streaming(LineTrial):
    """With an iterator, which no checkpoint can hold."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.numbers = iter(())

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.numbers = iter(range(batch_idx))
        return super().train_batch(batch, epoch_idx, batch_idx)


class SparseBuffer(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 1)
        self.register_buffer("graph", torch.eye(2).to_sparse(), persistent=False)


class Sparse(LineTrial):
    def build_model(self) -> Any:
        return SparseBuffer()


def test_unsaved_part_is_named_before_training(caplog: pytest.LogCaptureFixture) -> None:
    Lab(Streaming)
    assert "a checkpoint cannot hold the position of the iterator trial.numbers" in caplog.text
    Lab(Sparse)
    assert "checkpoints do not contain the buffer graph of SparseBuffer" in caplog.text


def test_unsaved_attribute_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = save(tmp_path, Streaming)
    lab = Lab(Streaming).restore(folder)
    check(lab, folder)
    assert "training had changed parts that the checkpoint does not contain" in caplog.text
    assert "  trial.numbers" in caplog.text
    with pytest.raises(InexactResumeError, match=r"  trial\.numbers\n"):
        check_restored(lab.controller, read_audit(folder), reaction="fail")
