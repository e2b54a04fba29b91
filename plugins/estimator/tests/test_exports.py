"""Exported models in checkpoints, and the user's exporters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_fakes import FEATURES, Classifier, FakeClock, make_context, variables_in

import detcore_estimator
from detcore_estimator._controller import EstimatorController
from detcore_estimator._tf import tf, tf1


def run(trial_class: type[Classifier], tmp_path: Path, *, until: int, **clock: Any) -> FakeClock:
    context = make_context(tmp_path)
    controller = EstimatorController(trial_class(context), context)
    fake = FakeClock(
        controller, until=until, context=context, directory=tmp_path / "checkpoints", **clock
    )
    try:
        controller.run(fake)
    finally:
        controller.close()
    return fake


def raw() -> Any:
    features = tf1.placeholder(tf.float32, [None, 4], name="input")
    return detcore_estimator.export.TensorServingInputReceiver(features, {"x": features})


def doubled() -> Any:
    features = tf1.placeholder(tf.float32, [None, 4], name="input")
    return detcore_estimator.export.TensorServingInputReceiver(features * 2, {"x": features})


class Serving(Classifier):
    def build_serving_input_receiver_fns(self) -> dict[str, Any]:
        return {"raw": raw, "doubled": doubled}


def predict(folder: Path, features: np.ndarray) -> np.ndarray:
    """The logits of a SavedModel."""
    with tf.Graph().as_default(), tf1.Session() as session:
        loaded = tf1.saved_model.load(session, ["serve"], str(folder))
        signature = loaded.signature_def["serving_default"]
        logits: np.ndarray = session.run(
            signature.outputs["logits"].name, {signature.inputs["x"].name: features}
        )
        return logits


def logits_of(variables: dict[str, np.ndarray], features: np.ndarray) -> np.ndarray:
    hidden = np.maximum(features @ variables["hidden/kernel"] + variables["hidden/bias"], 0)
    logits: np.ndarray = hidden @ variables["logits/kernel"] + variables["logits/bias"]
    return logits


def test_each_checkpoint_has_a_model_for_each_function_with_its_own_weights(
    tmp_path: Path,
) -> None:
    run(Serving, tmp_path, until=10, save_every=5)

    for step in ("5", "10"):
        checkpoint = tmp_path / "checkpoints" / step
        variables = variables_in(checkpoint)
        for name, factor in (("raw", 1), ("doubled", 2)):
            [folder] = (checkpoint / name).iterdir()
            assert folder.name.isdigit()
            expected = logits_of(variables, FEATURES * factor)
            np.testing.assert_allclose(predict(folder, FEATURES), expected, rtol=1e-5, atol=1e-6)


def test_exports_of_an_averaged_model_hold_the_averages(tmp_path: Path) -> None:
    class Averaged(Serving):
        def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
            spec = super().model_fn(features, labels, mode)
            averages = tf1.train.ExponentialMovingAverage(0.9)
            if mode == "train":
                with tf1.control_dependencies([spec.train_op]):
                    return spec._replace(train_op=averages.apply(tf1.trainable_variables()))
            saver = tf1.train.Saver(averages.variables_to_restore())
            return spec._replace(scaffold=tf1.train.Scaffold(saver=saver))

    run(Averaged, tmp_path, until=10)
    checkpoint = tmp_path / "checkpoints" / "10"
    variables = variables_in(checkpoint)
    averages = {
        name.removesuffix("/ExponentialMovingAverage"): value
        for name, value in variables.items()
        if name.endswith("/ExponentialMovingAverage")
    }
    [folder] = (checkpoint / "raw").iterdir()
    np.testing.assert_allclose(
        predict(folder, FEATURES), logits_of(averages, FEATURES), rtol=1e-5, atol=1e-6
    )


class Noting(detcore_estimator.Exporter):
    """Notes how it is called."""

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


def test_exporters_run_after_each_validation_with_the_values_of_then(tmp_path: Path) -> None:
    noting = Noting()

    class Exporting(Classifier):
        exporters = noting

    run(Exporting, tmp_path, until=15, validate_every=5)
    assert noting.calls == [(5, True, False), (10, True, False), (15, True, True)]


def test_exporters_of_the_three_kinds(tmp_path: Path) -> None:
    class Exporting(Classifier):
        exporters = (
            detcore_estimator.LatestExporter("latest", raw, exports_to_keep=2),
            detcore_estimator.FinalExporter("final", raw),
            detcore_estimator.BestExporter("best", raw),
        )

    run(Exporting, tmp_path, until=20, validate_every=5)

    exports = tmp_path / "trial" / "estimator" / "export"
    assert len(list((exports / "latest").iterdir())) == 2
    [final] = (exports / "final").iterdir()
    variables = variables_in(tmp_path / "checkpoints" / "20")
    np.testing.assert_allclose(
        predict(final, FEATURES), logits_of(variables, FEATURES), rtol=1e-5, atol=1e-6
    )
    assert list((exports / "best").iterdir())


def test_a_best_exporter_remembers_the_best_across_a_restart(tmp_path: Path) -> None:
    class Exporting(Classifier):
        def build_validation_spec(self) -> Any:
            self.exporters = detcore_estimator.BestExporter("best", raw)
            return super().build_validation_spec()

    clock = run(Exporting, tmp_path, until=60, validate_every=30, unit=30)
    assert clock.validations[1][1]["loss"] < clock.validations[0][1]["loss"]
    folder = tmp_path / "trial" / "estimator" / "export" / "best"
    assert len(list(folder.iterdir())) == 2

    # Another process of the trial, whose model is worse than the best.
    context = make_context(tmp_path)
    controller = EstimatorController(Exporting(context), context)
    assert controller.validate().metrics["loss"] > clock.validations[1][1]["loss"]
    controller.close()
    assert len(list(folder.iterdir())) == 2


def test_metrics_that_are_arrays_are_reported_by_element(
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


def test_an_error_in_a_reducer_reaches_the_user_as_it_was(tmp_path: Path) -> None:
    class Broken(Classifier):
        def more_metrics(self, logits: Any) -> dict[str, Any]:
            def reduce(batches: Any) -> float:
                raise KeyError("the user's own mistake")

            make = self.context.experimental.make_metric
            return {"broken": make(logits, reduce, np.float32)}

    with pytest.raises(KeyError, match="the user's own mistake"):
        run(Broken, tmp_path, until=10, validate_every=5)
