"""Evaluate and predict with the stand-alone Estimator, and read its variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_models import (
    BATCH,
    FEATURES,
    LABELS,
    RECORDS,
    Recorder,
    eval_input,
    make_estimator,
    model_fn,
    replace_fields,
    serving_input,
    train_input,
)

import detcore_estimator as de
from detcore.errors import DataError, InvalidCheckpointError, InvalidModelError
from detcore_estimator.tensorflow_versions import tf, tf1


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> de.Estimator:
    return make_estimator(tmp_path_factory.mktemp("model"), save_checkpoints_steps=2).train(
        train_input, steps=4
    )


def expected(estimator: de.Estimator, step: int = 4, second: str = "second") -> Any:
    """Return the predictions of a checkpoint's model."""
    reader = tf.train.load_checkpoint(f"{estimator.model_dir}/model.ckpt-{step}")
    return np.maximum(FEATURES @ reader.get_tensor("first"), 0) @ reader.get_tensor(second)


def squared_error(value: Any) -> Any:
    return pytest.approx(np.mean((value - LABELS[: len(value)]) ** 2), rel=1e-5)


def evaluate(trained: de.Estimator, change: Any, **arguments: Any) -> Any:
    """Evaluate the trained model with other fields in its spec."""
    return make_estimator(trained.model_dir, replace_fields(change)).evaluate(
        eval_input, **arguments
    )


# -- evaluate -------------------------------------------------------------------------------------


def test_metric_values(trained: de.Estimator) -> None:
    results = trained.evaluate(eval_input)
    value = expected(trained)
    assert list(results) == ["error", "loss", "global_step"]
    assert results["loss"] == squared_error(value)
    assert results["error"] == pytest.approx(np.mean(np.abs(value - LABELS)), rel=1e-5)
    assert results["global_step"] == 4


def test_steps_limit_the_batches(trained: de.Estimator) -> None:
    results = trained.evaluate(eval_input, steps=2)
    assert results["loss"] == squared_error(expected(trained)[: 2 * BATCH])


@pytest.mark.parametrize("path", ["model.ckpt-2", "model.ckpt-2.index"])
def test_older_checkpoint(trained: de.Estimator, path: str) -> None:
    results = trained.evaluate(eval_input, checkpoint_path=f"{trained.model_dir}/{path}")
    assert results["global_step"] == 2
    assert results["loss"] == squared_error(expected(trained, 2))


def test_evaluation_writes_event_files_only(trained: de.Estimator) -> None:
    folder = Path(trained.model_dir)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir() if path.is_file()}
    for _ in range(2):
        results = trained.evaluate(eval_input, name="twice")
    assert {p: p.stat().st_mtime_ns for p in folder.iterdir() if p.is_file()} == before
    files = list((folder / "eval_twice").iterdir())
    # Two evaluations in one second must write different files.
    assert len(files) == 2
    for path in files:
        summaries = [e.summary for e in tf1.train.summary_iterator(str(path)) if e.summary.value]
        values = {value.tag: value.simple_value for value in summaries[0].value}
        assert values["loss"] == pytest.approx(results["loss"])
        assert "checkpoint_path" in values


def test_no_data_is_an_error(trained: de.Estimator) -> None:
    with pytest.raises(DataError, match="nothing to evaluate"):
        trained.evaluate(lambda: eval_input().take(0))


def test_untrained_model_is_evaluated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    results = make_estimator(tmp_path).evaluate(eval_input)
    assert results["global_step"] == 0
    assert "has no checkpoint" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["eval"]


def test_evaluation_hooks(trained: de.Estimator) -> None:
    passed, in_spec, stopping = Recorder(), Recorder(), Recorder(stop_at=2)
    without = trained.evaluate(eval_input)
    assert (
        evaluate(trained, lambda spec: {"evaluation_hooks": [in_spec]}, hooks=[passed]) == without
    )
    trained.evaluate(eval_input, hooks=[stopping])
    for hook, runs in ((passed, 6), (in_spec, 6), (stopping, 2)):
        assert (hook.runs, hook.calls.count("hook.end")) == (runs, 1)


@pytest.mark.parametrize("name", ["loss", "global_step"])
def test_reserved_metric_names(trained: de.Estimator, name: str) -> None:
    with pytest.raises(ValueError, match=f"a metric '{name}'"):
        evaluate(trained, lambda spec: {"eval_metric_ops": {name: tf1.metrics.mean(spec.loss)}})


