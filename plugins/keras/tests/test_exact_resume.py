"""A run that was cut off and resumed ends as one that was not, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from _fakes import FakeClock, SmallTrial, assert_same, fingerprint, make_context, seed_everything

from detcore_keras._controller import KerasController
from detcore_keras._keras import keras

UNTIL = 24  # several epochs of 7 batches, and not a multiple of them
SAVE_EVERY = 6


class BatchHooks(keras.callbacks.Callback):  # type: ignore[misc]
    """Makes training go batch by batch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pass


def start(
    tmp_path: Path,
    *,
    until: int,
    save_to: Path | None = None,
    resume: Path | None = None,
    step: int = 0,
    **variant: Any,
) -> tuple[KerasController, FakeClock]:
    seed_everything()
    context = make_context(tmp_path)
    kind = type("Trial", (SmallTrial,), variant)
    controller = KerasController(kind(context), context)
    if resume is not None:
        controller.restore(resume)
    clock = FakeClock(
        controller,
        until=until,
        unit=3,
        validate_every=6,
        save_every=SAVE_EVERY if save_to else 0,
        directory=save_to,
        start=step,
    )
    controller.run(clock)
    controller.close()
    return controller, clock


@pytest.mark.parametrize("hooks", [False, True], ids=["fast", "batchwise"])
@pytest.mark.parametrize(
    "data_kind", ["arrays", "weighted", "tf.data", "opaque", "sequence", "adapter"]
)
def test_every_data_kind(tmp_path: Path, data_kind: str, hooks: bool) -> None:
    variant = {"data_kind": data_kind, "callbacks": [BatchHooks()] if hooks else []}
    whole, whole_clock = start(tmp_path, until=UNTIL, **variant)
    _check_resumes(tmp_path, whole, whole_clock, variant)


@pytest.mark.parametrize("model_kind", ["sequential", "subclassed"])
def test_lazily_built_models(tmp_path: Path, model_kind: str) -> None:
    variant = {"data_kind": "tf.data", "model_kind": model_kind}
    whole, whole_clock = start(tmp_path, until=UNTIL, **variant)
    _check_resumes(tmp_path, whole, whole_clock, variant)


def test_eager_model(tmp_path: Path) -> None:
    variant = {"model_kind": "subclassed", "compile_options": {"run_eagerly": True}}
    whole, whole_clock = start(tmp_path, until=UNTIL, **variant)
    _check_resumes(tmp_path, whole, whole_clock, variant)


def _check_resumes(
    tmp_path: Path, whole: KerasController, whole_clock: FakeClock, variant: dict[str, Any]
) -> None:
    start(tmp_path, until=14, save_to=tmp_path / "saved", **variant)
    for step in (6, 12):
        resumed, clock = start(
            tmp_path, until=UNTIL, resume=tmp_path / "saved" / f"step-{step}", step=step, **variant
        )
        assert_same(fingerprint(whole), fingerprint(resumed))
        assert clock.validations == [v for v in whole_clock.validations if v[0] > step]
        assert clock.training == [t for t in whole_clock.training if t[0] > step]
        assert clock.batches == whole_clock.batches[step:]


def test_validation_leaves_training_alone(tmp_path: Path) -> None:
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
