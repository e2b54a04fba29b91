"""Every estimator resumes bit for bit, from files without code."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from detcore import InvalidHP, TrialContext
from detcore.errors import (
    InvalidCheckpointError,
    InvalidModelError,
)
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression, SGDClassifier, SGDRegressor
from sklearn.neural_network import MLPClassifier

from detcore_sklearn import ESTIMATORS, Data, SklearnController, SklearnTrial, load_model
from detcore_sklearn.estimators import find_estimator_class, make_untrained_copy

X, Y = load_digits(return_X_y=True)
X = X / 16


class AnyTrial(SklearnTrial):
    """Trains any estimator."""

    def __init__(self, context: TrialContext, model: Any, *, kind: str = "dense") -> None:
        super().__init__(context)
        self.model = model
        self.kind = kind

    def build_model(self) -> Any:
        return self.model

    def build_training_data(self) -> Data:
        x, y = X[:200], Y[:200]
        if self.kind == "names":
            return x, np.array(["zero", "one", "two"])[y % 3]
        return (sparse.csr_matrix(x) if self.kind == "sparse" else x), y

    def build_validation_data(self) -> Data:
        return self.build_training_data()


def make_controller(model: Any, kind: str = "dense") -> SklearnController:
    context = TrialContext.from_config({"hyperparameters": {"global_batch_size": 16}})
    return SklearnController(AnyTrial(context, model, kind=kind), context)


def predict_sample(model: Any) -> Any:
    x = X[200:300]
    return model.predict_proba(x) if hasattr(model, "predict_proba") else model.predict(x)


OPTIONS: dict[str, list[dict[str, Any]]] = {
    "MLPClassifier": [
        {"hidden_layer_sizes": (8,), "batch_size": 8},
        {"solver": "sgd", "momentum": 0.8, "hidden_layer_sizes": [6, 5], "batch_size": 8},
        {"hidden_layer_sizes": (8,), "random_state": np.random.RandomState(3), "batch_size": 8},
    ],
    "MLPRegressor": [{"hidden_layer_sizes": (8,), "batch_size": 8}],
    "SGDClassifier": [
        {},
        {"loss": "log_loss", "average": 20, "random_state": 3},
        {"penalty": "elasticnet", "learning_rate": "adaptive", "eta0": 0.1},
        {"class_weight": {digit: 1.0 + digit for digit in range(10)}},
    ],
    "SGDRegressor": [{}, {"average": True}],
    "Perceptron": [{"penalty": "l1"}],
}
CASES = [(name, options) for name in ESTIMATORS for options in OPTIONS.get(name, [{}])]


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.filterwarnings("ignore:Class PassiveAggressive:FutureWarning")
# GaussianNB takes the logarithm of 0 for classes that no batch has contained.
@pytest.mark.filterwarnings("ignore:divide by zero encountered in log:RuntimeWarning")
def test_resumed_training_equals_uninterrupted(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    def make_estimator() -> Any:
        arguments = dict(options)
        if isinstance(arguments.get("random_state"), np.random.RandomState):
            arguments["random_state"] = np.random.RandomState(3)
        return find_estimator_class(name)(**arguments)

    np.random.seed(11)
    uninterrupted = make_controller(make_estimator())
    uninterrupted.train(7)
    uninterrupted.save(tmp_path)
    uninterrupted.train(9)
    expected = np.random.get_state(legacy=False)["state"]["key"]
    np.random.seed(99)
    resumed = make_controller(make_estimator())
    resumed.restore(tmp_path)
    resumed.train(9)
    first, second = uninterrupted._model, resumed._model
    assert np.array_equal(predict_sample(first), predict_sample(second))
    assert np.array_equal(expected, np.random.get_state(legacy=False)["state"]["key"])
    assert uninterrupted.validate() == resumed.validate()
    (tmp_path / "after").mkdir()
    uninterrupted.save(tmp_path / "after")
    (tmp_path / "resumed").mkdir()
    resumed.save(tmp_path / "resumed")
    for file in ("estimator.json", "arrays.npz"):
        expected_file, resumed_file = tmp_path / "after" / file, tmp_path / "resumed" / file
        assert _read_content(expected_file) == _read_content(resumed_file), file


def _read_content(path: Path) -> object:
    if path.suffix == ".json":
        return json.loads(path.read_text())
    with np.load(path, allow_pickle=False) as arrays:
        return {name: (arrays[name].dtype.str, arrays[name].tobytes()) for name in arrays.files}


@pytest.mark.parametrize("kind", ["sparse", "names"])
def test_sparse_features_and_named_classes_resume(kind: str, tmp_path: Path) -> None:
    uninterrupted = make_controller(SGDClassifier(random_state=1), kind)
    uninterrupted.train(4)
    uninterrupted.save(tmp_path)
    resumed = make_controller(SGDClassifier(random_state=1), kind)
    resumed.restore(tmp_path)
    assert uninterrupted.train(5) == resumed.train(5)
    loaded = load_model(str(tmp_path))
    assert set(loaded.predict(X[:100])) <= set(Y if kind == "sparse" else ("zero", "one", "two"))


def test_shared_array_stays_shared(tmp_path: Path) -> None:
    controller = make_controller(SGDRegressor(average=5))
    controller.train(3)
    controller.save(tmp_path)
    model = load_model(str(tmp_path))
    twins = [name for name, value in vars(model).items() if value is model.coef_]
    attributes = vars(controller._model)
    assert twins == [name for name, value in attributes.items() if value is attributes["coef_"]]
    assert len(twins) == 2


def test_training_does_not_change_snapshot(tmp_path: Path) -> None:
    controller = make_controller(MLPClassifier((8,), random_state=1, batch_size=8))
    controller.train(3)
    before = predict_sample(controller._model)
    write = controller.snapshot(tmp_path)
    controller.train(3)
    write()
    assert np.array_equal(predict_sample(load_model(str(tmp_path))), before)
    assert not np.array_equal(predict_sample(controller._model), before)
    assert {tensor.name for tensor in controller.tensors()} >= {"coefs_.0", "_optimizer.ms.0"}


def test_start_from_loads_weights(tmp_path: Path) -> None:
    first = make_controller(SGDClassifier(random_state=1))
    first.train(5)
    first.save(tmp_path)
    second = make_controller(SGDClassifier(random_state=1))
    second.start_from(tmp_path)
    assert np.array_equal(second._model.coef_, first._model.coef_)
    assert second._model.t_ == first._model.t_
    assert second._step == 0


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (LogisticRegression(), "returned a sklearn.linear_model._logistic.LogisticRegression"),
        (object(), "returned a builtins.object, which is not supported"),
        (type("SGDClassifier", (SGDClassifier,), {})(), r"a \w+\.SGDClassifier, which is not"),
    ],
)
def test_unsupported_model_is_rejected(model: Any, message: str) -> None:
    with pytest.raises(InvalidModelError, match=message):
        make_controller(model)


def test_save_rejects_unsupported_attributes(tmp_path: Path) -> None:
    controller = make_controller(SGDClassifier())
    controller.train(1)
    controller._model.extra_ = lambda: None
    with pytest.raises(InvalidModelError, match="extra_ is a function, which cannot be saved"):
        controller.save(tmp_path)
    controller._model.extra_ = np.array([None])
    with pytest.raises(InvalidModelError, match="extra_ is an array of Python objects"):
        controller.save(tmp_path)


def test_invalid_parameter_raises_invalid_hp() -> None:
    with pytest.raises(InvalidHP, match="rejects the model's parameters: The 'alpha' parameter"):
        make_controller(SGDClassifier(alpha=-1)).train(1)


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.filterwarnings("ignore:Class PassiveAggressive:FutureWarning")
@pytest.mark.filterwarnings("ignore:(divide by zero|invalid value):RuntimeWarning")
def test_early_validation_does_not_change_training(name: str, options: dict[str, Any]) -> None:
    results = []
    for validates in (True, False):
        arguments = copy.deepcopy(options)
        np.random.seed(5)
        controller = make_controller(find_estimator_class(name)(**arguments))
        if validates and name != "GaussianNB":
            metrics = controller.validate().metrics
            assert all(np.isfinite(value) for value in metrics.values())
        controller.train(3)
        results.append(predict_sample(controller._model))
    assert np.array_equal(*results)


def test_early_validation_uses_initial_weights() -> None:
    model = MLPClassifier((8,), random_state=3, batch_size=8)
    untrained = make_untrained_copy(model, X[:8], Y[:8], classes=np.unique(Y))
    assert not hasattr(model, "coefs_")
    assert untrained.get_params() == model.get_params()
    model.set_params(learning_rate_init=1e-12).partial_fit(X[:8], Y[:8], classes=np.unique(Y))
    for first, second in zip(untrained.coefs_, model.coefs_, strict=True):
        assert np.allclose(first, second, rtol=0, atol=1e-11)


def save_checkpoint(tmp_path: Path) -> dict[str, Any]:
    controller = make_controller(SGDClassifier())
    controller.train(1)
    controller.save(tmp_path)
    fields: dict[str, Any] = json.loads((tmp_path / "estimator.json").read_text())
    return fields


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"estimator": "os.system"}, "build_model returns|names an unknown estimator"),
        ({"version": 2}, "does not have version 1"),
        ({"more": 1}, "is damaged"),
        (
            {"fitted": {"part": "Popen", "attributes": {"dict": []}}},
            "unknown part .* 'Popen'",
        ),
        ({"fitted": {"array": "absent"}}, "cannot be read: KeyError"),
        ({"fitted": {"what": 1}}, "unrecognized estimator state"),
        ({"fitted": {"scalar": 1, "dtype": "O9"}}, "cannot be read: TypeError"),
        ({"training": {}}, "has no step or random state"),
    ],
)
def test_restore_rejects_changed_checkpoint(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    fields = save_checkpoint(tmp_path) | changes
    (tmp_path / "estimator.json").write_text(json.dumps(fields))
    with pytest.raises(InvalidCheckpointError, match=message):
        make_controller(SGDClassifier()).restore(tmp_path)


def test_load_rejects_truncated_file(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    data = (tmp_path / "arrays.npz").read_bytes()
    (tmp_path / "arrays.npz").write_bytes(data[: len(data) // 2])
    with pytest.raises(InvalidCheckpointError, match="cannot read an estimator from"):
        load_model(str(tmp_path))


def test_load_rejects_object_array(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    np.savez(tmp_path / "arrays.npz", coef_=np.array([object], dtype=object))
    with pytest.raises(InvalidCheckpointError, match="allow_pickle"):
        load_model(str(tmp_path))


def test_restore_rejects_other_feature_count(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    controller = make_controller(SGDClassifier())
    controller._x = controller._x[:, :10]
    with pytest.raises(InvalidCheckpointError, match="on 64 features, but this"):
        controller.restore(tmp_path)


def test_restore_rejects_other_estimator(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    with pytest.raises(InvalidCheckpointError, match=r"a SGDClassifier, but .* returns a SGDRegr"):
        make_controller(SGDRegressor()).restore(tmp_path)
