"""Scenarios for tests of several workers. Each runs ``worker_scenarios.py FOLDER NAME...``.

Each scenario writes its result to ``FOLDER/NAME-RANK.pkl``. The results of one worker are the
reference for several workers.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import numpy as np
from _fakes import FakeClock, make_context, seed_everything

from detcore.distributed import DistributedContext
from detcore.errors import DetcoreError
from detcore.trial import PrepareOptions
from detcore_keras.frameworks import backend, keras
from detcore_keras.keras_controller import KerasController
from detcore_keras.keras_trial import TFKerasTrial
from detcore_keras.worker_setup import prepare_worker

SCENARIOS: dict[str, Callable[[DistributedContext, Path], Any]] = {}
legacy = getattr(keras.optimizers, "legacy", None)
KERAS_MAJOR = backend.keras_major
tf: Any = importlib.import_module("tensorflow") if backend.name == "tensorflow" else None
ops: Any = tf if KERAS_MAJOR == 2 else keras.ops
find_max = tf.reduce_max if KERAS_MAJOR == 2 else keras.ops.max


def scenario(function: Callable[[DistributedContext, Path], Any]) -> Any:
    SCENARIOS[function.__name__] = function
    return function


def records(count: int = 64) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(count, 6)).astype("float32")
    return x, (x[:, :1] - 0.5 * x[:, 1:2] + 0.1).astype("float32")


def dense() -> Any:
    layers = [keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((6,)), *layers])


class Applies(keras.Model):  # type: ignore[misc]
    """Has a custom step that updates two groups of variables with separate calls."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = dense()
        self.second = keras.optimizers.SGD(0.05)

    def call(self, x: Any) -> Any:
        return self.parts(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.parts(x) - y) ** 2)
        variables = self.parts.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients[:2], variables[:2], strict=True))
        self.second.apply_gradients(zip(gradients[2:], variables[2:], strict=True))
        return {"loss": loss}

    def test_step(self, data: Any) -> Any:
        x, y = data
        return {"loss": tf.reduce_mean((self.parts(x) - y) ** 2)}


class Trial(TFKerasTrial):
    """Variants by attribute."""

    model: Callable[[], Any] = staticmethod(dense)
    options: Callable[[], dict[str, Any]] = staticmethod(dict)
    training: Callable[[Any], Any] = staticmethod(lambda context: records())
    validation: Callable[[Any], Any] = staticmethod(lambda context: records(21))
    callbacks: Callable[[Any], list[Any]] = staticmethod(lambda context: [])

    def __init__(self, context: Any) -> None:
        self.context = context

    def build_model(self) -> Any:
        model = self.context.wrap_model(type(self).model())
        options: dict[str, Any] = {"optimizer": keras.optimizers.SGD(0.05), "loss": "mse"}
        model.compile(**{**options, **type(self).options()})
        return model

    def build_training_data_loader(self) -> Any:
        return type(self).training(self.context)

    def build_validation_data_loader(self) -> Any:
        return type(self).validation(self.context)

    def keras_callbacks(self) -> list[Any]:
        return type(self).callbacks(self.context)


def make(
    distributed: DistributedContext,
    folder: Path,
    *,
    context: dict[str, Any] | None = None,
    **kind: Any,
) -> KerasController:
    seed_everything()
    trial_context = make_context(folder, distributed=distributed, **(context or {}))
    changes = {name: staticmethod(value) for name, value in kind.items()}
    return KerasController(type("T", (Trial,), changes)(trial_context), trial_context)


def train(
    distributed: DistributedContext, folder: Path, *, until: int = 12, **kind: Any
) -> tuple[KerasController, FakeClock]:
    controller = make(distributed, folder, **kind)
    clock = FakeClock(controller, until=until, unit=4, context=controller._context)
    controller.run(clock)
    controller.close()
    return controller, clock


def weights(controller: KerasController) -> list[np.ndarray]:
    return [np.array(value) for value in controller._model.get_weights()]


