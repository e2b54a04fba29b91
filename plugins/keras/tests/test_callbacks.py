"""Callbacks are called at the right places, and saved by name."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorflow_names import KERAS_MAJOR, keras, tf

from detcore.errors import InvalidCheckpointError, InvalidExperimentError
from detcore_keras import callbacks as ours
from detcore_keras.callbacks.callback_checks import wants_train_batches
from detcore_keras.callbacks.callback_list import CallbackMultiplexer, read_callbacks
from detcore_keras.state.training_state import write_array_files

# Keras 3.15 reads variables in a way that NumPy 2 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

KerasCallback = keras.callbacks.Callback


def small_model() -> Any:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(1.0), "mse", metrics=["mae"])
    return model


def multiplexer(
    callbacks: Sequence[Any], *, model: Any = None, epoch: int = 4, **options: Any
) -> CallbackMultiplexer:
    options = {"is_chief": True, "params": {"epochs": 3, "verbose": 0}, **options}
    return CallbackMultiplexer(
        callbacks, model=model or small_model(), batches_per_epoch=epoch, **options
    )


def save(many: CallbackMultiplexer, directory: Path) -> None:
    write_array_files(directory, many.capture_state(directory))


class Recorder(KerasCallback):  # type: ignore[misc]
    """Records every call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.calls.append("train_begin")

    def on_train_end(self, logs: Any = None) -> None:
        self.calls.append("train_end")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.calls.append(("epoch_begin", epoch))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.calls.append(("epoch_end", epoch, logs))

    def on_test_begin(self, logs: Any = None) -> None:
        self.calls.append("test_begin")

    def on_test_end(self, logs: Any = None) -> None:
        self.calls.append(("test_end", logs))


class BatchRecorder(Recorder):
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.calls.append(("batch_begin", batch))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.calls.append(("batch_end", batch, logs))


class WorkloadRecorder(ours.Callback, Recorder):  # type: ignore[misc]
    def on_train_workload_begin(self, total: int, requested: int | None, logs: Any) -> None:
        self.calls.append(("workload_begin", total, requested))

    def on_train_workload_end(self, total: int, logs: Any) -> None:
        self.calls.append(("workload_end", total, logs))

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        self.calls.append(("checkpoint_end", checkpoint_dir))


