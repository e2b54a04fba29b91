"""Keras's callbacks, and callbacks without detcore's methods, survive a resume."""

from __future__ import annotations

import collections
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _fakes import (
    FakeClock,
    SmallTrial,
    assert_same,
    fingerprint,
    functional,
    make_context,
    records,
    seed_everything,
)
from tensorflow_names import KERAS_MAJOR, keras, tf

from detcore.errors import NotANumberError
from detcore_keras.keras_controller import KerasController

# Keras 3.15 reads variables in a way that NumPy 2 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

EPOCH = 7  # batches
Callbacks = Callable[[Path], list[Any]]


class KeepFiles(keras.callbacks.Callback):  # type: ignore[misc]
    """Copies the files of other callbacks at the end of each epoch."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = str(folder)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        target = Path(self.folder) / f"epoch-{epoch + 1}"
        target.mkdir(exist_ok=True)
        for file in Path(self.folder).glob("*.h5"):
            shutil.copy(file, target)


class Run:
    """One start of a trial that validates and saves at each epoch's end."""

    def __init__(
        self,
        folder: Path,
        callbacks: Callbacks,
        *,
        epochs: int,
        resume: Path | None = None,
        **variant: Any,
    ) -> None:
        folder.mkdir(exist_ok=True)
        seed_everything()
        config = {"searcher": {"max_length": {"epochs": epochs}}}
        context = make_context(folder, config=config)
        context.configure_fit(shuffle=False)
        self.callbacks = [*callbacks(folder), KeepFiles(folder)]
        base = variant.pop("base", SmallTrial)
        kind = type("Trial", (base,), {"callbacks": self.callbacks, **variant})
        self.controller = KerasController(kind(context), context)
        start = 0 if resume is None else int(resume.name.partition("-")[2])
        if resume is not None:
            self.controller.restore(resume)
        self.saved = folder / f"saved-{start}"
        self.clock = FakeClock(
            self.controller,
            until=epochs * EPOCH,
            unit=EPOCH,
            validate_every=EPOCH,
            save_every=EPOCH,
            directory=self.saved,
            start=start,
            context=context,
        )
        try:
            self.controller.run(self.clock)
        finally:
            self.controller.close()

    def files(self) -> dict[str, bytes]:
        """Return the files of the latest checkpoint with training state."""
        latest = self.saved / f"step-{self.clock.steps_completed}"
        folder = str(self.saved.parent).encode()  # in attributes of Keras 2's ModelCheckpoint
        return {
            path.name: path.read_bytes().replace(folder, b"")
            for path in sorted(latest.iterdir())
            if path.suffix in {".npz", ".json"}
        }


def check_resumes(
    tmp_path: Path, callbacks: Callbacks, *, epochs: int, kills: Sequence[int], **variant: Any
) -> Run:
    """Check that runs resumed from checkpoints of a run end like that run. Return the run."""
    uninterrupted = Run(tmp_path / "whole", callbacks, epochs=epochs, **variant)
    for epoch in kills:
        step = epoch * EPOCH
        folder = tmp_path / f"killed-{epoch}"
        folder.mkdir()
        # The process was killed one epoch after the checkpoint.
        for file in (tmp_path / "whole").glob(f"epoch-{epoch + 1}/*"):
            shutil.copy(file, folder)
        checkpoint = uninterrupted.saved / f"step-{step}"
        resumed = Run(folder, callbacks, epochs=epochs, resume=checkpoint, **variant)
        assert resumed.clock.steps_completed == uninterrupted.clock.steps_completed
        assert resumed.clock.stopped == uninterrupted.clock.stopped
        assert resumed.clock.validations == [
            v for v in uninterrupted.clock.validations if v[0] > step
        ]
        assert_same(fingerprint(uninterrupted.controller), fingerprint(resumed.controller))
        assert resumed.files() == uninterrupted.files()
    return uninterrupted


def monitors(folder: Path) -> list[Any]:
    kinds = keras.callbacks
    return [
        kinds.EarlyStopping(patience=4, min_delta=0.3, restore_best_weights=True),
        kinds.ReduceLROnPlateau(patience=2, factor=0.3, min_delta=0.1, cooldown=1),
        kinds.ModelCheckpoint(
            str(folder / "best.weights.h5"), save_best_only=True, save_weights_only=True
        ),
    ]