def embedding() -> Any:
    layers = [keras.layers.Embedding(9, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((3,)), *layers])


def scaled(optimizer: Any) -> Any:
    return keras.mixed_precision.LossScaleOptimizer(optimizer)


def words() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    return rng.integers(0, 9, size=(64, 3)), rng.normal(size=(64, 1)).astype("float32")


# One variant of each branch: a plain step, slots, norms over all gradients, sparse gradients, and
# Keras 2's older optimizers.
IN_EVERY_RUN = ("sgd", "adam", "clipped", "embedding", "legacy")


def kinds() -> dict[str, dict[str, Any]]:
    """Return the ways in which gradients reach an optimizer."""
    new = keras.optimizers
    kinds_by_name: dict[str, dict[str, Any]] = {
        "sgd": {},
        "adam": {"options": lambda: {"optimizer": new.Adam(0.01)}},
        "clipped": {"options": lambda: {"optimizer": new.SGD(0.1, global_clipnorm=0.3)}},
        "scaled": {"options": lambda: {"optimizer": scaled(new.SGD(0.05))}},
        "momentum": {"options": lambda: {"optimizer": new.SGD(0.02, momentum=0.9)}},
        "embedding": {"model": embedding, "training": lambda context: words()},
        "hooks": {"callbacks": lambda context: [BatchHook()]},
    }
    if backend.name != "jax":
        kinds_by_name["eager"] = {"options": lambda: {"run_eagerly": True}}
    if tf is not None:
        kinds_by_name["applies"] = {"model": Applies}
    if legacy is not None and KERAS_MAJOR == 2:
        kinds_by_name["legacy"] = {"options": lambda: {"optimizer": legacy.Adam(0.01)}}
        kinds_by_name["legacy clipped"] = {
            "options": lambda: {"optimizer": legacy.SGD(0.1, clipnorm=0.2)}
        }
        kinds_by_name["legacy scaled"] = {
            "options": lambda: {"optimizer": scaled(legacy.SGD(0.05))}
        }
    return kinds_by_name


