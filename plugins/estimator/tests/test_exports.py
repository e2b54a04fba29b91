"""Exported models in checkpoints, and custom exporters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_fakes import (
    FEATURES,
    Classifier,
    FakeClock,
    open_controller,
    raw_input,
    train,
    variables_in,
)
from estimator_models import run_signature
from test_exact_resume import Averaged

import detcore_estimator
from detcore_estimator.tensorflow_versions import tf


def run(trial_class: type[Classifier], tmp_path: Path, **clock: Any) -> FakeClock:
    return train(trial_class, tmp_path, tmp_path / "checkpoints", **clock)


class Serving(Classifier):
    def build_serving_input_receiver_fns(self) -> dict[str, Any]:
        return {"raw": raw_input, "doubled": lambda: raw_input(2)}


def assert_predicts(folder: Path, variables: dict[str, np.ndarray], factor: int = 1) -> None:
    """Check the weights and the feature factor of the only model in a directory."""
    [exported] = folder.iterdir()
    assert exported.name.isdigit()
    hidden = factor * FEATURES @ variables["hidden/kernel"] + variables["hidden/bias"]
    expected = np.maximum(hidden, 0) @ variables["logits/kernel"] + variables["logits/bias"]
    logits = run_signature(exported, x=FEATURES)["logits"]
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


def test_checkpoints_contain_exported_models(
    tmp_path: Path,
) -> None:
    run(Serving, tmp_path, until=10, save_every=5)

    for step in ("5", "10"):
        checkpoint = tmp_path / "checkpoints" / step
        assert_predicts(checkpoint / "raw", variables_in(checkpoint))
        assert_predicts(checkpoint / "doubled", variables_in(checkpoint), 2)


def test_averages_are_exported(tmp_path: Path) -> None:
    run(type("AveragedServing", (Averaged, Serving), {}), tmp_path, until=10)
    checkpoint = tmp_path / "checkpoints" / "10"
    suffix = "/ExponentialMovingAverage"
    averages = {
        name.removesuffix(suffix): value
        for name, value in variables_in(checkpoint).items()
        if name.endswith(suffix)
    }
    assert_predicts(checkpoint / "raw", averages)


class RecordingExporter(detcore_estimator.Exporter):
    """Records its calls."""

    name = "noting"

    def __init__(self) -> None:
        self.calls: list[tuple[int, bool, bool]] = []

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: dict[str, Any],
        is_the_final_export: bool,
    ) -> None:
        reader = tf.train.load_checkpoint(checkpoint_path)
        step = int(reader.get_tensor("global_step"))
        assert Path(export_path).name == "noting"
        matches = step == int(eval_result["global_step"])
        self.calls.append((step, matches, is_the_final_export))


def test_exporters_run_after_each_validation(tmp_path: Path) -> None:
    noting = RecordingExporter()

    class Exporting(Classifier):
        exporters = noting

    run(Exporting, tmp_path, until=15, validate_every=5)
    assert noting.calls == [(5, True, False), (10, True, False), (15, True, True)]


def test_best_exporter_survives_a_restart(tmp_path: Path) -> None:
    class Exporting(Classifier):
        def build_validation_spec(self) -> Any:
            self.exporters = detcore_estimator.BestExporter("best", raw_input)
            return super().build_validation_spec()

    clock = run(Exporting, tmp_path, until=60, validate_every=30, unit=30)
    assert clock.validations[1][1]["loss"] < clock.validations[0][1]["loss"]
    folder = tmp_path / "trial" / "estimator" / "export" / "best"
    assert len(list(folder.iterdir())) == 2

    # A later process of the trial has a worse model than the best.
    with open_controller(Exporting, tmp_path) as controller:
        assert controller.validate().metrics["loss"] > clock.validations[1][1]["loss"]
    assert len(list(folder.iterdir())) == 2


def test_array_metrics_are_reported_by_element(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Arrays(Classifier):
        def more_metrics(self, logits: Any) -> dict[str, Any]:
            make = self.context.experimental.make_metric
            return {
                "sums": make(logits, lambda batches: np.vstack(batches).sum(0), np.float64),
                "count": make(logits, lambda batches: len(np.vstack(batches)), np.int64),
                "wide": make(logits, lambda batches: np.zeros(200), np.float32),
                "text": make(logits, lambda batches: "words", np.str_),
            }

    clock = run(Arrays, tmp_path, until=10, validate_every=5)

    metrics = clock.validations[0][1]
    assert set(metrics) == {"accuracy", "loss", "global_step", "sums/0", "sums/1", "count"}
    assert metrics["count"] == 20
    assert "wide (shape (200,))" in caplog.text
    assert "text (" in caplog.text