def fit_with_keras(folder: Path, callbacks: Callbacks, epochs: int) -> tuple[Any, int]:
    """Train with plain Keras. Return the model and the number of epochs."""
    folder.mkdir()
    seed_everything()
    x, y = records()
    model = functional()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    history = model.fit(
        x, y, 8, epochs, validation_data=(x, y), shuffle=False, callbacks=callbacks(folder),
        validation_batch_size=8, verbose=0,
    )  # fmt: skip
    return model, len(history.epoch)


def test_monitors_resume_exactly(tmp_path: Path) -> None:
    """Resume before a plateau, after the first reduction, and near the stop."""
    run = check_resumes(tmp_path, monitors, epochs=40, kills=(2, 6, 9))
    assert run.clock.stopped == "stop requested"
    model, epochs = fit_with_keras(tmp_path / "keras", monitors, 40)
    assert run.clock.steps_completed == epochs * EPOCH
    assert_same(run.controller._model.get_weights(), model.get_weights())
    best = [load_weights(tmp_path / name) for name in ("keras", "whole", "killed-2", "killed-9")]
    for weights in best[1:]:
        assert_same(best[0], weights)


def load_weights(folder: Path) -> list[np.ndarray]:
    seed_everything()
    model = functional()
    model.load_weights(str(folder / "best.weights.h5"))
    values: list[np.ndarray] = model.get_weights()
    return values


