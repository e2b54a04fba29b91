"""Every estimator goes on bit for bit, from files that hold no code."""

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
from detcore_sklearn.estimators import estimator_class, untrained

X, Y = load_digits(return_X_y=True)
X = X / 16


class AnyTrial(SklearnTrial):
    """Trains the estimator that it is given."""

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


def make(model: Any, kind: str = "dense") -> SklearnController:
    context = TrialContext.from_config({"hyperparameters": {"global_batch_size": 16}})
    return SklearnController(AnyTrial(context, model, kind=kind), context)


def predictions(model: Any) -> Any:
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
# Of a class that no batch has had yet GaussianNB takes the logarithm of its share.
@pytest.mark.filterwarnings("ignore:divide by zero encountered in log:RuntimeWarning")
def test_k_steps_save_restore_and_the_rest_equal_all_steps(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    def fresh() -> Any:
        given = dict(options)
        if isinstance(given.get("random_state"), np.random.RandomState):
            given["random_state"] = np.random.RandomState(3)
        return estimator_class(name)(**given)

    np.random.seed(11)
    straight = make(fresh())
    straight.train(7)
    straight.save(tmp_path)
    straight.train(9)
    expected = np.random.get_state(legacy=False)["state"]["key"]
    np.random.seed(99)
    resumed = make(fresh())
    resumed.restore(tmp_path)
    resumed.train(9)
    first, second = straight._model, resumed._model
    assert np.array_equal(predictions(first), predictions(second))
    assert np.array_equal(expected, np.random.get_state(legacy=False)["state"]["key"])
    assert straight.validate() == resumed.validate()
    (tmp_path / "after").mkdir()
    straight.save(tmp_path / "after")
    (tmp_path / "resumed").mkdir()
    resumed.save(tmp_path / "resumed")
    for file in ("estimator.json", "arrays.npz"):
        left, right = tmp_path / "after" / file, tmp_path / "resumed" / file
        assert _content(left) == _content(right), file


def _content(path: Path) -> object:
    if path.suffix == ".json":
        return json.loads(path.read_text())
    with np.load(path, allow_pickle=False) as saved:
        return {name: (saved[name].dtype.str, saved[name].tobytes()) for name in saved.files}


@pytest.mark.parametrize("kind", ["sparse", "names"])
def test_sparse_features_and_classes_with_names(kind: str, tmp_path: Path) -> None:
    straight = make(SGDClassifier(random_state=1), kind)
    straight.train(4)
    straight.save(tmp_path)
    resumed = make(SGDClassifier(random_state=1), kind)
    resumed.restore(tmp_path)
    assert straight.train(5) == resumed.train(5)
    loaded = load_model(str(tmp_path))
    assert set(loaded.predict(X[:100])) <= set(Y if kind == "sparse" else ("zero", "one", "two"))


def test_an_array_under_two_names_stays_one(tmp_path: Path) -> None:
    controller = make(SGDRegressor(average=5))
    controller.train(3)
    controller.save(tmp_path)
    model = load_model(str(tmp_path))
    twins = [name for name, value in vars(model).items() if value is model.coef_]
    trained = vars(controller._model)
    assert twins == [name for name, value in trained.items() if value is trained["coef_"]]
    assert len(twins) == 2


def test_a_snapshot_does_not_change_with_the_training(tmp_path: Path) -> None:
    controller = make(MLPClassifier((8,), random_state=1, batch_size=8))
    controller.train(3)
    before = predictions(controller._model)
    write = controller.snapshot(tmp_path)
    controller.train(3)
    write()
    assert np.array_equal(predictions(load_model(str(tmp_path))), before)
    assert not np.array_equal(predictions(controller._model), before)
    assert {each.name for each in controller.tensors()} >= {"coefs_.0", "_optimizer.ms.0"}


def test_another_trial_starts_from_what_was_learned(tmp_path: Path) -> None:
    first = make(SGDClassifier(random_state=1))
    first.train(5)
    first.save(tmp_path)
    second = make(SGDClassifier(random_state=1))
    second.start_from(tmp_path)
    assert np.array_equal(second._model.coef_, first._model.coef_)
    assert second._model.t_ == first._model.t_
    assert second._step == 0


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (LogisticRegression(), "returned a sklearn.linear_model._logistic.LogisticRegression"),
        (object(), "returned a builtins.object, which cannot be trained"),
        (type("SGDClassifier", (SGDClassifier,), {})(), r"a \w+\.SGDClassifier, which cannot"),
    ],
)
def test_models_that_could_not_be_restored_are_refused(model: Any, message: str) -> None:
    with pytest.raises(InvalidModelError, match=message):
        make(model)