def fast(many: CallbackMultiplexer, begin: int, end: int, logs: Any = None) -> None:
    """Train a workload in pieces that end where an epoch ends, like the fast loop."""
    many.workload_begin(begin, end - begin)
    while begin < end:
        stop = min(end, (begin // 4 + 1) * 4)
        many.batches_done(begin, stop)
        begin = stop
    many.workload_end(end, logs or {})


def slow(many: CallbackMultiplexer, begin: int, end: int, logs: Any = None) -> None:
    many.workload_begin(begin, end - begin)
    for batch in range(begin, end):
        many.batch_begin(batch)
        many.batch_end(batch + 1, {"loss": tf.constant(float(batch))})
    many.workload_end(end, logs or {})


@pytest.mark.parametrize("train", [fast, slow])
def test_epoch_hooks_surround_their_batches(train: Any) -> None:
    recorder = Recorder()
    many = multiplexer([recorder])
    many.train_begin()
    train(many, 0, 6)
    train(many, 6, 8, {"loss": 0.5})
    many.test_begin()
    many.test_end({"val_loss": np.float32(0.25)})
    train(many, 8, 12)
    many.train_end()
    logs = {"loss": 0.5, "val_loss": 0.25}
    assert recorder.calls == [
        "train_begin",
        ("epoch_begin", 0),
        ("epoch_end", 0, {}),
        ("epoch_begin", 1),
        "test_begin",
        ("test_end", {"val_loss": 0.25}),
        ("epoch_end", 1, logs),
        ("epoch_begin", 2),
        ("epoch_end", 2, {}),
        "train_end",
    ]


def test_batch_hooks_get_index_and_numbers() -> None:
    recorder = BatchRecorder()
    many = multiplexer([recorder], epoch=2)
    many.train_begin()
    slow(many, 0, 3)
    assert recorder.calls[1:] == [
        ("epoch_begin", 0),
        ("batch_begin", 0),
        ("batch_end", 0, {"loss": 0.0}),
        ("batch_begin", 1),
        ("batch_end", 1, {"loss": 1.0}),
        ("epoch_end", 0, {}),
        ("epoch_begin", 1),
        ("batch_begin", 0),
        ("batch_end", 0, {"loss": 2.0}),
    ]
    losses = [call[2]["loss"] for call in recorder.calls if call[0] == "batch_end"]
    assert {*map(type, losses)} == {float}


def test_batch_index_grows_without_epochs(caplog: pytest.LogCaptureFixture) -> None:
    recorder = BatchRecorder()
    many = multiplexer([recorder], epoch=0)
    assert "BatchRecorder has on_epoch_begin and on_epoch_end" in caplog.text
    assert "Set records_per_epoch" in caplog.text
    slow(many, 7, 9)
    assert [call[:2] for call in recorder.calls] == [
        ("batch_begin", 7),
        ("batch_end", 7),
        ("batch_begin", 8),
        ("batch_end", 8),
    ]


def test_epoch_hooks_require_known_epoch_length(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InvalidExperimentError, match="length of an epoch is unknown"):
        multiplexer([WorkloadRecorder()], epoch=0)

    class Subclass(ours.EarlyStopping):
        pass

    many = multiplexer([ours.EarlyStopping(), Subclass(), ours.ReduceLROnPlateau()], epoch=0)
    assert len(many.callbacks) == 3
    assert not caplog.records


def test_workload_hooks_are_called(tmp_path: Path) -> None:
    recorder = WorkloadRecorder()
    many = multiplexer([recorder, Recorder()])
    many.train_begin()
    fast(many, 0, 3, {"loss": tf.constant(0.5)})
    many.checkpoint_end(tmp_path)
    assert recorder.calls == [
        "train_begin",
        ("epoch_begin", 0),
        ("workload_begin", 0, 3),
        ("workload_end", 3, {"loss": 0.5}),
        ("checkpoint_end", str(tmp_path)),
    ]


def test_chief_callbacks_run_only_on_chief() -> None:
    everywhere, chief_only = WorkloadRecorder(), WorkloadRecorder()
    chief_only._chief_worker_only = True
    many = multiplexer([chief_only, everywhere], is_chief=False)
    many.train_begin()
    many.checkpoint_end(Path("x"))
    assert not many.reads_checkpoints
    assert many.callbacks == [everywhere]
    assert everywhere.calls == ["train_begin"]
    assert chief_only.calls == []
    assert list(many.state_dict()[0]["attributes"]) == ["WorkloadRecorder-2", "$functions"]


def resumed(
    tmp_path: Path, before: CallbackMultiplexer, callbacks: Sequence[Any], **options: Any
) -> CallbackMultiplexer:
    """Save the state, and load it into another run."""
    save(before, tmp_path)
    many = multiplexer(callbacks, **options)
    many.train_begin()
    many.load_state(read_callbacks(tmp_path))
    return many


def test_ended_epoch_is_closed_after_resume(tmp_path: Path) -> None:
    one = multiplexer([Recorder()])
    one.train_begin()
    fast(one, 0, 4, {"loss": float("inf")})
    recorder = Recorder()
    other = resumed(tmp_path, one, [recorder])
    other.test_begin()
    other.test_end({"val_loss": 1.0})
    fast(other, 4, 5)
    assert recorder.calls[-3:] == [
        ("test_end", {"val_loss": 1.0}),
        ("epoch_end", 0, {"loss": float("inf"), "val_loss": 1.0}),
        ("epoch_begin", 1),
    ]


def test_begun_epoch_does_not_begin_again(tmp_path: Path) -> None:
    one = multiplexer([Recorder()])
    one.train_begin()
    fast(one, 0, 2)
    recorder = Recorder()
    fast(resumed(tmp_path, one, [recorder]), 2, 5)
    assert recorder.calls[1:] == [("epoch_begin", 0), ("epoch_end", 0, {}), ("epoch_begin", 1)]


def test_callbacks_with_batch_hooks_are_detected(tmp_path: Path) -> None:
    kinds = keras.callbacks
    checkpoint = functools.partial(
        kinds.ModelCheckpoint, str(tmp_path / "m.weights.h5"), save_weights_only=True
    )
    batch_hook = "on_train_batch_end" if KERAS_MAJOR == 3 else "on_batch_end"

    class Older(KerasCallback):  # type: ignore[misc]
        def on_batch_end(self, batch: int, logs: Any = None) -> None: ...

    class Inherits(Older):
        pass

    quiet = [
        Recorder(),
        kinds.EarlyStopping(),
        kinds.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
        checkpoint(),
        kinds.TensorBoard(str(tmp_path)),
        ours.TensorBoard(),
        ours.EarlyStopping(),
        ours.ReduceLROnPlateau(),
    ]
    loud = [
        BatchRecorder(),
        Older(),
        Inherits(),
        kinds.LambdaCallback(**{batch_hook: lambda batch, logs: None}),
        checkpoint(save_freq=10),
        kinds.TensorBoard(str(tmp_path), update_freq=10),
        kinds.TerminateOnNaN(),
    ]
    assert [type(c).__name__ for c in quiet if wants_train_batches(c)] == []
    assert [type(c).__name__ for c in loud if not wants_train_batches(c)] == []


def test_callbacks_receive_model_and_params() -> None:
    model = small_model()
    recorder = Recorder()
    many = multiplexer([recorder], model=model)
    many.train_begin()
    assert recorder.model is model
    assert recorder.params == {"epochs": 3, "steps": 4, "verbose": 0}


# -- state ----------------------------------------------------------------------------------------


class Remembering(ours.Callback):
    def __init__(self, value: Any = None, name: str | None = None) -> None:
        super().__init__()
        self.value = value
        if name:
            self.state_name = name

    def get_state(self) -> Any:
        return {"value": self.value}

    def load_state(self, state: Any) -> None:
        self.value = state["value"]


def test_callback_state_restores_all_types(tmp_path: Path) -> None:
    value = {
        "plain": [None, True, 3, 2.5, "text"],
        "odd": (float("inf"), (float("-inf"),), {}),
        "numpy": np.float32(0.1),
        "array": np.arange(6, dtype=np.int16).reshape(2, 3),
        "dollar": {"$array": "no array", 3: "number", (1, 2): "tuple"},
        "half": np.array([1.5], tf.bfloat16.as_numpy_dtype),
    }
    after = Remembering()
    resumed(tmp_path, multiplexer([Remembering(value)]), [after])
    got = after.value
    assert np.array_equal(got.pop("array"), value["array"])
    assert got.pop("half").dtype == tf.bfloat16.as_numpy_dtype
    assert type(got["numpy"]) is np.float32
    assert got == {k: v for k, v in value.items() if k not in {"array", "half"}}


def test_callback_state_is_matched_by_name(tmp_path: Path) -> None:
    after = [Remembering(name="b"), Remembering(name="a"), Remembering()]
    before = [Remembering(1, "a"), Remembering(2, "b"), Remembering(3)]
    resumed(tmp_path, multiplexer(before), after)
    assert [callback.value for callback in after] == [2, 1, 3]


def test_callbacks_of_one_class_are_numbered(tmp_path: Path) -> None:
    after = [Recorder(), Remembering(), Remembering()]
    before = [Remembering(1), Recorder(), Remembering(2)]
    resumed(tmp_path, multiplexer(before), after)
    assert [after[1].value, after[2].value] == [1, 2]
    assert set(json.loads((tmp_path / "callbacks.json").read_text())["callbacks"]) == {
        "Remembering",
        "Remembering-2",
    }


def test_added_and_removed_callbacks_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    after = [Remembering("fresh", "new")]
    resumed(tmp_path, multiplexer([Remembering(1, "old")]), after)
    assert after[0].value == "fresh"
    assert "state for a callback 'old', which this trial does not have" in caplog.text
    assert "no state for the callback 'new', which starts fresh" in caplog.text


def test_duplicate_state_names_are_rejected() -> None:
    with pytest.raises(InvalidExperimentError, match="two callbacks have the state_name 'same'"):
        multiplexer([Remembering(name="same"), Remembering(name="same")])


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, np.array([object()], object), b"bytes", [0, {"deep": open}]]
)
def test_unsupported_state_is_named(tmp_path: Path, value: Any) -> None:
    many = multiplexer([Remembering(value)])
    with pytest.raises(InvalidExperimentError, match=r"of Remembering\['value'\]"):
        save(many, tmp_path)


