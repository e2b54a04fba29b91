"""Methods, hooks and arguments that trials written for Determined use."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from _lab import Lab, LineTrial, check_resume, line_data

from detcore.core import get_cluster_info
from detcore.errors import ContextStateError, DetcoreError, InvalidExperimentError
from detcore_torch import (
    Batch,
    ClipGradsL2Norm,
    ClipGradsL2Value,
    DataLoader,
    Epoch,
    LRScheduler,
    PyTorchCallback,
    Record,
    TorchWriter,
    Trainer,
    init,
    load_trial_from_checkpoint_path,
    reset_parameters,
)
from detcore_torch.validation import EvaluationLoader


def with_callbacks(**callbacks: PyTorchCallback) -> type[LineTrial]:
    """Return a trial class with callbacks."""

    class Trial(LineTrial):
        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return callbacks

    return Trial


def test_to_device_converts_numeric_arrays() -> None:
    context = Lab().context
    array = np.arange(6.0).reshape(2, 3)
    array.flags.writeable = False
    moved = context.to_device({"x": array[:, ::-1], "names": np.array(["a", "b"]), "n": [array[0]]})
    assert moved["x"].dtype == torch.float64
    assert moved["x"].tolist() == [[2, 1, 0], [5, 4, 3]]
    assert moved["n"][0].tolist() == [0, 1, 2]
    assert isinstance(moved["names"], np.ndarray)


def test_full_evaluation_gets_a_data_loader() -> None:
    loaders: list[EvaluationLoader] = []

    class Trial(LineTrial):
        evaluate_batch = LineTrial.__mro__[1].evaluate_batch  # type: ignore[attr-defined]

        def evaluate_full_dataset(self, data_loader: Any) -> Any:
            loaders.append(data_loader)
            return {"val_loss": sum(len(x) for x, _ in data_loader)}

    result = Lab(Trial).controller.validate()
    (loader,) = loaders
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert (len(loader), len(loader.dataset), loader.batch_size) == (4, 10, 3)
    assert (result.metrics, result.n_records) == ({"val_loss": 10}, 10)
    assert [len(x) for x, _ in loader] == [3, 3, 3, 1]


LOADED: list[tuple[int, ...]] = []


class Recorder(PyTorchCallback):
    """Lists its calls, and adds a tensor to checkpoints."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["mean"] = torch.rand(2)
        self.calls.append("save")

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        # The attributes are restored later.
        LOADED.append(tuple(checkpoint["mean"].shape))
        with pytest.raises(KeyError, match="has no entry 'models_state_dict'"):
            checkpoint["models_state_dict"]

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        self.calls.append("end")
        assert (Path(checkpoint_dir) / "model.safetensors").exists()

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        self.calls.append("write end")

    def on_validation_step_start(self) -> None:
        self.calls.append("validation")

    def on_validation_step_end(self, metrics: Any) -> None:
        self.calls.append(f"validated {sorted(metrics)}")

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


def test_checkpoint_hooks_are_called_in_order(tmp_path: Path) -> None:
    recorder = Recorder()
    lab = Lab(with_callbacks(recorder=recorder)).train(2)
    state = torch.random.get_rng_state()
    lab.save(tmp_path / "checkpoint")
    assert torch.equal(torch.random.get_rng_state(), state)
    lab.controller.validate()
    assert recorder.calls == ["save", "end", "write end", "validation", "validated ['val_loss']"]
    Lab(with_callbacks(recorder=Recorder()), steps_completed=2).restore(tmp_path / "checkpoint")
    assert LOADED == [(2,)]


@pytest.mark.parametrize(
    ("callback", "clip"),
    [
        (ClipGradsL2Norm(0.05), torch.nn.utils.clip_grad_norm_),
        (ClipGradsL2Value(0.05), torch.nn.utils.clip_grad_value_),
    ],
)
def test_clipping_callback_equals_clip_grads(
    callback: PyTorchCallback, clip: Callable[..., Any]
) -> None:
    class Clipping(LineTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.context.backward(((self.model(batch[0]) - batch[1]) ** 2).mean())
            self.context.step_optimizer(self.optimizer, lambda p: clip(p, 0.05))
            return {}

    class Hooked(Clipping):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.context.backward(((self.model(batch[0]) - batch[1]) ** 2).mean())
            self.context.step_optimizer(self.optimizer)
            return {}

        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"clip": callback}

    states = [Lab(kind).train(4).state() for kind in (Clipping, Hooked)]
    assert states[0] == states[1]
    assert states[0] != Lab().train(4).state()