def test_what_no_file_can_hold_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    controller = make(SGDClassifier())
    controller.train(1)
    controller._model.extra_ = lambda: None
    with pytest.raises(InvalidModelError, match="extra_ is a function, which cannot be saved"):
        controller.save(tmp_path)
    controller._model.extra_ = np.array([None])
    with pytest.raises(InvalidModelError, match="extra_ is an array of Python objects"):
        controller.save(tmp_path)


def test_parameters_that_scikit_learn_rejects_are_invalid_hyperparameters() -> None:
    with pytest.raises(InvalidHP, match="rejects the model's parameters: The 'alpha' parameter"):
        make(SGDClassifier(alpha=-1)).train(1)


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.filterwarnings("ignore:Class PassiveAggressive:FutureWarning")
@pytest.mark.filterwarnings("ignore:(divide by zero|invalid value):RuntimeWarning")
def test_a_validation_before_the_first_batch_changes_nothing(
    name: str, options: dict[str, Any]
) -> None:
    found = []
    for validates in (True, False):
        given = copy.deepcopy(options)
        np.random.seed(5)
        controller = make(estimator_class(name)(**given))
        if validates and name != "GaussianNB":
            metrics = controller.validate().metrics
            assert all(np.isfinite(value) for value in metrics.values())
        controller.train(3)
        found.append(predictions(controller._model))
    assert np.array_equal(*found)


def test_the_first_validation_is_of_the_weights_that_training_begins_with() -> None:
    model = MLPClassifier((8,), random_state=3, batch_size=8)
    begun = untrained(model, X[:8], Y[:8], classes=np.unique(Y))
    assert not hasattr(model, "coefs_")
    assert begun.get_params() == model.get_params()
    model.set_params(learning_rate_init=1e-12).partial_fit(X[:8], Y[:8], classes=np.unique(Y))
    for first, second in zip(begun.coefs_, model.coefs_, strict=True):
        assert np.allclose(first, second, rtol=0, atol=1e-11)


def saved(tmp_path: Path) -> dict[str, Any]:
    controller = make(SGDClassifier())
    controller.train(1)
    controller.save(tmp_path)
    found: dict[str, Any] = json.loads((tmp_path / "estimator.json").read_text())
    return found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"estimator": "os.system"}, "is no|build_model returns|names the estimator"),
        ({"version": 2}, "is not of version 1"),
        ({"more": 1}, "is damaged"),
        ({"fitted": {"part": "Popen", "attributes": {"dict": []}}}, "names the part .* 'Popen'"),
        ({"fitted": {"array": "absent"}}, "cannot be read: KeyError"),
        ({"fitted": {"what": 1}}, "holds .*, which means nothing here"),
        ({"fitted": {"scalar": 1, "dtype": "O9"}}, "cannot be read: TypeError"),
        ({"training": {}}, "does not say how far it is"),
    ],
)
def test_a_changed_checkpoint_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    fields = saved(tmp_path) | changes
    (tmp_path / "estimator.json").write_text(json.dumps(fields))
    with pytest.raises(InvalidCheckpointError, match=message):
        make(SGDClassifier()).restore(tmp_path)


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    data = (tmp_path / "arrays.npz").read_bytes()
    (tmp_path / "arrays.npz").write_bytes(data[: len(data) // 2])
    with pytest.raises(InvalidCheckpointError, match="holds no estimator that can be read"):
        load_model(str(tmp_path))


def test_an_array_of_pickles_is_not_opened(tmp_path: Path) -> None:
    saved(tmp_path)
    np.savez(tmp_path / "arrays.npz", coef_=np.array([object], dtype=object))
    with pytest.raises(InvalidCheckpointError, match="allow_pickle"):
        load_model(str(tmp_path))


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    controller = make(SGDClassifier())
    controller._x = controller._x[:, :10]
    with pytest.raises(InvalidCheckpointError, match="on 64 features, and this"):
        controller.restore(tmp_path)


def test_another_estimator_does_not_take_the_state(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(InvalidCheckpointError, match=r"a SGDClassifier, and .* returns a SGDRegr"):
        make(SGDRegressor()).restore(tmp_path)
