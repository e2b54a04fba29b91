"""Training on one worker, compared with loops in plain PyTorch."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from _lab import SEED, Lab, LineTrial, line_data
from torch.nn import functional

from detcore.data import IndexSampler
from detcore.errors import ContextStateError, DetcoreError, InvalidExperimentError, MetricError
from detcore_torch import (
    DataLoader,
    LRScheduler,
    MetricReducer,
    PyTorchCallback,
    PyTorchTrial,
    Reducer,
)
from detcore_torch.data.data_loader import check_trial_loader


def plain_loop(
    num_batches: int, *, every: int = 1, divisor: int = 1, clip: float = 0.0
) -> list[Any]:
    """Train the model of `LineTrial` in plain PyTorch; return weights and losses."""
    torch.manual_seed(SEED)
    model = torch.nn.Linear(3, 1).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    x, y = line_data().tensors
    sampler = IndexSampler(24, 4, shuffle=True, seed=SEED)
    losses = []
    for number in range(num_batches):
        records = torch.from_numpy(sampler.batch(number))
        loss = functional.mse_loss(model(x[records]), y[records])
        loss.backward()
        losses.append(loss.item())
        if (number + 1) % every == 0:
            for parameter in model.parameters():
                parameter.grad /= divisor
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return [model.weight.tolist(), model.bias.tolist(), losses]


def outcome(lab: Lab) -> list[Any]:
    state = lab.state()
    losses = [batch["loss"] for report in lab.clock.reports for batch in report[2]]
    return [state["0.weight"], state["0.bias"], losses]


def test_training_equals_plain_loop_bit_for_bit() -> None:
    lab = Lab().train(4, 10)
    assert outcome(lab) == plain_loop(10)
    (steps, metrics, batches, n_records), _ = lab.clock.reports
    assert (steps, len(batches), n_records) == (4, 4, 16)
    assert metrics["loss"] == pytest.approx(sum(b["loss"] for b in batches) / 4, rel=1e-15)


@pytest.mark.parametrize("average", [True, False])
def test_gradients_accumulate_into_one_step(average: bool) -> None:
    lab = Lab(aggregation_frequency=3, average_aggregated_gradients=average).train(10)
    assert outcome(lab) == plain_loop(10, every=3, divisor=3 if average else 1)


def clip_gradients(parameters: Any) -> None:
    torch.nn.utils.clip_grad_norm_(parameters, 0.1)


class ClippedTrial(LineTrial):
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        x, y = batch
        loss = functional.mse_loss(self.model(x), y)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer, clip_gradients)
        return loss


def test_clipping_follows_gradient_accumulation() -> None:
    lab = Lab(ClippedTrial, aggregation_frequency=2).train(8)
    assert outcome(lab) == plain_loop(8, every=2, divisor=2, clip=0.1)


@pytest.mark.parametrize(
    ("mode", "frequency", "expected"),
    [
        ("STEP_EVERY_BATCH", 1, 12),
        ("STEP_EVERY_BATCH", 3, 4),
        ("STEP_EVERY_OPTIMIZER_STEP", 1, 6),
        ("STEP_EVERY_OPTIMIZER_STEP", 4, 1),
        ("STEP_EVERY_EPOCH", 1, 2),
        ("STEP_EVERY_EPOCH", 2, 1),
        ("MANUAL_STEP", 1, 0),
    ],
)
def test_schedulers_follow_their_step_mode(mode: str, frequency: int, expected: int) -> None:
    class ScheduledTrial(LineTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)
            wrapped = context.wrap_lr_scheduler(
                self.scheduler, LRScheduler.StepMode[mode], frequency=frequency
            )
            assert wrapped is self.scheduler

    lab = Lab(ScheduledTrial, aggregation_frequency=2).train(12)  # two epochs of six batches
    assert lab.trial.scheduler.last_epoch == expected
    assert lab.state()["lr.0"] == [pytest.approx(0.05 * 0.5**expected)]


def test_context_reports_batch_and_epoch() -> None:
    positions = []

    class Asking(LineTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            context = self.context
            assert context.current_train_epoch() == epoch_idx
            assert context.current_train_batch() == batch_idx
            positions.append((epoch_idx, context.is_epoch_start(), context.is_epoch_end()))
            return super().train_batch(batch, epoch_idx, batch_idx)

    Lab(Asking).train(7)
    inner = [(0, False, False)] * 4
    assert positions == [(0, True, False), *inner, (0, False, True), (1, True, False)]


class Dropped(LineTrial):
    """Draws random numbers in many places, and has an optimizer of each kind of state."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.other = context.wrap_model(torch.nn.Linear(2, 2).double())
        self.tie = context.wrap_optimizer(torch.optim.SGD(self.other.parameters(), 0.1, 0.9))
        schedule = torch.optim.lr_scheduler
        warm = schedule.LinearLR(self.optimizer, 0.1, total_iters=3)
        late = schedule.MultiStepLR(self.optimizer, [2, 5])
        both = schedule.SequentialLR(self.optimizer, [warm, late], [4])
        context.wrap_lr_scheduler(both, LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP)

    def build_model(self) -> Any:
        layer = torch.nn.Linear(5, 5)
        tied = torch.nn.Linear(5, 5)
        tied.weight = layer.weight
        return torch.nn.Sequential(
            torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Dropout(0.4), layer, tied,
            torch.nn.Linear(5, 1),
        )  # fmt: skip

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        noise = self.other(torch.randn(3, 2, dtype=torch.float64)).square().mean()
        self.context.backward(noise)
        self.context.step_optimizer(self.tie)
        return super().train_batch(batch, epoch_idx, batch_idx)