def test_metric_types(trained: de.Estimator) -> None:
    def metrics(spec: Any) -> dict[str, Any]:
        values = {
            "array": tf.identity([1, 2]),
            "text": tf.constant("a"),
            "flag": tf.constant(True),
            "count": tf.constant(7, tf.int64),
        }
        return {"eval_metric_ops": {name: (value, tf.no_op()) for name, value in values.items()}}

    results = evaluate(trained, metrics, name="kinds")
    assert results["array"].tolist() == [1, 2]
    assert (results["text"], results["flag"], results["count"]) == (b"a", True, 7)
    [path] = (Path(trained.model_dir) / "eval_kinds").iterdir()
    events = list(tf1.train.summary_iterator(str(path)))
    tags = {value.tag for event in events for value in event.summary.value}
    assert tags == {"array", "flag", "count", "loss", "checkpoint_path"}


def test_custom_local_init_op(trained: de.Estimator) -> None:
    def with_local_init(spec: Any) -> dict[str, Any]:
        variable = tf1.get_local_variable("mine", initializer=3.0)
        return {
            "scaffold": tf1.train.Scaffold(local_init_op=variable.initializer),
            "eval_metric_ops": {"mine": (variable.read_value(), tf.no_op())},
        }

    results = evaluate(trained, with_local_init)
    assert results["mine"] == 3
    assert results["loss"] > 0


def test_custom_saver(trained: de.Estimator) -> None:
    def averaged(spec: Any) -> dict[str, Any]:
        first, second = tf1.trainable_variables()
        # Reads one of Adam's moments as the weight.
        saver = tf1.train.Saver({"first": first, "second/Adam_1": second})
        return {"scaffold": tf1.train.Scaffold(saver=saver)}

    results = evaluate(trained, averaged)
    assert results["loss"] == squared_error(expected(trained, second="second/Adam_1"))


# -- predict --------------------------------------------------------------------------------------


def test_predictions_keep_the_data_order(trained: de.Estimator) -> None:
    rows = list(trained.predict(eval_input))
    assert len(rows) == RECORDS
    value = np.stack([row["value"] for row in rows])
    np.testing.assert_allclose(value, expected(trained), rtol=1e-5)
    np.testing.assert_allclose(np.stack([row["twice"] for row in rows]), 2 * value, rtol=1e-6)