class HalfTrial(LineTrial):
    """Calls what Determined's trials call for mixed precision."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        context.autocast_forward_pass(self.model)
        context.experimental.use_amp()
        models, _ = context.configure_apex_amp(self.model, self.optimizer, opt_level="O1")
        assert models is self.model
        context.set_profiler(activities=[])
        context.set_enable_tensorboard_logging(False)
        assert context.get_enable_tensorboard_logging()


def test_options_for_gpus_change_nothing_on_a_cpu(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "detcore.torch"):
        _, later = check_resume(HalfTrial, tmp_path, 3, 6)
    assert later.state() == Lab().train(3, 6).state()
    for name in ("use_amp", "autocast_forward_pass", "configure_apex_amp", "set_profiler"):
        assert f"{name} has no effect" in caplog.text
    assert "disabling TensorBoard logging has no effect" in caplog.text


class ScaledTrial(LineTrial):
    """Scales its loss on the CPU, as `use_amp` does on a GPU."""

    clips: ClassVar[list[float]] = []

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        context.experimental.scaler = context.wrap_scaler(scaler)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        assert torch.is_autocast_enabled("cpu")
        self.context.backward(((self.model(batch[0]) - batch[1]) ** 2).mean())
        self.context.step_optimizer(self.optimizer)
        return {"scale": self.context.scalers[0].get_scale()}


def test_use_amp_scales_and_updates_once_per_update(tmp_path: Path) -> None:
    _, later = check_resume(ScaledTrial, tmp_path, 3, 8, aggregation_frequency=2)
    scales = [batch["scale"] for report in later.clock.reports for batch in report[2]]
    assert scales == [8.0, 16.0, 16.0, 16.0, 16.0]  # doubled after every second update


def test_disabled_moving_leaves_batches_unchanged() -> None:
    class Trial(LineTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.experimental.disable_auto_to_device()
            context.to_device = lambda data: pytest.fail("a batch was moved")

    Lab(Trial).train(2).controller.validate()


def test_wrap_optimizer_decides_averaging() -> None:
    class Summed(LineTrial):
        def __init__(self, context: Any) -> None:
            self.context = context
            self.model = context.wrap_model(torch.nn.Linear(3, 1).double())
            self.optimizer = context.wrap_optimizer(
                torch.optim.SGD(self.model.parameters(), 0.1),
                average_aggregated_gradients=False, fp16_compression=True,
            )  # fmt: skip

    class Plain(Summed):
        def build_optimizer(self, parameters: Any) -> Any:
            return torch.optim.SGD(parameters, 0.1)

        __init__ = LineTrial.__init__  # type: ignore[assignment]

    options = {"aggregation_frequency": 2}
    summed = Lab(Summed, **options).train(4).state()
    assert summed == Lab(Plain, average_aggregated_gradients=False, **options).train(4).state()
    assert summed != Lab(Plain, **options).train(4).state()


def test_loader_length_counts_batches() -> None:
    data = line_data(10)
    assert len(DataLoader(data, 4)) == 3
    assert len(DataLoader(data, 4, drop_last=True)) == 2
    assert len(DataLoader(data, sampler=range(7), batch_size=2)) == 4
    assert len(DataLoader(data, batch_sampler=[[1, 2], [3]])) == 2


def test_scheduler_wrapper_steps() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    wrapped = LRScheduler(scheduler, LRScheduler.StepMode.MANUAL_STEP)
    optimizer.step()
    wrapped.step()
    assert wrapped.get_last_lr() == [0.5]


def test_reset_parameters_initializes_all_modules() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 1)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    reset_parameters(model)
    assert all(parameter.abs().sum() > 0 for parameter in model.parameters())


def test_writers_create_event_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DETCORE_TRIAL_INFO", raising=False)
    writer = TorchWriter()
    assert not list(tmp_path.rglob("*tfevents*"))
    writer.add_scalar("loss", 0.5, 3)
    writer.writer.add_image("image", np.zeros((1, 4, 4)), 3)
    writer.flush()
    writer.reset()
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert b"loss" in file.read_bytes()
    assert b"image" in file.read_bytes()
    with pytest.raises(AttributeError, match="has no attribute 'lock'"):
        writer.writer.lock  # noqa: B018  (it raises)


def test_checkpoint_loads_into_given_class(tmp_path: Path) -> None:
    class Sized(LineTrial):
        def __init__(self, context: Any, size: int) -> None:
            self.size = size
            super().__init__(context)

    lab = Lab().train(2)
    folder = lab.save(tmp_path / "checkpoint")
    (folder / "trial.json").write_text(
        '{"framework": "torch", "trial_class": "gone:Trial", "config": {}, "hparams": {}}'
    )
    trial = load_trial_from_checkpoint_path(
        folder,
        trial_class=Sized,
        trial_kwargs={"size": 3},
        torch_load_kwargs={},
        map_location="cpu",
    )
    assert trial.size == 3
    assert trial.model.weight.tolist() == lab.state()["0.weight"]


def test_cluster_info_is_none_outside_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DETCORE_TRIAL_INFO", raising=False)
    assert get_cluster_info() is None


class OneArgument(LineTrial):
    """A trial of a script."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty ``DETCORE_HOME`` for scripts in this process."""
    monkeypatch.setenv("DETCORE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DETCORE_TRIAL_INFO", raising=False)
    return tmp_path / "home"