@pytest.mark.parametrize("cut", [1, 5, 6, 11])
@pytest.mark.parametrize("behind", [False, True])
def test_resumed_training_is_bit_exact(tmp_path: Path, cut: int, behind: bool) -> None:
    expected = Lab(Dropped, aggregation_frequency=3).train(3, 14)
    first = Lab(Dropped, aggregation_frequency=3).train(cut)
    if behind:
        write = first.controller.snapshot(tmp_path)
        first.train(cut + 2)  # the written state is the captured state
        write()
    else:
        first.save(tmp_path)
    later = Lab(Dropped, aggregation_frequency=3, steps_completed=cut, seed=SEED)
    torch.rand(cut)  # other work in the process
    later.restore(tmp_path)
    before = later.controller.validate()
    later.train(14)
    assert later.state() == expected.state()
    assert later.controller.validate() == expected.controller.validate() != before


def test_checkpoint_lists_tensors_and_saves_tied_once(tmp_path: Path) -> None:
    lab = Lab(Dropped).train(2)
    lab.save(tmp_path)
    infos = {(info.file, info.name): info for info in lab.controller.tensors()}
    assert infos["model.safetensors", "3.weight"].shape == (5, 5)
    assert infos["model.safetensors", "3.weight"].dtype == "float64"
    assert ("model.safetensors", "4.weight") not in infos
    assert ("model-1.safetensors", "weight") in infos
    assert not [path for path in tmp_path.iterdir() if path.suffix not in (".json", ".safetensors")]


def test_checkpoint_of_another_model_is_rejected(tmp_path: Path) -> None:
    class Wider(LineTrial):
        def build_model(self) -> Any:
            return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))

    Lab(Wider).train(1).save(tmp_path)
    lab = Lab()
    before = lab.state()
    with pytest.raises(DetcoreError, match="weight is not in the file; bias is not in the file"):
        lab.restore(tmp_path)
    assert lab.state() == before


