"""A clock, a context and a trial for tests of the controller, and functions that run it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import detcore_estimator
from detcore.core import DistributedContext
from detcore.trial import TrialSetup
from detcore.types import GradientSettings, TrialInfo, TrialSettings
from detcore_estimator.estimator_context import EstimatorTrialContext
from detcore_estimator.estimator_controller import EstimatorController
from detcore_estimator.tensorflow_versions import tf, tf1

SEED = 11
FEATURES = np.random.RandomState(0).normal(size=(50, 4)).astype(np.float32)
LABELS = (FEATURES.sum(axis=1) > 0).astype(np.int64)


class FakeClock:
    """A clock with fixed periods that records the controller's reports.

    Args:
        controller: The controller to train.
        until: The last batch of training.
        unit: Number of batches between reports.
        validate_every, save_every: Number of batches; 0 = never.
        directory: Parent directory of the checkpoints, which are named after their batches.
        start: Batch of the restored checkpoint.
        stop_at: Batch before `until` at which the clock stops; 0 = it runs until `until`.
    """

    def __init__(
        self,
        controller: EstimatorController,
        *,
        until: int,
        unit: int = 5,
        validate_every: int = 0,
        save_every: int = 0,
        directory: Path | None = None,
        start: int = 0,
        stop_at: int = 0,
    ) -> None:
        self.controller, self.context = controller, controller._context
        self.context.planned_batches = until
        self.unit = unit
        self.validate_every, self.save_every = validate_every, save_every
        self.directory = directory
        self.steps_completed = start
        self.batches_per_epoch = 0
        self.stop_at = stop_at or until
        self.training: list[tuple[int, dict[str, float]]] = []
        self.batches: list[Mapping[str, float]] = []
        self.validations: list[tuple[int, dict[str, float]]] = []
        self.records: list[int | None] = []
        self.validated_records: list[int | None] = []
        self.next_boundary = self._next(start)

    @property
    def interrupt_requested(self) -> bool:
        return self.context.get_stop_requested()

    def boundary(
        self,
        steps_completed: int,
        training_metrics: Mapping[str, float],
        batch_metrics: Sequence[Mapping[str, float]] | None = None,
        *,
        n_records: int | None = None,
    ) -> bool:
        now = self.steps_completed = steps_completed
        assert now <= self.next_boundary
        self.training.append((now, dict(training_metrics)))
        self.batches.extend(batch_metrics or ())
        self.records.append(n_records)
        is_end = now >= self.stop_at or self.interrupt_requested
        if self.directory is not None and (is_end or _is_due(now, self.save_every)):
            self.save(self.directory / str(now))
        if _is_due(now, self.validate_every):
            result = self.controller.validate()
            self.validations.append((now, dict(result.metrics)))
            self.validated_records.append(result.n_records)
        self.next_boundary = self._next(now)
        return not is_end

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.controller.save(folder)

    def _next(self, now: int) -> int:
        return min(self.stop_at, (now // self.unit + 1) * self.unit)


def gradient_settings(**changes: Any) -> TrialSettings:
    """Return the settings of a trial with changed gradient aggregation."""
    return TrialSettings(gradients=GradientSettings(**changes))


def make_context(tmp_path: Path, **changes: Any) -> EstimatorTrialContext:
    """Create the context of a trial in a run, with changes to its setup."""
    shared: dict[str, Any] = {"config": {}, "hparams": {"global_batch_size": 10}}
    info = TrialInfo(
        experiment_id=1,
        trial_id=2,
        run_id=1,
        trial_seed=SEED,
        model_dir=str(tmp_path),
        trial_dir=str(tmp_path / "trial"),
        **shared,
    )
    setup = TrialSetup(
        seed=SEED,
        distributed=DistributedContext(),
        info=info,
        tensorboard_path=tmp_path / "tensorboard",
        cache_dir=tmp_path / "cache",
        **shared,
    )
    return EstimatorTrialContext(dataclasses.replace(setup, **changes))


@contextlib.contextmanager
def open_controller(
    trial_class: Any, tmp_path: Path, **changes: Any
) -> Iterator[EstimatorController]:
    """Yield the controller of a new trial, and close it. See `make_context`."""
    context = make_context(tmp_path, **changes)
    with contextlib.closing(EstimatorController(trial_class(context), context)) as controller:
        yield controller


def train(
    trial_class: Any,
    tmp_path: Path,
    directory: Path | None = None,
    *,
    resume: int = 0,
    clock: type[FakeClock] = FakeClock,
    **settings: Any,
) -> FakeClock:
    """Train a trial, optionally from a checkpoint. `settings` are arguments of the clock."""
    with open_controller(trial_class, tmp_path) as controller:
        if resume:
            assert directory is not None
            controller.restore(directory / str(resume))
        fake_clock = clock(controller, directory=directory, start=resume, **settings)
        controller.run(fake_clock)
    return fake_clock


class Classifier(detcore_estimator.EstimatorTrial):
    """A classifier of two classes with dropout, Adam, a moving average and shuffled data."""

    hooks: Sequence[Any] = ()
    listeners: Sequence[Any] = ()
    eval_hooks: Sequence[Any] = ()
    exporters: Any = None
    eval_steps: int | None = None

    def change(self, spec: Any, mode: str) -> dict[str, Any]:
        """Return the parts of the spec that a subclass replaces."""
        return {}

    def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
        spec = self.make_spec(features, labels, mode)
        return spec._replace(**self.change(spec, mode))

    def make_spec(self, features: Any, labels: Any, mode: str) -> Any:
        hidden = tf.nn.relu(dense(features, 8, "hidden"))
        if mode == "train":
            hidden = tf.nn.dropout(hidden, rate=0.3)
        logits = dense(hidden, 2, "logits")
        predictions = {"class": tf.argmax(logits, axis=1), "logits": logits}
        if mode == "infer":
            return detcore_estimator.EstimatorSpec(mode, predictions=predictions)
        loss = tf1.losses.sparse_softmax_cross_entropy(labels, logits)
        if mode == "eval":
            accuracy = tf1.metrics.accuracy(labels, predictions["class"])
            return detcore_estimator.EstimatorSpec(
                mode, loss=loss, eval_metric_ops={"accuracy": accuracy, **self.more_metrics(logits)}
            )
        optimizer = self.context.wrap_optimizer(tf1.train.AdamOptimizer(0.01))
        train_op = optimizer.minimize(loss, global_step=tf1.train.get_global_step())
        return detcore_estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def more_metrics(self, logits: Any) -> dict[str, Any]:
        return {}

    def records(self, count: int = 50) -> Any:
        return tf.data.Dataset.from_tensor_slices((FEATURES[:count], LABELS[:count]))

    def pipeline(self, dataset: Any) -> Any:
        return dataset.shuffle(50, seed=3).batch(8)

    def train_data(self) -> Any:
        return self.pipeline(self.context.wrap_dataset(self.records()))

    def validation_data(self) -> Any:
        return self.context.wrap_dataset(self.records(20)).batch(8)

    def build_estimator(self) -> Any:
        return detcore_estimator.Estimator(self.model_fn)

    def build_train_spec(self) -> Any:
        return detcore_estimator.TrainSpec(
            self.train_data, hooks=self.hooks, saving_listeners=self.listeners
        )

    def build_validation_spec(self) -> Any:
        return detcore_estimator.EvalSpec(
            self.validation_data,
            steps=self.eval_steps,
            hooks=self.eval_hooks,
            exporters=self.exporters,
        )


def raw_input(factor: int = 1) -> Any:
    """Return a serving input receiver whose features are multiplied by a factor."""
    features = tf1.placeholder(tf.float32, [None, 4])
    return detcore_estimator.export.TensorServingInputReceiver(features * factor, {"x": features})


def dense(inputs: Any, units: int, name: str) -> Any:
    """Build a fully connected layer of TensorFlow 1, without Keras."""
    with tf1.variable_scope(name):
        kernel = tf1.get_variable("kernel", [inputs.shape[-1], units])
        bias = tf1.get_variable("bias", [units], initializer=tf1.zeros_initializer())
    return tf.matmul(inputs, kernel) + bias


def variables_in(folder: Path) -> dict[str, np.ndarray]:
    """Return all variables of a checkpoint by name: weights, slots, averages, global step."""
    (index,) = folder.glob("model.ckpt-*.index")
    reader = tf.train.load_checkpoint(str(index.with_suffix("")))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Check that two checkpoints have bit-identical variables."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name, strict=True)


def _is_due(batch: int, period: int) -> bool:
    return period > 0 and batch % period == 0