def fit(*, exp_conf: Any = None, **arguments: Any) -> LineTrial:
    """Train in a script that runs alone."""
    with init(hparams={"global_batch_size": 4}, exp_conf=exp_conf) as context:
        trial = OneArgument(context)
        Trainer(trial, context).fit(**arguments)
    return trial


def saved_steps(home: Path) -> list[int]:
    """Return the batches of all checkpoints."""
    manifests = sorted(home.glob("checkpoints/*/manifest.json"))
    return sorted(json.loads(path.read_text())["steps_completed"] for path in manifests)


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ({"max_length": Batch(7), "checkpoint_period": Batch(3)}, [3, 6, 7]),
        ({"max_length": Epoch(2), "checkpoint_period": Epoch(1)}, [6, 12]),
        ({"max_length": Record(20), "validation_period": Record(8)}, [2, 4, 5]),
        ({"max_length": Batch(9), "validation_period": Batch(3), "checkpoint_policy": "none"}, [9]),
        ({"max_length": Batch(50), "test_mode": True}, [1]),
        ({"max_length": Batch(3), "step_zero_validation": True}, [0, 3]),
    ],
)
def test_fit_follows_its_arguments(home: Path, arguments: Any, steps: list[int]) -> None:
    fit(**arguments)
    assert saved_steps(home) == steps


def test_fit_reads_length_and_metric_of_configuration(home: Path) -> None:
    searcher = {"name": "adaptive_asha", "metric": "val_loss", "max_length": {"batches": 5}}
    fit(exp_conf={"searcher": searcher, "reproducibility": {"experiment_seed": 3}})
    assert saved_steps(home) == [5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "has no length to train"),
        ({"max_length": Batch(0)}, r"max_length is Batch\(0\)"),
        ({"max_length": Batch(3), "validation_period": Batch([1, 2])}, "no lists of single steps"),  # type: ignore[arg-type]
        ({"max_length": Batch(3), "checkpoint_policy": "worst"}, "checkpoint_policy is 'worst'"),
        ({"max_length": Batch(3), "latest_checkpoint": "a-uuid"}, "resumes from no checkpoint"),
    ],
)
def test_fit_rejects_arguments(home: Path, arguments: Any, message: str) -> None:
    with pytest.raises(DetcoreError, match=message):
        fit(**arguments)
    assert not saved_steps(home)


