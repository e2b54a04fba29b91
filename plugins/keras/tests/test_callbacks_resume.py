"""Callbacks in a real controller. A resumed run ends like an uninterrupted run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _fakes import FakeClock, SmallTrial, assert_same, fingerprint, make_context, seed_everything
from tensorflow_names import keras

from detcore_keras import callbacks as ours
from detcore_keras.keras_controller import KerasController

# Keras 3.15 reads variables in a way that NumPy 2 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

UNTIL = 28  # four epochs of 7 batches


class Nudge(ours.Callback):
    """Changes a weight at the end of each epoch, by random numbers and earlier totals."""

    def on_train_begin(self, logs: Any = None) -> None:
        random.random()  # draws at the start must not change a resumed run
        self.total = np.float64(0.0)
        self.calls: list[tuple[str, int]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.calls.append(("begin", epoch))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.calls.append(("end", epoch))
        self.total += random.random() + float(np.random.normal())
        bias = self.model.layers[-1].weights[1]
        bias.assign(bias + float(self.total))

    def get_state(self) -> Any:
        return {"total": self.total, "calls": self.calls}

    def load_state(self, state: Any) -> None:
        self.total, self.calls = state["total"], state["calls"]


class BatchHooks(keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None: ...


class Trial(SmallTrial):
    hooks = False

    def keras_callbacks(self) -> list[Any]:
        self.nudge = Nudge()
        callbacks = [
            ours.ReduceLROnPlateau(patience=1, factor=0.5, cooldown=1, min_delta=0.05),
            ours.EarlyStopping(patience=20, restore_best_weights=True),
            ours.TensorBoard(),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
            self.nudge,
        ]
        return [*callbacks, BatchHooks()] if self.hooks else callbacks


def train(
    tmp_path: Path, kind: type[Trial], *, until: int, resume_at: int = 0, save: bool = False
) -> tuple[KerasController, FakeClock, Nudge]:
    seed_everything()
    context = make_context(tmp_path)
    trial = kind(context)
    controller = KerasController(trial, context)
    if resume_at:
        controller.restore(tmp_path / "saved" / f"step-{resume_at}")
    clock = FakeClock(
        controller,
        until=until,
        unit=5 if kind.hooks else 7,
        validate_every=5 if kind.hooks else 7,
        save_every=5 if kind.hooks else 7,
        directory=tmp_path / ("saved" if save else f"from-{resume_at}"),
        start=resume_at,
    )
    controller.run(clock)
    controller.close()
    return controller, clock, trial.nudge


@pytest.mark.parametrize("hooks", [False, True], ids=["fast", "batchwise"])
def test_callbacks_resume_exactly(tmp_path: Path, hooks: bool) -> None:
    kind = type("ThisTrial", (Trial,), {"hooks": hooks})
    uninterrupted, whole_clock, nudge = train(tmp_path, kind, until=UNTIL, save=True)
    for step in (5, 10) if hooks else (7, 14):
        resumed, clock, other = train(tmp_path, kind, until=UNTIL, resume_at=step)
        assert_same(fingerprint(uninterrupted), fingerprint(resumed))
        assert clock.validations == [v for v in whole_clock.validations if v[0] > step]
        assert (other.total, other.calls) == (nudge.total, nudge.calls)
    epochs = [(name, epoch) for epoch in range(4) for name in ("begin", "end")]
    assert nudge.calls == epochs


def test_early_stopping_ends_with_best_weights(tmp_path: Path) -> None:
    class Spoil(ours.Callback):
        """Records the weights at each validation, then makes the model worse."""

        def on_train_begin(self, logs: Any = None) -> None:
            self.seen: list[Any] = []
            self.left: Any = None

        def on_test_begin(self, logs: Any = None) -> None:
            self.seen.append(self.model.get_weights())

        def on_test_end(self, logs: Any = None) -> None:
            if self.model.stop_training:
                self.left = self.left or self.model.get_weights()
                return
            bias = self.model.layers[-1].weights[1]
            bias.assign(bias + np.array([0.0, 1.0, 5.0]) * len(self.seen))

    class Stopping(Trial):
        compile_options = {"optimizer": "sgd"}

        def keras_callbacks(self) -> list[Any]:
            self.spoil = Spoil()
            return [ours.EarlyStopping(patience=2, restore_best_weights=True), self.spoil]

    seed_everything()
    context = make_context(tmp_path)
    trial = Stopping(context)
    controller = KerasController(trial, context)
    clock = FakeClock(controller, until=70, unit=7, validate_every=7, context=context)
    controller.run(clock)
    controller.close()
    losses = [metrics["val_loss"] for _, metrics in clock.validations[:3]]
    assert losses == sorted(losses)
    assert context.get_stop_requested()
    assert clock.steps_completed < 70
    assert_same(trial.spoil.left, trial.spoil.seen[0])