def test_whole_batches(trained: de.Estimator) -> None:
    batches = list(trained.predict(eval_input, yield_single_examples=False))
    assert [batch["value"].shape for batch in batches] == [(BATCH, 1)] * (RECORDS // BATCH)


def test_predict_keys(trained: de.Estimator) -> None:
    for keys in (["twice"], "twice", ("twice",)):
        assert next(trained.predict(eval_input, predict_keys=keys)).keys() == {"twice"}


def test_wrong_predict_keys(trained: de.Estimator) -> None:
    with pytest.raises(ValueError, match="'missing', but the model predicts 'value', 'twice'"):
        next(trained.predict(eval_input, predict_keys=["value", "missing"]))

    def single(features: Any, mode: str) -> Any:
        return de.EstimatorSpec(mode, predictions=features["x"])

    estimator = make_estimator(trained.model_dir, single)
    with pytest.raises(ValueError, match="a single tensor without keys"):
        next(estimator.predict(eval_input, predict_keys=["value"]))
    np.testing.assert_array_equal(np.stack(list(estimator.predict(eval_input))), FEATURES)


def test_predictions_with_different_lengths(trained: de.Estimator) -> None:
    def uneven(features: Any, mode: str) -> Any:
        x = features["x"]
        return de.EstimatorSpec(mode, predictions={"all": x, "half": x[:4], "one": tf.size(x)})

    estimator = make_estimator(trained.model_dir, uneven)
    with pytest.raises(ValueError, match=r"\{'all': 8, 'half': 4\}"):
        next(estimator.predict(eval_input, predict_keys=["all", "half"]))
    with pytest.raises(ValueError, match=r"'one'.* is a single value"):
        next(estimator.predict(eval_input, predict_keys=["all", "one"]))
    batch = next(estimator.predict(eval_input, yield_single_examples=False))
    assert batch["one"] == BATCH * 4


def test_missing_checkpoint(trained: de.Estimator) -> None:
    for call in (trained.predict, trained.evaluate):
        with pytest.raises(InvalidCheckpointError, match=r"model\.ckpt-99 does not exist"):
            call(eval_input, checkpoint_path=f"{trained.model_dir}/model.ckpt-99")


def test_interleaved_prediction_generators(trained: de.Estimator) -> None:
    is_eager = tf.executing_eagerly()
    graph = tf1.get_default_graph()
    first, second = trained.predict(eval_input), trained.predict(eval_input, hooks=[Recorder()])
    pairs = [(next(first), next(second)) for _ in range(BATCH + 1)]
    assert all(np.array_equal(a["value"], b["value"]) for a, b in pairs)
    # Between two predictions, the caller's TensorFlow state is unchanged.
    assert tf.executing_eagerly() == is_eager
    assert tf1.get_default_graph() is graph
    first.close()
    assert len(list(second)) == RECORDS - BATCH - 1
    assert trained.evaluate(eval_input)["global_step"] == 4


def test_prediction_hooks(trained: de.Estimator) -> None:
    hook = Recorder(stop_at=2)
    assert len(list(trained.predict(eval_input, hooks=[hook]))) == 2 * BATCH
    assert (hook.runs, hook.calls.count("hook.end")) == (2, 1)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_prediction_uses_the_first_tuple_part(trained: de.Estimator, parts: int) -> None:
    def input_fn() -> Any:
        return eval_input().map(lambda x, y: (x, y, y)[:parts])

    assert len(list(trained.predict(input_fn))) == RECORDS


def test_plain_tensors_never_end(trained: de.Estimator, caplog: pytest.LogCaptureFixture) -> None:
    generator = trained.predict(lambda: {"x": tf.constant(FEATURES[:2])})
    assert len([next(generator) for _ in range(5)]) == 5
    generator.close()
    assert "never end" in caplog.text


# -- variables ------------------------------------------------------------------------------------


def test_variables(trained: de.Estimator) -> None:
    names = trained.get_variable_names()
    assert {"first", "second", "first/Adam", "global_step"} <= set(names)
    assert names == sorted(names)
    assert trained.get_variable_value("first").shape == (4, 16)
    np.testing.assert_array_equal(
        trained.get_variable_value("first:0"), trained.get_variable_value("first")
    )
    with pytest.raises(ValueError, match=r"no variable 'third'; it has .*second"):
        trained.get_variable_value("third")


def test_model_without_checkpoint(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path)
    assert estimator.latest_checkpoint() is None
    for call in (
        estimator.get_variable_names,
        lambda: estimator.get_variable_value("a"),
        lambda: estimator.predict(eval_input),
    ):
        with pytest.raises(ValueError, match="could not find a trained model"):
            call()


# -- specs ----------------------------------------------------------------------------------------


def test_required_fields_of_each_mode() -> None:
    with tf.Graph().as_default():
        one = tf.constant(1.0)
        for fields, missing in (
            ({"mode": "train", "train_op": one}, "loss"),
            ({"mode": "train", "loss": one}, "train_op"),
            ({"mode": "eval"}, "loss"),
            ({"mode": "infer"}, "predictions"),
        ):
            with pytest.raises(ValueError, match=f"has no {missing}"):
                de.EstimatorSpec(**fields)
        with pytest.raises(ValueError, match="mode='test'"):
            de.EstimatorSpec("test", loss=one)


@pytest.mark.parametrize(
    "fields",
    [
        {"loss": 1.0},
        {"train_op": "op"},
        {"predictions": [1]},
        {"predictions": {"a": 1}},
        {"eval_metric_ops": [1]},
        {"eval_metric_ops": {"a": 3}},
        {"eval_metric_ops": {"a": (1, 2)}},
        {"training_hooks": [1]},
        {"evaluation_hooks": 1},
        {"scaffold": 1},
    ],
)
def test_wrong_types_in_a_spec(fields: dict[str, Any]) -> None:
    with tf.Graph().as_default():
        good = {"loss": tf.constant(1.0), "train_op": tf.no_op()}
        with pytest.raises(TypeError, match=f"{next(iter(fields))}.* must be"):
            de.EstimatorSpec("train", **{**good, **fields})


def test_tensor_from_another_graph() -> None:
    with tf.Graph().as_default():
        other = tf.constant(1.0)
    with tf.Graph().as_default():
        current = tf.constant(1.0)
        for fields in (
            {"loss": other},
            {"loss": current, "predictions": {"a": other}},
            {"loss": current, "eval_metric_ops": {"a": (current, other)}},
        ):
            with pytest.raises(ValueError, match="not part of the graph"):
                de.EstimatorSpec("eval", **fields)


def test_loss_shapes() -> None:
    with tf.Graph().as_default():
        assert de.EstimatorSpec("eval", loss=tf.constant([1.0])).loss.shape.rank == 0
        with pytest.raises(ValueError, match=r"shape \(2,\)"):
            de.EstimatorSpec("eval", loss=tf.constant([1.0, 2.0]))


def test_replace_validates_the_fields() -> None:
    with tf.Graph().as_default():
        spec = de.EstimatorSpec("eval", loss=tf.constant(1.0))
        replaced = spec._replace(loss=tf.constant(2.0))
        assert isinstance(replaced, de.EstimatorSpec)
        with pytest.raises(InvalidModelError, match="has no loss"):
            spec._replace(loss=None)


def keras_model_fn(features: Any, labels: Any, mode: str) -> Any:
    """Create unnamed layers and Keras's shared random generator."""
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Dense(8, "relu"), layers.Dropout(0.5), layers.Dense(1)])
    value = layers.Dense(1)(model(features["x"], training=mode == de.ModeKeys.TRAIN))
    if mode == de.ModeKeys.PREDICT:
        return de.EstimatorSpec(mode, predictions={"value": value})
    loss = tf.reduce_mean(tf.square(value - labels))
    train_op = tf1.train.AdamOptimizer(0.01).minimize(loss, tf1.train.get_global_step())
    return de.EstimatorSpec(mode, loss=loss, train_op=train_op)