def test_trainer_needs_its_own_context(home: Path) -> None:
    lab = Lab()
    with pytest.raises(ContextStateError, match=r"detcore_torch\.init did not create"):
        Trainer(lab.trial, lab.context)
    with init(hparams={"global_batch_size": 4}, aggregation_frequency=2) as context:
        trainer = Trainer(OneArgument(context), context)
        trainer.fit(max_length=Batch(2), reporting_period=Epoch(1), profiling_enabled=True)
        with pytest.raises(ContextStateError, match="called twice"):
            trainer.fit(max_length=Batch(2))


def test_wrong_hook_names_are_still_rejected() -> None:
    class Typo(PyTorchCallback):
        def on_checkpoint_saved(self, parameters: Iterable[Any]) -> None:
            pass

    with pytest.raises(InvalidExperimentError, match="on_checkpoint_saved"):
        Lab(with_callbacks(typo=Typo()))


class NamedArguments(LineTrial):
    """Has its arguments in another order, as Determined allows."""

    def train_batch(self, batch_idx: int, epoch_idx: int, batch: Any) -> Any:  # type: ignore[override]
        assert (epoch_idx, batch_idx) == divmod_of(batch_idx)
        return super().train_batch(batch, epoch_idx, batch_idx)

    def evaluate_batch(self, batch_idx: int, batch: Any) -> Any:  # type: ignore[override]
        return {**super().evaluate_batch(batch), "index": batch_idx}


def divmod_of(batch_idx: int) -> tuple[int, int]:
    return batch_idx // 6, batch_idx


def test_arguments_are_matched_by_name() -> None:
    lab = Lab(NamedArguments).train(4, 10)
    assert lab.state() == Lab().train(4, 10).state()
    assert lab.controller.validate().metrics["index"] == pytest.approx((0 + 1 * 3 + 2 * 3 + 3) / 10)


def test_arguments_with_other_names_are_positional() -> None:
    class Renamed(LineTrial):
        def train_batch(self, data: Any, *others: Any) -> Any:
            return super().train_batch(data, *others)

        def evaluate_batch(self, data: Any) -> Any:
            return super().evaluate_batch(data)

    class Keywords(LineTrial):
        def train_batch(self, **arguments: Any) -> Any:
            return super().train_batch(**arguments)

    expected = Lab().train(4)
    for kind in (Renamed, Keywords):
        lab = Lab(kind).train(4)
        assert lab.state() == expected.state()
        assert lab.controller.validate() == Lab().train(4).controller.validate()


class Early(PyTorchCallback):
    outputs: ClassVar[list[Any]] = []
    epochs: ClassVar[list[None]] = []

    def on_training_epoch_start(self) -> None:  # type: ignore[override]
        self.epochs.append(None)

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        self.outputs.extend(outputs)


def test_callbacks_get_arrays_and_may_omit_the_epoch() -> None:
    Lab(with_callbacks(early=Early())).train(8).controller.validate()
    assert len(Early.epochs) == 2
    assert [type(output["val_loss"]) for output in Early.outputs] == [np.ndarray] * 4


def test_getters_return_the_first_wrapped_objects() -> None:
    lab = Lab()
    assert lab.context.get_model() is lab.trial.model
    assert lab.context.get_optimizer() is lab.trial.optimizer
    assert lab.context.get_lr_scheduler() is None


class Attributes(dict[str, Any]):
    """A dictionary whose attributes are its entries, as many programs define it."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Pool(torch.utils.data.Dataset):  # type: ignore[misc]  # untyped
    """A dataset with a counter."""

    def __init__(self) -> None:
        self.count = 0


class StoredTrial(LineTrial):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.config = Attributes(scale=2.0)
        self.pool = Pool()

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.pool.count += 1
        x, y = self.context.to_device(Attributes(x=batch[0], y=batch[1])).values()
        return super().train_batch((x * self.pool.count, y), epoch_idx, batch_idx)


def test_attributes_of_abstract_classes_are_saved(tmp_path: Path) -> None:
    check_resume(StoredTrial, tmp_path, 3, 6)


def test_generator_of_a_loader_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "detcore.torch"):
        DataLoader(line_data(), 4, shuffle=True, generator=torch.Generator())
    assert "the trial's seed is used" in caplog.text