class BatchHook(keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pass


@scenario
def gradients(distributed: DistributedContext, folder: Path) -> Any:
    """Return final weights for the variants of every test run."""
    return _final_weights(distributed, folder, [name for name in IN_EVERY_RUN if name in kinds()])


@scenario
def more_gradients(distributed: DistributedContext, folder: Path) -> Any:
    """Return final weights for the remaining variants."""
    return _final_weights(
        distributed, folder, [name for name in kinds() if name not in IN_EVERY_RUN]
    )


def _final_weights(
    distributed: DistributedContext, folder: Path, names: Sequence[str]
) -> dict[str, list[np.ndarray]]:
    return {name: weights(train(distributed, folder, **kinds()[name])[0]) for name in names}


@scenario
def aggregated(distributed: DistributedContext, folder: Path) -> Any:
    """Return final weights with gradients summed over two batches, and with double batches."""
    results = {}
    for name in ("adam", "scaled", "applies", "legacy scaled", "eager"):
        if name not in kinds():
            continue
        kind = {**kinds()[name], "training": lambda context: records()}
        two = {"config": {"optimizations": {"aggregation_frequency": 2}}}
        large = {"batch_size": 16}
        a, _ = train(distributed, folder, until=12, context=two, **kind)
        b, _ = train(distributed, folder, until=6, context=large, **kind)
        results[name] = (weights(a), weights(b))
    sums = {"aggregation_frequency": 2, "average_aggregated_gradients": False}
    half = {"options": lambda: {"optimizer": keras.optimizers.SGD(0.025)}}
    a, _ = train(distributed, folder, context={"config": {"optimizations": sums}}, **half)
    b, _ = train(distributed, folder, until=6, context={"batch_size": 16})
    results["not averaged"] = (weights(a), weights(b))
    return results


class Largest(keras.metrics.Metric):  # type: ignore[misc]
    """A metric that is not a sum, but can be merged."""

    def __init__(self, name: str = "largest", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.value = self.add_weight(name="value", shape=(), initializer="zeros")

    def update_state(self, y: Any, prediction: Any, sample_weight: Any = None) -> None:
        self.value.assign(ops.maximum(self.value + 0.0, find_max(y)))

    def result(self) -> Any:
        return self.value + 0.0

    def merge_state(self, metrics: Any) -> None:
        for metric in metrics:
            self.value.assign(ops.maximum(self.value + 0.0, metric.value + 0.0))


class Smallest(keras.metrics.Metric):  # type: ignore[misc]
    """A metric that declares that its variable is not a sum."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(name="smallest", **kwargs)
        if KERAS_MAJOR == 3:
            self.value = self.add_variable((), "zeros", aggregation="mean", name="value")
        else:
            mean = tf.VariableAggregation.MEAN
            self.value = self.add_weight("value", initializer="zeros", aggregation=mean)

    def update_state(self, y: Any, prediction: Any, sample_weight: Any = None) -> None:
        self.value.assign(tf.minimum(tf.convert_to_tensor(self.value), tf.reduce_min(y)))

    def result(self) -> Any:
        return tf.convert_to_tensor(self.value)


def judged() -> Any:
    inputs = keras.Input((6,))
    return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(inputs))


def labelled(count: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = records(count)
    return x, (y > 0).astype("float32")


def all_metrics() -> dict[str, Any]:
    kinds = keras.metrics
    return {
        "loss": "binary_crossentropy",
        "metrics": [
            kinds.BinaryAccuracy(name="accuracy"),
            kinds.AUC(name="auc"),
            kinds.Precision(name="precision"),
            kinds.RootMeanSquaredError(name="rmse"),
            Largest(),
        ],
    }


@scenario
def validation(distributed: DistributedContext, folder: Path) -> Any:
    """Return metrics of a validation, for record counts that split unevenly."""
    results = {}
    cases = [("arrays", 1), ("arrays", 3), ("tf.data", 2), ("sequence", 4)]
    cases += [(kind, 21) for kind in VALIDATION]
    for kind, count in cases if tf else [case for case in cases if case[0] != "tf.data"]:
        controller = make(
            distributed,
            folder,
            model=judged,
            options=all_metrics,
            training=lambda context: labelled(64),
            validation=lambda context, k=kind, n=count: VALIDATION[k](context, *labelled(n)),
            context={"batch_size": 12},
        )
        result = controller.validate()
        controller.close()
        results[kind, count] = (dict(result.metrics), result.n_records)
    return results


def masked() -> Any:
    inputs = keras.Input((3, 2))
    hidden = keras.layers.GRU(4, return_sequences=True)(keras.layers.Masking()(inputs))
    parts = [keras.layers.Dense(1, name=name)(hidden) for name in ("one", "two")]
    return keras.Model(inputs, parts)


@scenario
def batch_means(distributed: DistributedContext, folder: Path) -> Any:
    """Return losses that depend on the batches, and the losses of plain Keras."""
    x, y = records(50)
    x = x.reshape(-1, 3, 2)
    x[np.arange(50) % 4 == 0, 1:] = 0.0
    y = np.repeat(y[:, None, None], 3, axis=1)
    controller = make(
        distributed,
        folder,
        model=masked,
        options=lambda: {"loss": ["mse", "mae"]},
        training=lambda context: (x, (y, y)),
        validation=lambda context: (x, (y, y)),
        context={"batch_size": 12},
    )
    metrics = dict(controller.validate().metrics)
    size = controller._context.get_per_slot_batch_size()
    expected = controller._model.evaluate(x, (y, y), size, verbose=0, return_dict=True)
    controller.close()
    return metrics, {f"val_{name}": value for name, value in expected.items()}


class Items(getattr(keras.utils, "PyDataset", keras.utils.Sequence)):  # type: ignore[misc]
    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        if hasattr(keras.utils, "PyDataset"):
            super().__init__()
        self.x, self.y = x, y

    def __len__(self) -> int:
        return -(-len(self.x) // 3)

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * 3, index * 3 + 3)
        return self.x[rows], self.y[rows]


def _dataset(context: Any, x: np.ndarray, y: np.ndarray) -> Any:
    dataset = context.wrap_dataset(tf.data.Dataset.from_tensor_slices((x, y)))
    return dataset.batch(context.get_per_slot_batch_size())


VALIDATION: dict[str, Callable[..., Any]] = {
    "arrays": lambda context, x, y: (x, y),
    "weighted": lambda context, x, y: (x, y, np.linspace(0.5, 2, len(y), dtype="float32")),
    "tf.data": _dataset,
    "sequence": lambda context, x, y: Items(x, y),
}


@scenario
def refused_metric(distributed: DistributedContext, folder: Path) -> Any:
    """Return the error for a metric that cannot be merged."""
    options = lambda: {"metrics": [Smallest()]}  # noqa: E731
    controller = make(distributed, folder, options=options)
    try:
        return dict(controller.validate().metrics)
    except DetcoreError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        controller.close()


class Plain(keras.Model):  # type: ignore[misc]
    """The test step returns a metric under another name, and a number without a metric."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = dense()
        self.tracker = keras.metrics.Mean(name="tracker")

    def call(self, x: Any) -> Any:
        return self.parts(x)

    def test_step(self, data: Any) -> Any:
        x, y = data
        self.tracker.update_state((self(x) - y) ** 2)
        return {"error": self.tracker.result(), "first": tf.reduce_mean(x)}


@scenario
def plain_numbers(distributed: DistributedContext, folder: Path) -> Any:
    controller = make(distributed, folder, model=Plain, validation=lambda context: records(12))
    result = controller.validate()
    controller.close()
    return dict(result.metrics), result.n_records


def normalized() -> Any:
    layers = [
        keras.layers.BatchNormalization(momentum=0.5),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(1),
    ]
    return keras.Sequential([keras.Input((6,)), *layers])


@scenario
def own_state(distributed: DistributedContext, folder: Path) -> Any:
    """Return layers' private weights before and after a validation, and seeds."""
    controller, _ = train(distributed, folder, model=normalized)
    before = weights(controller)
    metrics = dict(controller.validate().metrics)
    seeds = [backend.read_variable(v) for v in backend.list_generators(controller._model)]
    return before, weights(controller), metrics, seeds, float(np.random.random())


def _uneven(context: Any) -> Any:
    rank = context.distributed.rank
    data = tf.data.Dataset.from_tensor_slices(records(7 + 8 * rank))
    return context.wrap_dataset(data, shard_dataset=False).batch(4)


def _filtered(context: Any) -> Any:
    data = tf.data.Dataset.from_tensor_slices(records(50)).filter(lambda x, y: x[0] > 0)
    return context.wrap_dataset(data).batch(4)


@scenario
def uneven_data(distributed: DistributedContext, folder: Path) -> Any:
    """Return steps per epoch and trained records when workers have different amounts of data."""
    results = {}
    sharded = lambda context: _dataset(context, *records(21))  # noqa: E731
    items = lambda context: Items(*records(21))  # noqa: E731
    arrays = lambda context: records(21)  # noqa: E731
    for name, data in {
        "own": _uneven,
        "filtered": _filtered,
        "sharded": sharded,
        "sequence": items,
        "arrays": arrays,
    }.items():
        controller, clock = train(distributed, folder, until=11, training=data)
        results[name] = (controller.batches_per_epoch(), clock.records, weights(controller))
    return results


@scenario
def chief_only_callbacks(distributed: DistributedContext, folder: Path) -> Any:
    """Train with a batch-level hook on the chief, a file writer, and a metrics recorder."""
    epoch_logs: list[Any] = []

    class Watch(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            epoch_logs.append(dict(logs or {}))

    def callbacks(context: Any) -> list[Any]:
        hooks = [BatchHook()] if context.distributed.rank == 0 else []
        log = keras.callbacks.CSVLogger(str(folder / f"log-{context.distributed.rank}.csv"))
        return [*hooks, log, Watch()]

    controller, clock = train(distributed, folder, until=16, callbacks=callbacks)
    files = sorted(path.name for path in folder.glob("*.csv"))
    distributed.barrier()
    return epoch_logs, files, weights(controller), [m for _, m in clock.training]


@scenario
def forgotten_optimizer(distributed: DistributedContext, folder: Path) -> Any:
    """Return the error for gradients that are not averaged."""

    class Hidden(Applies):
        def __init__(self) -> None:
            super().__init__()
            self.second = None
            hidden = keras.optimizers.SGD(0.05)
            self.find = lambda: hidden

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.parts(x) - y) ** 2)
            variables = self.parts.trainable_variables
            gradients = tape.gradient(loss, variables)
            self.find().apply_gradients(zip(gradients, variables, strict=True))
            return {"loss": loss}

    controller, _ = train(distributed, folder, model=Hidden)
    target = folder / f"saved-{distributed.rank}"
    target.mkdir()
    try:
        controller.save(target)
    except DetcoreError as error:
        return f"{type(error).__name__}: {error}"
    return "saved"


ADDS_UP: dict[str, Any] = {"config": {"optimizations": {"aggregation_frequency": 2}}} if tf else {}


@scenario
def saved_halfway(distributed: DistributedContext, folder: Path) -> Any:
    """Save a checkpoint after 5 batches, on TensorFlow between two updates of the weights."""
    controller = make(distributed, folder, context=ADDS_UP, **kinds()["adam"])
    controller.run(FakeClock(controller, until=5, unit=4, context=controller._context))
    target = folder / "halfway"
    rank = distributed.rank
    worker_dir = target / "workers" / str(rank) if rank else target
    worker_dir.mkdir(parents=True, exist_ok=True)
    controller.save(worker_dir)
    controller.close()
    (target / "clock.json").write_text(json.dumps({"workers": distributed.size}))
    distributed.barrier()
    return sorted(path.name for path in worker_dir.iterdir() if path.is_file())


@scenario
def resume_halfway(distributed: DistributedContext, folder: Path) -> Any:
    """Train to batch 12, from the checkpoint if it exists."""
    begin = 5 if (folder / "halfway").exists() else 0
    options = {**ADDS_UP, "steps_completed": begin}
    controller = make(distributed, folder, context=options, **kinds()["adam"])
    if begin:
        controller.restore(folder / "halfway")
    clock = FakeClock(controller, until=12, unit=4, start=begin, context=controller._context)
    controller.run(clock)
    controller.close()
    return weights(controller), sum(n or 0 for n in clock.records)


@scenario
def compressed(distributed: DistributedContext, folder: Path) -> Any:
    config = {"optimizations": {"gradient_compression": True}}
    return weights(train(distributed, folder, context={"config": config})[0])


@scenario
def bad_data(distributed: DistributedContext, folder: Path) -> Any:
    """Return the errors for data that cannot be shared."""
    messages = []
    for data in (
        lambda context: records(30 + context.distributed.rank),
        lambda context: records(4),
    ):
        try:
            make(distributed, folder, training=data).close()
        except DetcoreError as error:
            messages.append(f"{type(error).__name__}: {error}")
        distributed.barrier()
    return messages


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    with DistributedContext.from_env() as distributed:
        prepare_worker(
            PrepareOptions(
                seed=11,
                rank=distributed.rank,
                world_size=distributed.size,
                local_rank=distributed.local_rank,
                local_world_size=distributed.local_size,
            )
        )
        for name in names:
            result = SCENARIOS[name](distributed, folder)
            (folder / f"{name}-{distributed.rank}.pkl").write_bytes(pickle.dumps(result))
        distributed.barrier()


if __name__ == "__main__":
    main()