@pytest.mark.parametrize("name", ["model.safetensors", "torch.json", "worker.safetensors"])
def test_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    Lab().train(1).save(tmp_path)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) // 2])
    lab = Lab()
    before = lab.state()
    with pytest.raises(DetcoreError, match=name):
        lab.restore(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(DetcoreError, match=name):
        lab.restore(tmp_path)
    assert lab.state() == before


def test_start_from_other_trial_keeps_own_settings(
    tmp_path: Path,
) -> None:
    first = Lab().train(5)
    first.save(tmp_path)

    class Slower(LineTrial):
        def build_optimizer(self, parameters: Any) -> Any:
            return torch.optim.Adam(parameters, lr=0.001)

    lab = Lab(Slower)
    lab.controller.start_from(tmp_path)
    assert lab.state() == {**first.state(), "lr.0": [0.001]}
    lab.train(1)
    assert lab.clock.reports[0][0] == 1


# -- validation -----------------------------------------------------------------------------------


def test_mean_is_weighted_by_records() -> None:
    lab = Lab()  # ten records in batches of 3, 3, 3 and 1
    x, y = line_data(10).tensors
    result = lab.controller.validate()
    with torch.no_grad():
        assert result.metrics["val_loss"] == pytest.approx(
            functional.mse_loss(lab.trial.model(x), y).item(), rel=1e-14
        )
    assert result.n_records == 10


def test_sum_min_and_max_reducers() -> None:
    class Extremes(LineTrial):
        def evaluate_batch(self, batch: Any) -> Any:
            return dict.fromkeys(("sum", "max", "min", "avg"), batch[0].shape[0])

        def evaluation_reducer(self) -> Any:
            return {name: Reducer[name.upper()] for name in ("sum", "max", "min", "avg")}

    metrics = Lab(Extremes).controller.validate().metrics
    assert metrics == {"sum": 10, "max": 3, "min": 1, "avg": 2.8}


def test_evaluate_full_dataset() -> None:
    class Whole(LineTrial):
        evaluate_batch = LineTrial.__mro__[1].evaluate_batch  # as if it were not there

        def evaluate_full_dataset(self, data_loader: Any) -> Any:
            assert not torch.is_grad_enabled()
            assert not self.model.training
            return {"batches": sum(1 for _ in data_loader)}

    lab = Lab(Whole)
    result = lab.controller.validate()
    assert (result.metrics, result.n_records) == ({"batches": 4.0}, 10)
    assert lab.trial.model.training
    assert torch.is_grad_enabled()


class CountRecords(MetricReducer):
    def __init__(self) -> None:
        self.count = 0

    def reset(self) -> None:
        self.count = 0

    def update(self, records: int) -> None:
        self.count += records

    def per_slot_reduce(self) -> int:
        return self.count

    def cross_slot_reduce(self, per_slot_metrics: list[int]) -> dict[str, int]:
        return {"counted": sum(per_slot_metrics)}


def test_custom_reducers() -> None:
    class Reduced(LineTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.counter = context.wrap_reducer(CountRecords())
            self.sizes = context.wrap_reducer(lambda sizes: sizes[-1], "last", for_training=False)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.counter.update(len(batch[0]))
            return super().train_batch(batch, epoch_idx, batch_idx)

        def evaluate_batch(self, batch: Any) -> Any:
            self.counter.update(len(batch[0]))
            self.sizes.update(len(batch[0]))
            return {}

    lab = Lab(Reduced).train(2, 5)
    assert [report[1]["counted"] for report in lab.clock.reports] == [8, 12]
    assert lab.controller.validate().metrics == {"counted": 10, "last": 1}


# -- callbacks ------------------------------------------------------------------------------------


class Noting(PyTorchCallback):
    def __init__(self, note: Any) -> None:
        self.note = note
        self.state = {"epochs": 0, "best": torch.zeros(2), "history": [(1, 0.5)], 3: {"x"}}

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda *arguments: self.note(name[3:])
        return super().__getattribute__(name)

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state = state_dict


class NotedTrial(LineTrial):
    calls: ClassVar[list[str]]  # an attribute of the trial would be restored

    def build_callbacks(self) -> Any:
        NotedTrial.calls = []
        self.callback = Noting(self.calls.append)
        return {"noting": self.callback}


def test_callbacks_run_in_order_and_keep_state(tmp_path: Path) -> None:
    lab = Lab(NotedTrial)
    lab.controller.validate()
    lab.train(4, 6)
    lab.trial.callback.state["epochs"] = 1
    lab.trial.callback.state["best"] += 2
    lab.save(tmp_path)
    lab.close()
    validation = ["validation_start", "validation_step_start", "validation_epoch_start",
                  "validation_epoch_end", "validation_step_end", "validation_end"]  # fmt: skip
    assert lab.trial.calls == [
        "trial_startup", *validation, "training_start", "training_epoch_start",
        "training_workload_end", "training_epoch_end", "training_workload_end",
        "checkpoint_end", "checkpoint_write_end", "trial_shutdown",
    ]  # fmt: skip
    later = Lab(NotedTrial, steps_completed=6).restore(tmp_path).train(7)
    state = later.trial.callback.state
    assert state["best"].tolist() == [2, 2]
    assert {**state, "best": 0} == {"epochs": 1, "best": 0, "history": [(1, 0.5)], 3: {"x"}}
    assert later.trial.calls == [
        "checkpoint_load_start", "trial_startup", "training_start", "training_epoch_start",
        "training_workload_end",
    ]  # fmt: skip


@pytest.mark.parametrize("value", [object(), np.array(["a"]), np.array([object()])])
def test_unsaveable_value_is_named(value: Any) -> None:
    lab = Lab(NotedTrial).train(1)
    lab.trial.callback.state = {"deep": [0, {"er": value}]}
    with pytest.raises(InvalidExperimentError, match=r"callbacks\.noting\.deep\.1\.er is "):
        lab.controller.snapshot(Path())


def test_tensors_with_equal_paths_stay_distinct(tmp_path: Path) -> None:
    first, second, third = (torch.full((2,), float(n)) for n in range(3))
    lab = Lab(NotedTrial).train(1)
    lab.trial.callback.state = {"a": {"b": first}, "a.b": second, 1: third, "1": np.float32(4)}
    lab.save(tmp_path)
    state = Lab(NotedTrial, steps_completed=1).restore(tmp_path).trial.callback.state
    assert torch.equal(state["a"]["b"], first)
    assert torch.equal(state["a.b"], second)
    assert torch.equal(state[1], third)
    assert state["1"] == np.float32(4)


# -- mistakes -------------------------------------------------------------------------------------


def trial_that(method: str, value: Any) -> type[LineTrial]:
    return type("Wrong", (LineTrial,), {method: lambda self, *arguments: value})


def trial_with_callback(method: str) -> type[LineTrial]:
    return trial_that("build_callbacks", {"a": type("A", (PyTorchCallback,), {method: id})()})


@pytest.mark.parametrize(
    ("trial", "said"),
    [
        (trial_that("__init__", None), "wrapped no model"),
        (
            trial_that(
                "build_training_data_loader",
                torch.utils.data.DataLoader(line_data(), num_workers=1, in_order=False),
            ),
            "in_order=False.*Remove in_order",
        ),
        (trial_that("build_validation_data_loader", [1]), "Return a torch.utils.data.DataLoader"),
        (trial_that("evaluate_full_dataset", {}), "both of evaluate_batch"),
        (trial_that("evaluation_reducer", max), "evaluation_reducer returned"),
        (trial_that("build_callbacks", [Noting(print)]), "callbacks by name"),
        (trial_that("build_callbacks", {"a": object()}), "subclass of detcore_torch.PyTorchCallb"),
        (
            trial_with_callback("on_epoch"),
            "has on_epoch, which detcore never calls",
        ),
        (
            trial_with_callback("state_dict"),
            r"'a' \(A\) has state_dict but no load_state_dict.*def load_state_dict\(self",
        ),
        (
            trial_with_callback("load_state_dict"),
            r"'a' \(A\) has load_state_dict but no state_dict.*def state_dict\(self\)",
        ),
    ],
)
def test_invalid_trial_is_rejected_before_training(trial: type[LineTrial], said: str) -> None:
    with pytest.raises(DetcoreError, match=f"(?s){said}"):
        Lab(trial)


@pytest.mark.parametrize(
    ("returned", "said"),
    [(None, "train_batch returned None"), ({"a": "x"}, "'a' is 'x'"),
     ({"a": torch.ones(2)}, r"'a' is a tensor of shape \(2,\)")],
)  # fmt: skip
def test_non_numeric_metrics_are_named(returned: Any, said: str) -> None:
    with pytest.raises(MetricError, match=said):
        Lab(trial_that("train_batch", returned)).train(1)


def test_wrapping_errors_name_the_fix() -> None:
    lab = Lab(aggregation_frequency=2)
    context, trial = lab.context, lab.trial
    stranger = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(stranger.parameters(), 0.1)
    with pytest.raises(DetcoreError, match=r"not a torch.*Module"):
        context.wrap_model(3)
    with pytest.raises(ContextStateError, match="in the trial's __init__"):
        context.wrap_model(stranger)
    with pytest.raises(ContextStateError, match="twice with the same Linear"):
        context.wrap_model(trial.model)
    with pytest.raises(InvalidExperimentError, match="which was not wrapped"):
        context.step_optimizer(optimizer)
    with pytest.raises(DetcoreError, match="not a tensor"):
        context.backward(0.5)
    with pytest.raises(InvalidExperimentError, match=r"context\.step_optimizer"):
        trial.optimizer.step()
    with pytest.raises(ContextStateError, match="Call this method in train_batch"):
        context.current_train_batch()
    context._is_ready = False
    with pytest.raises(InvalidExperimentError, match="group 0 of SGD has parameters of a model"):
        context.wrap_optimizer(optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(trial.optimizer, 1)
    with pytest.raises(InvalidExperimentError, match="STEP_EVERY_EPOCH"):
        context.wrap_lr_scheduler(schedule, "every epoch")
    with pytest.raises(InvalidExperimentError, match=r"neither a detcore_torch\.MetricReducer"):
        context.wrap_reducer(3)
    with pytest.raises(DetcoreError, match=r"not a gradient scaler\.\nPass a torch.amp"):
        context.wrap_scaler(trial.optimizer)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(trial.optimizer)
    with pytest.raises(InvalidExperimentError, match=r"(?s)needs a metric.*MANUAL_STEP.*on_valida"):
        context.wrap_lr_scheduler(plateau, LRScheduler.StepMode.STEP_EVERY_EPOCH)


def test_missing_method_is_named() -> None:
    class Lacking(LineTrial):
        train_batch = PyTorchTrial.train_batch

    with pytest.raises(InvalidExperimentError, match="Lacking has no method train_batch"):
        Lab(Lacking).train(1)


def test_to_device_keeps_structure() -> None:
    context = Lab().context
    data = {"a": [torch.ones(1), (torch.zeros(2), "text")], "b": 3}
    moved = context.to_device(data)
    assert moved["a"][0].device == context.device
    assert (moved["b"], moved["a"][1][1]) == (3, "text")


def test_to_device_keeps_type_of_movable_objects() -> None:
    class Encoding(collections.UserDict):  # as tokenizers return it
        moved_to = None

        def to(self, device: Any) -> Any:
            self.moved_to = device
            return self

    context = Lab().context
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    encoding, sequence = context.to_device((Encoding(a=torch.ones(1)), packed))
    assert type(encoding) is Encoding
    assert encoding.moved_to == context.device
    assert type(sequence) is type(packed)
    assert torch.equal(sequence.data, packed.data)


def test_loader_that_cannot_resume_is_rejected() -> None:
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return iter(())

    divided = torch.utils.data.DistributedSampler([1, 2], num_replicas=2, rank=0)
    batches = torch.utils.data.BatchSampler(divided, 1, False)
    for arguments, message in (
        ({"dataset": Endless()}, "no indices, so a resumed run could not restore"),
        ({"dataset": 7}, "no __len__ and __getitem__"),
        ({"sampler": [0], "shuffle": True}, "shuffle=True contradicts it"),
        ({"batch_sampler": [[0]], "drop_last": True}, "cannot be used with it"),
        ({"batch_size": 0}, "at least 1"),
        ({"sampler": divided}, r"1 of 2 parts.*detcore would divide that part"),
        ({"batch_sampler": batches}, "1 of 2 parts"),
    ):
        with pytest.raises(DetcoreError, match=message):
            check_trial_loader(DataLoader(**{"dataset": [1, 2], **arguments}), "build_loader")


def test_shared_views_are_restored(tmp_path: Path) -> None:
    class Viewed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(6, 2).t())  # not contiguous
            memory = torch.arange(8.0, dtype=torch.float64)
            self.register_buffer("first", memory[:4])
            self.register_buffer("second", memory[4:])
            self.register_buffer("square", memory.view(2, 4))
            self.register_buffer("empty", torch.zeros(0))

        def forward(self, x: Any) -> Any:
            return x @ self.weight[:, :3].t()[:, :1]

    lab = Lab(trial_that("build_model", Viewed())).train(2)
    lab.save(tmp_path)
    state = lab.state()
    lab.train(4)
    assert lab.state() != state
    lab.restore(tmp_path)
    assert lab.state() == state


@pytest.mark.parametrize("every", [1, 2])
def test_gradients_are_unscaled_before_clipping(tmp_path: Path, every: int) -> None:
    class Scaled(LineTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.scaler = context.wrap_scaler(
                torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
            )

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            x, y = batch
            loss = functional.mse_loss(self.model(x), y)
            self.context.backward(self.scaler.scale(loss))
            self.context.step_optimizer(self.optimizer, clip_gradients, scaler=self.scaler)
            if self.context.is_update_batch:
                self.scaler.update()
            return loss

    cut = 5 * every - 1  # in the middle of gradient accumulation, if it is enabled
    lab = Lab(Scaled, aggregation_frequency=every).train(cut)
    assert outcome(lab) == plain_loop(cut, every=every, divisor=every, clip=0.1)
    lab.save(tmp_path)
    later = Lab(Scaled, steps_completed=cut, aggregation_frequency=every).restore(tmp_path)
    assert later.trial.scaler.get_scale() == 2048.0
    assert later.train(8 * every).state() == lab.train(8 * every).state()


def test_plateau_scheduler_resumes(tmp_path: Path) -> None:
    class Stepping(PyTorchCallback):
        def __init__(self, scheduler: Any) -> None:
            self.scheduler = scheduler

        def on_validation_end(self, metrics: Any) -> None:
            self.scheduler.step(metrics["val_loss"])

    class Plateau(LineTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            # With "max", a decreasing loss is not an improvement.
            self.scheduler = context.wrap_lr_scheduler(
                torch.optim.lr_scheduler.ReduceLROnPlateau(
                    self.optimizer, "max", factor=0.5, patience=1
                )
            )

        def build_callbacks(self) -> Any:
            return {"plateau": Stepping(self.scheduler)}

    def train_on(lab: Lab, *boundaries: int) -> Lab:
        for boundary in boundaries:
            lab.train(boundary)
            lab.controller.validate()
        return lab

    expected = train_on(Lab(Plateau), 2, 4, 6, 8)
    train_on(Lab(Plateau), 2, 4).save(tmp_path)
    later = train_on(Lab(Plateau, steps_completed=4).restore(tmp_path), 6, 8)
    assert later.state() == expected.state()
    assert expected.state()["lr.0"] == [0.025]