def test_damaged_callback_state_is_rejected(tmp_path: Path) -> None:
    many = multiplexer([Remembering(np.zeros(2))])
    with pytest.raises(InvalidCheckpointError, match=r"has no callbacks\.json"):
        read_callbacks(tmp_path)
    save(many, tmp_path)
    state, arrays = read_callbacks(tmp_path)
    with pytest.raises(InvalidCheckpointError, match="version 5"):
        many.load_state(({**state, "version": 5}, arrays))
    with pytest.raises(InvalidCheckpointError, match="no entry '00000'"):
        many.load_state((state, {}))
    (tmp_path / "callbacks.json").write_text("{")
    with pytest.raises(InvalidCheckpointError, match="is damaged"):
        read_callbacks(tmp_path)


# -- the callbacks themselves ---------------------------------------------------------------------


def rates_until_the_stop(
    tmp_path: Path, make: Callable[[], Any], losses: Sequence[float], resume_after: int | None
) -> tuple[Any, list[float]]:
    """Validate, and resume after one validation. All weights are set to the validation's number.

    Returns:
        The model, and the learning rate after each validation.
    """
    model = small_model()
    many = multiplexer([make()], model=model)
    many.train_begin()
    rates: list[float] = []
    for index, loss in enumerate(losses, start=1):
        for weight in model.weights:
            weight.assign(tf.fill(weight.shape, float(index)))
        many.test_begin()
        many.test_end({"val_loss": loss})
        rates.append(float(keras.backend.get_value(model.optimizer.learning_rate)))
        if model.stop_training:
            break
        if index == resume_after:
            many = resumed(tmp_path, many, [make()], model=model)
    return model, rates


