"""SavedModels: signatures, files, names, failures, and the exporters of an EvalSpec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_models import (
    FEATURES,
    eval_input,
    make_estimator,
    model_fn,
    replace_fields,
    run_signature,
    serving_input,
    train_input,
)

import detcore_estimator as de
from detcore.errors import DataError, InvalidModelError, UnsafePathError
from detcore_estimator import export
from detcore_estimator.exporters.serving_graph import ServingGraph
from detcore_estimator.tensorflow_versions import tf, tf1


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> de.Estimator:
    return make_estimator(tmp_path_factory.mktemp("model")).train(train_input, steps=3)


def signatures_of(path: str) -> set[str]:
    return set(tf.saved_model.load(path).signatures)


def export_model(trained: de.Estimator, tmp_path: Path, outputs: Any, receiver: Any) -> str:
    """Export the model with outputs that a function creates from its prediction."""
    function = replace_fields(lambda spec: {"export_outputs": outputs(spec.predictions["value"])})
    return make_estimator(trained.model_dir, function).export_saved_model(tmp_path, receiver)


# -- the whole ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "as_text"), [("export_savedmodel", False), ("export_saved_model", True)]
)
def test_exported_model_predicts_the_same(
    trained: de.Estimator, tmp_path: Path, method: str, as_text: bool
) -> None:
    path = getattr(trained, method)(str(tmp_path), serving_input, as_text=as_text)
    assert isinstance(path, str)
    assert (Path(path).parent, Path(path).name.isdigit()) == (tmp_path, True)
    assert (Path(path) / f"saved_model.{'pbtxt' if as_text else 'pb'}").is_file()
    expected = np.stack([row["value"] for row in trained.predict(eval_input)])
    served = run_signature(path, x=FEATURES)
    assert served.keys() == {"value", "twice"}
    np.testing.assert_allclose(served["value"], expected, rtol=1e-5)
    loaded = tf.saved_model.load(path).signatures["serving_default"]
    np.testing.assert_allclose(loaded(x=tf.constant(FEATURES))["value"], expected, rtol=1e-5)


def test_export_names_increase(trained: de.Estimator, tmp_path: Path) -> None:
    paths = [trained.export_saved_model(tmp_path, serving_input) for _ in range(3)]
    numbers = [int(Path(path).name) for path in paths]
    assert numbers == sorted(set(numbers))
    assert {path.name for path in tmp_path.iterdir()} == set(map(str, numbers))


def test_export_of_a_given_checkpoint(trained: de.Estimator, tmp_path: Path) -> None:
    first = f"{trained.model_dir}/model.ckpt-0"
    path = trained.export_saved_model(tmp_path, serving_input, checkpoint_path=first)
    reader = tf.train.load_checkpoint(f"{path}/variables/variables")
    np.testing.assert_array_equal(
        reader.get_tensor("first"), tf.train.load_checkpoint(first).get_tensor("first")
    )


def test_extra_assets_and_vocabularies(trained: de.Estimator, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("a\nb\n")

    def function(features: Any, labels: Any, mode: str) -> Any:
        spec = model_fn(features, labels, mode, {})
        table = tf.lookup.StaticHashTable(
            tf.lookup.TextFileInitializer(
                str(words),
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
            ),
            -1,
        )
        answers = {"id": table.lookup(features["word"])}
        return spec._replace(predictions=answers, export_outputs=None)

    def receiver() -> Any:
        word = tf1.placeholder(tf.string, [None])
        features = {"word": word, **serving_input().features}
        return export.ServingInputReceiver(features, features)

    path = make_estimator(trained.model_dir, function).export_saved_model(
        tmp_path / "out", receiver, assets_extra={"a/b.txt": str(words)}
    )
    assert (Path(path) / "assets.extra/a/b.txt").read_text() == "a\nb\n"
    words.unlink()
    moved = Path(path).rename(tmp_path / "moved")
    served = run_signature(str(moved), word=["b", "c"], x=FEATURES[:2])
    assert served["id"].tolist() == [1, -1]


# -- what goes wrong ------------------------------------------------------------------------------


def test_export_errors(trained: de.Estimator, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="serving_input_receiver_fn must be a function"):
        trained.export_savedmodel(tmp_path, None)
    with pytest.raises(ValueError, match="could not find a trained model"):
        make_estimator(tmp_path / "new").export_savedmodel(tmp_path, serving_input)
    with pytest.raises(ValueError, match="must be a ServingInputReceiver"):
        trained.export_savedmodel(tmp_path, lambda: {"x": 1})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("assets", "error"),
    [
        ({"../a": "words"}, UnsafePathError),
        ({"/a": "words"}, UnsafePathError),
        ({"": "words"}, UnsafePathError),
        ({"a": "missing"}, DataError),
        (["words"], InvalidModelError),
    ],
)
def test_wrong_assets_leave_no_files(
    trained: de.Estimator, tmp_path: Path, assets: Any, error: type[Exception]
) -> None:
    (tmp_path / "words").write_text("a")
    if isinstance(assets, dict):
        assets = {target: str(tmp_path / source) for target, source in assets.items()}
    with pytest.raises(error, match="assets_extra"):
        trained.export_saved_model(tmp_path / "out", serving_input, assets_extra=assets)
    assert not (tmp_path / "out").exists()


def test_failed_export_leaves_no_files(
    trained: de.Estimator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(tf1.saved_model.Builder, "save", fails)
    with pytest.raises(OSError, match="disk is full"):
        trained.export_saved_model(tmp_path, serving_input)
    assert not list(tmp_path.iterdir())


# -- signatures -----------------------------------------------------------------------------------


parsing_receiver = export.build_parsing_serving_input_receiver_fn(
    {"x": tf.io.FixedLenFeature([4], tf.float32)}
)


def serialize_examples(rows: Any) -> list[bytes]:
    messages = [tf.train.Example() for _ in rows]
    for message, row in zip(messages, rows, strict=True):
        message.features.feature["x"].float_list.value.extend(row)
    return [message.SerializeToString() for message in messages]


def test_signature_kinds(trained: de.Estimator, tmp_path: Path) -> None:
    path = export_model(
        trained,
        tmp_path,
        lambda value: {
            "serving_default": export.RegressionOutput(value),
            "classes": export.ClassificationOutput(value, tf.as_string(value)),
            "scores": export.ClassificationOutput(scores=value),
            "plain": export.PredictOutput(value),
            "named": export.PredictOutput({("head", "value"): value}),
        },
        parsing_receiver,
    )
    inputs = {"inputs": serialize_examples(FEATURES[:3])}
    served = run_signature(path, **inputs)
    assert served.keys() == {"outputs"}
    np.testing.assert_allclose(run_signature(path, "scores", **inputs)["scores"], served["outputs"])
    assert run_signature(path, "classes", **inputs).keys() == {"classes", "scores"}
    assert run_signature(path, "plain", examples=inputs["inputs"]).keys() == {"output"}
    assert run_signature(path, "named", examples=inputs["inputs"]).keys() == {"head/value"}


def test_single_output_is_the_default(trained: de.Estimator, tmp_path: Path) -> None:
    path = export_model(
        trained, tmp_path, lambda v: {"mine": export.PredictOutput(v)}, serving_input
    )
    assert signatures_of(path) == {"mine", "serving_default"}


def test_unservable_outputs_are_skipped(
    trained: de.Estimator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = export_model(
        trained,
        tmp_path,
        lambda v: {"serving_default": export.RegressionOutput(v), "p": export.PredictOutput(v)},
        serving_input,
    )
    assert signatures_of(path) == {"p"}
    assert "no default signature, only p" in caplog.text


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (lambda v: {}, "has empty export_outputs"),
        (lambda v: {"r": export.RegressionOutput(v)}, "a regression signature requires one tensor"),
        (lambda v: dict.fromkeys("ab", export.PredictOutput(v)), "no default signature"),
    ],
)
def test_unsupported_outputs_are_rejected(
    trained: de.Estimator, tmp_path: Path, outputs: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        export_model(trained, tmp_path, outputs, serving_input)
    assert not list(tmp_path.iterdir())


def test_alternative_inputs_add_signatures(trained: de.Estimator, tmp_path: Path) -> None:
    def receiver() -> Any:
        base = parsing_receiver()
        return export.ServingInputReceiver(
            base.features,
            base.receiver_tensors,
            {"raw": base.features, "half": base.features},
        )

    path = export_model(trained, tmp_path, lambda v: {"p": export.PredictOutput(v)}, receiver)
    assert signatures_of(path) == {
        name + output for name in ("", "raw:", "half:") for output in ("p", "serving_default")
    }
    np.testing.assert_allclose(
        run_signature(path, "raw:p", x=FEATURES)["output"],
        run_signature(path, "p", examples=serialize_examples(FEATURES))["output"],
    )


# -- receivers ------------------------------------------------------------------------------------


def test_receivers_name_single_tensors() -> None:
    with tf.Graph().as_default():
        one = tf1.placeholder(tf.float32, [None, 2])
        receiver = export.ServingInputReceiver(one, one, {"more": one})
        assert receiver == ({"feature": one}, {"input": one}, {"more": {"input": one}})
        bare = export.TensorServingInputReceiver(one, {"a": one})
        assert bare[:2] == (one, {"a": one})


@pytest.mark.parametrize(
    "arguments",
    [
        (None, "one"),
        ({3.5: "one"}, "one"),
        ({"a": 1}, "one"),
        ("one", None),
        ("one", {3: "one"}),
        ("one", "one", ["one"]),
        ("one", {}),
    ],
)
def test_wrong_receivers(arguments: Any) -> None:
    with tf.Graph().as_default():
        one = tf1.placeholder(tf.float32, [None])

        def put(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: put(item) for key, item in value.items()}
            return one if value == "one" else value

        with pytest.raises(ValueError, match=r"must be|is empty"):
            export.ServingInputReceiver(*map(put, arguments))


def test_raw_receivers_use_dtype_and_shape() -> None:
    with tf.Graph().as_default():
        other = tf1.placeholder(tf.int64, [5, None, 3])
    function = export.build_raw_serving_input_receiver_fn(
        {"a b": other, "unknown": tf.TensorSpec(None, tf.string)}, default_batch_size=2
    )
    for _ in range(2):
        with tf.Graph().as_default():
            tensors = function().features
            assert tensors["a b"].dtype == tf.int64
            assert tensors["a b"].shape.as_list() == [2, None, 3]
            assert tensors["unknown"].shape.rank is None


@pytest.mark.parametrize(
    ("make_output", "message"),
    [
        (lambda one: export.PredictOutput({"a": 1}), "the output 'a' must be a tensor"),
        (lambda one: export.PredictOutput({1: one}), "each key of the outputs"),
        (lambda one: export.ClassificationOutput(), "needs scores, classes or both"),
        (lambda one: export.ClassificationOutput(scores=tf.constant([1])), "floating-point"),
        (lambda one: export.ClassificationOutput(classes=one), "tensor of strings"),
        (lambda one: export.RegressionOutput(tf.constant(["a"])), "floating-point"),
    ],
)
def test_wrong_outputs(make_output: Any, message: str) -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        make_output(tf.constant([1.0]))


# -- ServingGraph ---------------------------------------------------------------------------------


def test_serving_graph_is_built_once(trained: de.Estimator, tmp_path: Path) -> None:
    calls: list[str] = []
    operations: list[int] = []

    def counted(features: Any, labels: Any, mode: str, config: Any) -> Any:
        calls.append(mode)
        return trained.model_fn(features, labels, mode, config)

    def restore(session: Any, saver: Any) -> None:
        operations.append(len(session.graph.get_operations()))
        saver.restore(session, f"{trained.model_dir}/model.ckpt-3")

    graph = ServingGraph(counted, serving_input, config=trained.config)
    paths = {graph.write(tmp_path, restore) for _ in range(3)}
    assert {str(path) for path in tmp_path.iterdir()} == {str(path) for path in paths}
    assert calls == ["infer"]
    assert operations == [operations[0]] * 3


# -- exporters ------------------------------------------------------------------------------------


def run_exporter(
    exporter: Any, estimator: de.Estimator, folder: Path, loss: float, final: bool = False
) -> Any:
    checkpoint = f"{estimator.model_dir}/model.ckpt-3"
    return exporter.export(estimator, str(folder), checkpoint, {"loss": np.float32(loss)}, final)


def test_final_exporter(trained: de.Estimator, tmp_path: Path) -> None:
    exporter = de.FinalExporter("final", serving_input)
    assert exporter.name == "final"
    assert run_exporter(exporter, trained, tmp_path, 1.0) is None
    assert Path(run_exporter(exporter, trained, tmp_path, 1.0, final=True)).is_dir()


def test_latest_exporter_limits_its_exports(trained: de.Estimator, tmp_path: Path) -> None:
    exporter = de.LatestExporter("latest", serving_input, exports_to_keep=2)
    paths = [run_exporter(exporter, trained, tmp_path, 1.0) for _ in range(4)]
    assert sorted(map(str, tmp_path.iterdir())) == paths[2:]


def test_best_exporter_exports_improvements(trained: de.Estimator, tmp_path: Path) -> None:
    exporter = de.BestExporter(
        serving_input_receiver_fn=serving_input, event_file_pattern=None, exports_to_keep=None
    )
    exported = [
        run_exporter(exporter, trained, tmp_path, loss) is not None for loss in (3, 4, 2, 2, 1)
    ]
    assert exported == [True, False, True, False, True]


def test_best_exporter_keeps_its_best_value(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path / "model").train(train_input, steps=3)
    best = estimator.evaluate(eval_input)["loss"]
    first = de.BestExporter(serving_input_receiver_fn=serving_input)
    assert run_exporter(first, estimator, tmp_path, best)
    # A new process has a worse result, then a better result.
    start = f"{estimator.model_dir}/model.ckpt-0"
    worse = estimator.evaluate(eval_input, checkpoint_path=start)["loss"]
    assert worse > best
    second = de.BestExporter(serving_input_receiver_fn=serving_input)
    losses = (worse, best, best / 2)
    exported = [run_exporter(second, estimator, tmp_path, loss) is not None for loss in losses]
    assert exported == [False, False, True]


def test_custom_compare_function(trained: de.Estimator, tmp_path: Path) -> None:
    def is_higher(best_eval_result: Any, current_eval_result: Any) -> bool:
        return bool(current_eval_result["loss"] > best_eval_result["loss"])

    exporter = de.BestExporter("up", serving_input, event_file_pattern=None, compare_fn=is_higher)
    exported = [run_exporter(exporter, trained, tmp_path, loss) is not None for loss in (1, 2, 0)]
    assert exported == [True, True, False]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: de.FinalExporter("", serving_input), "name must be a string"),
        (lambda: de.FinalExporter("a", None), "must be a function"),
        (lambda: de.LatestExporter("a", serving_input, exports_to_keep=0), "greater than 0"),
        (lambda: de.BestExporter("a", serving_input, compare_fn=None), "compare_fn must be"),
        (lambda: de.BestExporter("a", serving_input, compare_fn=max), "cannot be determined"),
        (
            lambda: de.BestExporter("a", serving_input, compare_fn=lambda best, current: True),
            "compare_fn has the arguments: best, current",
        ),
        (
            lambda: de.EvalSpec(eval_input, exporters=[de.FinalExporter("a", serving_input)] * 2),
            "the names",
        ),
    ],
)
def test_wrong_exporters(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_single_exporter_is_accepted() -> None:
    exporter = de.FinalExporter("a", serving_input)
    assert de.EvalSpec(eval_input, exporters=exporter).exporters == (exporter,)
