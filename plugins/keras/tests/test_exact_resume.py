"""An interrupted and resumed run equals an uninterrupted run, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _fakes import (
    MODELS,
    FakeClock,
    SmallTrial,
    Subclassed,
    assert_same,
    fingerprint,
    make_context,
    seed_everything,
)
from resume_checks import check_resumes, run_trial
from tensorflow_names import keras, tf

from detcore.trial import PrepareOptions
from detcore_keras.keras_controller import KerasController
from detcore_keras.worker_setup import prepare_worker


class BatchHooks(keras.callbacks.Callback):  # type: ignore[misc]
    """Makes training run batch by batch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pass


# Every test run resumes from one save. Soak tests resume from each save, and also from synchronous
# saves.
ONE_SAVE = pytest.param(False, id="one save")
ALL_SAVES = pytest.param(True, id="all saves", marks=pytest.mark.soak)
each_save = pytest.mark.parametrize("thorough", [ONE_SAVE, ALL_SAVES])


@each_save
@pytest.mark.parametrize(
    "data_kind", ["arrays", "weighted", "tf.data", "opaque", "sequence", "augmented", "adapter"]
)
def test_every_data_kind_resumes_exactly(tmp_path: Path, data_kind: str, thorough: bool) -> None:
    check_resumes(tmp_path, thorough, data_kind=data_kind)


@pytest.mark.soak
@pytest.mark.parametrize(
    "data_kind", ["arrays", "weighted", "tf.data", "opaque", "sequence", "augmented", "adapter"]
)
def test_data_kinds_resume_batch_by_batch(tmp_path: Path, data_kind: str) -> None:
    check_resumes(tmp_path, True, data_kind=data_kind, callbacks=[BatchHooks()])


@each_save
@pytest.mark.parametrize("model_kind", ["sequential", "subclassed"])
def test_lazily_built_models_resume_exactly(
    tmp_path: Path, model_kind: str, thorough: bool
) -> None:
    check_resumes(tmp_path, thorough, data_kind="tf.data", model_kind=model_kind)


@each_save
def test_eager_model_resumes_exactly(tmp_path: Path, thorough: bool) -> None:
    options = {"run_eagerly": True}
    check_resumes(tmp_path, thorough, model_kind="subclassed", compile_options=options)


def test_eager_model_is_saved_before_first_step(tmp_path: Path) -> None:
    variant: dict[str, Any] = {
        "model_kind": "sequential", "compile_options": {"run_eagerly": True}
    }  # fmt: skip
    seed_everything()
    context = make_context(tmp_path)
    KerasController(type("Trial", (SmallTrial,), variant)(context), context).save(tmp_path)
    one, _ = run_trial(tmp_path, until=3, resume=tmp_path, **variant)
    other, _ = run_trial(tmp_path, until=3, **variant)
    assert_same(fingerprint(one), fingerprint(other))


class Picky(Subclassed):
    """Splits its batches, and rejects records that the data does not contain."""

    def train_step(self, data: Any) -> Any:
        x, _ = data
        halves = [np.asarray(half) for half in tf.split(x, 2)]  # 52 records are 6 times 8 and 4
        if not all(np.any(half, axis=1).all() for half in halves):
            raise ValueError("a record of zeros, which the data does not contain")
        return super().train_step(data)


@each_save
@pytest.mark.parametrize(
    "data_kind",
    ["arrays",
     pytest.param("tf.data", marks=pytest.mark.soak),
     pytest.param("sequence", marks=pytest.mark.soak),
     pytest.param("opaque", marks=pytest.mark.soak)],
)  # fmt: skip
def test_picky_train_step_resumes_exactly(
    tmp_path: Path, thorough: bool, data_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "picky", Picky)
    options = {"run_eagerly": True}
    check_resumes(
        tmp_path, thorough, model_kind="picky", data_kind=data_kind, compile_options=options
    )


class Recurrent(keras.Model):  # type: ignore[misc]
    """Carries its state from batch to batch. All batches have 13 records."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = keras.layers.GRU(4, stateful=True)
        self.top = keras.layers.Dense(3)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.top(self.cell(tf.reshape(x, (13, 3, 2))))


@each_save
def test_eager_stateful_layer_resumes_exactly(
    tmp_path: Path, thorough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "recurrent", Recurrent)
    options = {"run_eagerly": True}
    check_resumes(
        tmp_path, thorough, model_kind="recurrent", compile_options=options, batch_size=13
    )


def test_batch_read_ahead_is_trained_next(tmp_path: Path) -> None:
    """A trial may be saved again before its first step, for example after a signal."""
    variant: dict[str, Any] = {"data_kind": "tf.data", "compile_options": {"run_eagerly": True}}
    uninterrupted, _ = run_trial(tmp_path, until=12, save_to=tmp_path / "whole", **variant)
    seed_everything()
    context = make_context(tmp_path)
    controller = KerasController(type("Trial", (SmallTrial,), variant)(context), context)
    controller.restore(tmp_path / "whole" / "step-6")
    (tmp_path / "again").mkdir()
    controller.save(tmp_path / "again")
    controller.close()
    for resume in (tmp_path / "again", tmp_path / "whole" / "step-6"):
        resumed, _ = run_trial(tmp_path, until=12, resume=resume, step=6, **variant)
        assert_same(fingerprint(uninterrupted), fingerprint(resumed))


class Noisy(Subclassed):
    """Draws from the global generator, which deterministic operations cannot seed randomly."""

    def call(self, x: Any, training: bool = False) -> Any:
        noise = tf.random.get_global_generator().normal(tf.shape(x)) if training else 0.0
        return super().call(x + noise, training=training)


def test_global_generator_is_seeded_and_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "noisy", Noisy)
    ends = []
    for number in range(2):
        prepare_worker(PrepareOptions(seed=11))
        folder = tmp_path / str(number)
        uninterrupted, clock = run_trial(tmp_path, until=12, save_to=folder, model_kind="noisy")
        ends.append(fingerprint(uninterrupted))
    assert_same(*ends)
    again = folder / "step-6"
    resumed, resumed_clock = run_trial(tmp_path, until=12, resume=again, step=6, model_kind="noisy")
    assert_same(fingerprint(resumed), ends[0])
    assert resumed_clock.batches == clock.batches[6:]


@pytest.mark.soak
def test_validation_does_not_change_training(tmp_path: Path) -> None:
    for data_kind in ("arrays", "tf.data", "sequence"):
        results = []
        for period in (0, 3, 6):
            seed_everything()
            context = make_context(tmp_path)
            kind = type("Trial", (SmallTrial,), {"data_kind": data_kind})
            controller = KerasController(kind(context), context)
            controller.run(FakeClock(controller, until=12, unit=3, validate_every=period))
            controller.close()
            results.append(fingerprint(controller))
        assert_same(results[0], results[1])
        assert_same(results[0], results[2])