@pytest.mark.parametrize("resume_after", [None, 1, 2, 3, 4])
def test_early_stopping_survives_resume(tmp_path: Path, resume_after: int | None) -> None:
    def make() -> Any:
        return ours.EarlyStopping(patience=3, restore_best_weights=True)

    losses = [1.0, 0.5, 0.75, 0.625, 0.6, 0.1]
    model, rates = rates_until_the_stop(tmp_path, make, losses, resume_after)
    assert len(rates) == 5
    assert all(np.all(weight.numpy() == 2.0) for weight in model.weights)


@pytest.mark.parametrize("resume_after", [None, 1, 2, 3, 4, 5])
def test_reduce_lr_survives_resume(tmp_path: Path, resume_after: int | None) -> None:
    def make() -> Any:
        return ours.ReduceLROnPlateau(patience=2, factor=0.5, cooldown=1)

    losses = [1.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95]
    _, rates = rates_until_the_stop(tmp_path, make, losses, resume_after)
    assert rates == [1.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25]


@pytest.mark.parametrize("kind", [ours.EarlyStopping, keras.callbacks.EarlyStopping])
@pytest.mark.parametrize("is_final", [True, False], ids=["limit", "pause"])
def test_best_weights_are_restored_at_the_end(kind: Any, is_final: bool) -> None:
    model = small_model()
    many = multiplexer([kind(patience=9, restore_best_weights=True)], model=model)
    many.train_begin()
    for index, loss in enumerate([1.0, 2.0]):
        model.weights[1].assign([7.0 + index, 7.0])
        fast(many, 4 * index, 4 * index + 4)
        many.test_end({"val_loss": loss})
    many.train_end(is_final=is_final)
    if is_final:
        assert model.weights[1].numpy().tolist() == [7.0, 7.0]
    elif kind is ours.EarlyStopping:
        assert model.weights[1].numpy().tolist() == [8.0, 7.0]


class Lossy(KerasCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.writer: Any = None
        self.count = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.count += 1
        self.writer = iter([self.count])


def test_unsupported_attributes_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    many = multiplexer([Lossy(), keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))])
    many.train_begin()
    fast(many, 0, 4)
    many.test_end({"val_loss": 1.0})
    for _ in range(2):
        save(many, tmp_path)
    many.train_end()
    (record,) = caplog.records
    assert record.getMessage().startswith("training has changed Lossy.writer, which a")


# -- TensorBoard ----------------------------------------------------------------------------------


def scalars(folder: Path) -> list[tuple[str, int, float]]:
    """Return the scalars in the event files of a directory, as they are on disk."""
    values = []
    for path in sorted(folder.glob("events*")):
        for raw in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(raw.numpy())
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    values.append((value.tag, event.step, float(tf.make_ndarray(value.tensor))))
    return values


def test_tensorboard_flushes_to_trial_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here, elsewhere = tmp_path / "trial", tmp_path / "elsewhere"
    many = multiplexer([ours.TensorBoard(log_dir=str(elsewhere))], tensorboard_path=here)
    many.train_begin()
    assert "is ignored: event files go to the trial's directory" in caplog.text
    fast(many, 0, 3, {"loss": 0.5})
    assert ("epoch_loss", 0, 0.5) in scalars(here / "train")
    many.test_begin()
    many.test_end({"val_loss": 0.25})
    assert scalars(here / "validation") == [("evaluation_loss_vs_iterations", 0, 0.25)]
    other = resumed(tmp_path, many, [ours.TensorBoard()], tensorboard_path=here)
    fast(other, 3, 5, {"loss": 0.125})
    other.train_end()
    many.train_end()
    assert ("epoch_loss", 1, 0.125) in scalars(here / "train")
    assert not elsewhere.exists()


def test_tensorboard_has_name_from_determined() -> None:
    callback = ours.TFKerasTensorBoard()
    assert isinstance(callback, ours.TensorBoard)