class Remembers(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps many kinds of state in attributes, and makes training depend on them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []
        self.recent: collections.deque[float] = collections.deque(maxlen=3)
        self.counts = {"batches": 0, "bad": 0}
        self.best = float("inf")
        self.average: list[np.ndarray] = []
        self.total = tf.Variable(0.0)
        self.rng = np.random.default_rng(5)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.counts["batches"] += 1
        rate = 0.01 * (1 + self.counts["batches"] % 10)  # a cyclical learning rate
        self.model.optimizer.learning_rate = rate

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.calls.append(("end", epoch))
        self.recent.append(logs["val_loss"])
        self.counts["bad"] += logs["val_loss"] > self.best - 0.1
        self.best = min(self.best, logs["val_loss"])
        self.total.assign_add(sum(self.recent))
        weights = self.model.get_weights()
        self.average = [
            0.5 * old + 0.5 * new for old, new in zip(self.average or weights, weights, strict=True)
        ]
        bias = self.model.layers[-1].weights[1]
        bias.assign(bias + float(self.total) + self.rng.normal() + self.average[-1].sum())
        if self.counts["bad"] == 4:  # a stopping rule
            self.model.stop_training = True


@pytest.mark.parametrize("eager", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_callback_attributes_are_restored(tmp_path: Path, eager: bool) -> None:
    options = {"run_eagerly": True} if eager else {}
    run = check_resumes(
        tmp_path, lambda _: [Remembers()], epochs=12, kills=(1, 3, 4), compile_options=options
    )
    assert run.clock.stopped == "stop requested"
    assert run.callbacks[0].counts["bad"] == 4


class Overwrites(keras.callbacks.Callback):  # type: ignore[misc]
    """Initializes a layer when training starts."""

    def on_train_begin(self, logs: Any = None) -> None:
        kernel = self.model.layers[1].weights[0]
        kernel.assign(tf.ones_like(kernel) * 0.1)
        self.first = float(np.asarray(self.model.layers[1].weights[0])[0, 0])


@pytest.mark.parametrize("save_freq", ["epoch", pytest.param(5, marks=pytest.mark.soak)])
def test_restored_model_is_not_overwritten(tmp_path: Path, save_freq: Any) -> None:
    """BackupAndRestore has a later copy of the model, and on_train_begin writes weights."""

    def callbacks(folder: Path) -> list[Any]:
        backup = keras.callbacks.BackupAndRestore(str(folder / "backup"), save_freq=save_freq)
        return [backup, Overwrites()]

    run = check_resumes(tmp_path, callbacks, epochs=4, kills=(1, 2, 3))
    assert not (tmp_path / "whole" / "backup").exists()
    assert run.callbacks[1].first == pytest.approx(0.1)


def test_started_weights_are_not_overwritten(tmp_path: Path) -> None:
    source = Run(tmp_path / "source", lambda _: [], epochs=1)
    context = make_context(tmp_path)
    kind = type("Trial", (SmallTrial,), {"callbacks": [Overwrites()]})
    started = KerasController(kind(context), context)
    started.start_from(source.saved / f"step-{EPOCH}")
    started.validate()
    assert_same(started._model.get_weights(), source.controller._model.get_weights())


@pytest.mark.parametrize("patience", [2, 30], ids=["stop", "limit"])
def test_last_checkpoint_has_restored_weights(tmp_path: Path, patience: int) -> None:
    class Spoil(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch > 1:
                bias = self.model.layers[-1].weights[1]
                bias.assign(bias + np.array([0.0, 3.0, 9.0]))

    def callbacks(folder: Path) -> list[Any]:
        return [
            keras.callbacks.EarlyStopping(patience=patience, restore_best_weights=True),
            Spoil(),
        ]

    run = Run(tmp_path, callbacks, epochs=5)
    assert run.clock.stopped == ("stop requested" if patience == 2 else "completed")
    losses = [metrics["val_loss"] for _, metrics in run.clock.validations]
    assert losses[1] == min(losses) < losses[-1]
    other = Run(tmp_path / "other", lambda _: [], epochs=1)
    latest = run.saved / f"step-{run.clock.steps_completed}"
    other.controller.restore(latest)
    assert other.controller.validate().metrics["val_loss"] == losses[1]


def test_csv_logger_continues_its_file(tmp_path: Path) -> None:
    def log(folder: Path) -> list[Any]:
        return [keras.callbacks.CSVLogger(str(folder / "log.csv"))]

    run = Run(tmp_path / "whole", log, epochs=3)
    rows = (tmp_path / "whole" / "log.csv").read_bytes()
    assert rows.count(b"\n") == 4
    killed = tmp_path / "killed"
    killed.mkdir()
    (killed / "log.csv").write_bytes(rows)  # the killed process wrote more rows
    Run(killed, log, epochs=3, resume=run.saved / f"step-{EPOCH}")
    assert (killed / "log.csv").read_bytes() == rows


def test_nan_keeps_last_finite_checkpoint(tmp_path: Path) -> None:
    class Spoil(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if int(self.model.optimizer.iterations) == 2 * EPOCH - 1:
                bias = self.model.layers[-1].weights[1]
                bias.assign(bias + np.nan)

    with pytest.raises(NotANumberError, match=r"(?s)nan at batch 14.*TerminateOnNaN ends training"):
        Run(tmp_path, lambda _: [keras.callbacks.TerminateOnNaN(), Spoil()], epochs=4)
    assert [path.name for path in (tmp_path / "saved-0").iterdir()] == ["step-7"]


def test_terminate_on_nan_rejects_nan_weights(tmp_path: Path) -> None:
    class Spoil(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                bias = self.model.layers[-1].weights[1]
                bias.assign(bias + np.nan)

    with pytest.raises(NotANumberError, match="is not finite at batch 14"):
        Run(tmp_path, lambda _: [keras.callbacks.TerminateOnNaN(), Spoil()], epochs=4)


class Decay(keras.callbacks.Callback):  # type: ignore[misc]
    """A learning rate schedule over the whole training."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        rate = 0.01 * (1 - epoch / self.params["epochs"]) * self.params["steps"]
        self.model.optimizer.learning_rate = rate


def test_callback_params_equal_fit_params(tmp_path: Path) -> None:
    def callbacks(folder: Path) -> list[Any]:
        return [Decay()]

    run = check_resumes(tmp_path, callbacks, epochs=4, kills=(2,))
    model, _ = fit_with_keras(tmp_path / "keras", callbacks, 4)
    assert_same(run.controller._model.get_weights(), model.get_weights())


class AddsMetric(keras.callbacks.Callback):  # type: ignore[misc]
    """Adds a metric for later callbacks."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["val_own"] = abs(logs["val_accuracy"] - 0.7)


def test_callbacks_share_epoch_logs(tmp_path: Path) -> None:
    def callbacks(folder: Path) -> list[Any]:
        stops = keras.callbacks.EarlyStopping("val_own", mode="min", patience=2)
        return [AddsMetric(), stops, keras.callbacks.CSVLogger(str(folder / "log.csv"))]

    run = Run(tmp_path / "whole", callbacks, epochs=20)
    _, epochs = fit_with_keras(tmp_path / "keras", callbacks, 20)
    assert run.clock.steps_completed == epochs * EPOCH < 20 * EPOCH
    rows = [(tmp_path / name / "log.csv").read_bytes() for name in ("whole", "keras")]
    assert rows[0] == rows[1]
    assert b"val_own" in rows[0]


GLOBAL_SCALE = tf.Variable(1.0, trainable=False)


class AnnealedLoss(SmallTrial):
    """The loss reads variables that are not attributes, and that a callback changes."""

    def build_model(self) -> Any:
        weight = self.weight = tf.Variable(0.1, trainable=False)
        GLOBAL_SCALE.assign(1.0)

        def loss(y: Any, logits: Any) -> Any:
            error = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
            return error * GLOBAL_SCALE + weight * tf.reduce_mean(tf.abs(logits), -1)

        self.compile_options = {"loss": loss}
        return super().build_model()

    def keras_callbacks(self) -> list[Any]:
        def anneal(epoch: int, logs: Any) -> None:
            self.weight.assign(self.weight * 1.5)
            GLOBAL_SCALE.assign_add(0.1)

        return [*self.callbacks, keras.callbacks.LambdaCallback(on_epoch_end=anneal)]


def test_loss_variables_are_restored(tmp_path: Path) -> None:
    check_resumes(tmp_path, lambda _: [], epochs=4, kills=(1, 3), base=AnnealedLoss)


class CountingLoss(SmallTrial):
    """The loss reads a trial attribute and an enclosing variable, which training changes."""

    def build_model(self) -> Any:
        calls = 0
        self.scales = [1.0]

        def loss(y: Any, logits: Any) -> Any:
            nonlocal calls
            calls += 1
            error = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
            return error * self.scales[-1] * (1 + calls % 3)

        self.compile_options = {"loss": loss, "run_eagerly": True}
        return super().build_model()

    def keras_callbacks(self) -> list[Any]:
        def anneal(epoch: int, logs: Any) -> None:
            self.scales.append(0.8 * self.scales[-1])

        return [*self.callbacks, keras.callbacks.LambdaCallback(on_epoch_end=anneal)]


def test_loss_and_trial_numbers_are_restored(tmp_path: Path) -> None:
    check_resumes(tmp_path, lambda _: [], epochs=4, kills=(1, 3), base=CountingLoss)


def test_stale_number_in_compiled_loss_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Annealed(CountingLoss):
        def build_model(self) -> Any:
            scale = self.scale = [1.0]
            self.compile_options = {"loss": lambda y, logits: tf.reduce_mean(logits) * scale[0]}
            return SmallTrial.build_model(self)

        def keras_callbacks(self) -> list[Any]:
            def anneal(epoch: int, logs: Any) -> None:
                self.scale[0] *= 0.5

            return [*self.callbacks, keras.callbacks.LambdaCallback(on_epoch_end=anneal)]

    Run(tmp_path, lambda _: [], epochs=2, base=Annealed)
    (message,) = [text for text in caplog.messages if "loss 0/scale" in text]
    assert "Keras reads such values only when it compiles the step" in message


class Freezes(keras.callbacks.Callback):  # type: ignore[misc]
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.model.layers[1].trainable = False


def test_layers_stay_frozen(tmp_path: Path) -> None:
    options = {"run_eagerly": True, "optimizer": "sgd"}
    run = check_resumes(
        tmp_path, lambda _: [Freezes()], epochs=4, kills=(1, 2, 3), compile_options=options
    )
    assert not run.controller._model.layers[1].trainable


@pytest.mark.skipif(KERAS_MAJOR == 2, reason="Keras 2 has no SwapEMAWeights")
@pytest.mark.parametrize("on_epoch", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_swapped_weights_resume_exactly(tmp_path: Path, on_epoch: bool) -> None:
    def callbacks(folder: Path) -> list[Any]:
        return [keras.callbacks.SwapEMAWeights(swap_on_epoch=on_epoch)]

    class Averaging(SmallTrial):
        def build_model(self) -> Any:
            adam = keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9)
            self.compile_options = {"optimizer": adam}
            return super().build_model()

    check_resumes(tmp_path, callbacks, epochs=4, kills=(1, 2, 3), base=Averaging)