def test_keras_layer_names_are_stable(tmp_path: Path) -> None:
    before = tf.keras.layers.Dense(1).name
    estimator = make_estimator(tmp_path, keras_model_fn).train(train_input, steps=2)
    first = estimator.evaluate(eval_input)
    predicted = np.concatenate([row["value"] for row in estimator.predict(eval_input)])
    assert first["loss"] == squared_error(predicted[:, np.newaxis])
    estimator.train(train_input, steps=20)
    assert estimator.evaluate(eval_input)["loss"] < first["loss"]
    estimator.export_saved_model(tmp_path / "exported", serving_input)
    # Keras continues its count from before the graphs.
    counts = [int(name.partition("_")[2] or 0) for name in (before, tf.keras.layers.Dense(1).name)]
    assert counts[1] == counts[0] + 1


def test_keras_metric(trained: de.Estimator) -> None:
    def function(features: Any, labels: Any, mode: str) -> Any:
        metric = tf.keras.metrics.MeanAbsoluteError()
        spec = model_fn(features, labels, mode, {})
        metric.update_state(labels, tf.zeros_like(labels))
        return spec._replace(eval_metric_ops={"keras": metric})

    estimator = make_estimator(trained.model_dir, function)
    if tf.__version__.startswith("2.15."):
        results = estimator.evaluate(eval_input)
        assert results["keras"] == pytest.approx(np.mean(np.abs(LABELS)), rel=1e-5)
    else:
        with pytest.raises(InvalidModelError, match="of Keras 3"):
            estimator.evaluate(eval_input)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "greater than 0"),
        ({"name": 3}, "name must be a string"),
        ({"hooks": [1]}, "SessionRunHook"),
        ({"exporters": [1]}, "an Exporter"),
        ({"exporters": 1}, "list or None"),
    ],
)
def test_wrong_eval_specs(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        de.EvalSpec(eval_input, **arguments)


def test_specs_have_the_documented_defaults() -> None:
    spec = de.EvalSpec(eval_input)
    assert (spec.steps, spec.name, spec.start_delay_secs, spec.throttle_secs) == (
        100,
        None,
        120,
        600,
    )
    train = de.TrainSpec(eval_input, 10)
    assert (train.max_steps, train.hooks, train.saving_listeners) == (10, (), ())
    with pytest.raises(ValueError, match="max_steps must be greater than 0"):
        de.TrainSpec(eval_input, max_steps=0)
    with pytest.raises(TypeError, match="input_fn must be a function"):
        de.TrainSpec(eval_input())
