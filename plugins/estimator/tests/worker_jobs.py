"""Run many checks in several worker processes, with one start of TensorFlow.

``python worker_jobs.py RESULTS FOLDER``, started by ``detcore launch --launcher horovod``. Each
check is a function ``check_*(workers, folder)``. Rank 0 writes the problems of all ranks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import itertools
import json
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_fakes import FakeClock, assert_same, gradient_settings, make_context

import detcore_estimator
from detcore.distributed import DistributedContext
from detcore.errors import DetcoreError
from detcore.metrics import AUROC
from detcore.trial import PrepareOptions
from detcore_estimator.estimator_context import EstimatorTrialContext
from detcore_estimator.estimator_controller import EstimatorController
from detcore_estimator.tensorflow_versions import tf, tf1
from detcore_estimator.worker_setup import prepare_worker

SEED = 7
RNG = np.random.default_rng(4)
X = RNG.normal(size=(96, 3)).astype("float32")
Y = (X @ np.array([1.0, -2.0, 0.5])).astype("float32")
WORDS = RNG.integers(0, 5, size=96).astype("int64")


@dataclasses.dataclass
class Workers:
    """The workers of this job, with contexts for training on all workers or alone."""

    distributed: DistributedContext
    tmp_path: Path

    @property
    def rank(self) -> int:
        return self.distributed.rank

    @property
    def size(self) -> int:
        return self.distributed.size

    def context(self, *, alone: bool = False, **optimizations: Any) -> EstimatorTrialContext:
        return make_context(
            self.tmp_path / str(self.rank),
            settings=gradient_settings(**optimizations),
            distributed=DistributedContext() if alone else self.distributed,
        )


class WorkersClock(FakeClock):
    """A clock with the checkpoint layout of a trial on several workers."""

    def save(self, folder: Path) -> None:
        distributed = self.context.distributed
        if distributed.rank == 0:
            super().save(folder)
            (folder / "clock.json").write_text(json.dumps({"workers": distributed.size}))
        distributed.barrier()
        if distributed.rank:
            super().save(folder / "workers" / str(distributed.rank))
        distributed.barrier()


def zeros(name: str, *shape: int, **settings: Any) -> Any:
    return tf1.get_variable(name, shape, initializer=tf1.zeros_initializer(), **settings)


class Linear(detcore_estimator.EstimatorTrial):
    """A regression whose variables start at zero, to compare only the training.

    Attributes:
        train_op: Creates the training operation from `wrap_optimizer` and the loss.
        batch: Number of records in a worker's batch.
        settings: Other values of the attributes.
    """

    train_op: Callable[[Any, Any], Any]
    batch = 2
    num_records = 96
    has_embedding = False
    metrics: Callable[[Any, Any, Any], Mapping[str, Any]] | None = None
    dropout = 0.0
    is_shuffled = False
    is_length_known = True
    eval_batch: int | None = None
    num_eval_records = 96
    hooks: Any = ()

    def __init__(self, context: Any, **settings: Any) -> None:
        super().__init__(context)
        vars(self).update({"train_op": sgd, **settings})

    def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
        kernel, bias = zeros("kernel", 3), zeros("bias")
        moving = zeros("moving", 3, trainable=False)
        x = features["x"]
        if mode == "train":
            if self.dropout:
                x = tf.nn.dropout(x, rate=self.dropout)
            mean = tf.reduce_mean(features["x"], axis=0)
            tf1.add_to_collection(
                tf1.GraphKeys.UPDATE_OPS, tf1.assign_sub(moving, 0.25 * (moving - mean))
            )
        predictions = tf.linalg.matvec(x, kernel) + bias
        if self.has_embedding:
            predictions += tf.nn.embedding_lookup(zeros("table", 5, 1), features["word"])[:, 0]
        loss = tf.reduce_mean(tf.square(predictions - labels))
        loss += 0.01 * tf.reduce_sum(tf.square(bias - 1.0))
        if mode == "eval":
            more = self.metrics(self.context, labels, predictions) if self.metrics else {}
            moved = tf1.metrics.mean(tf.reduce_sum(x - moving, axis=1))
            return detcore_estimator.EstimatorSpec(
                mode, loss=loss, eval_metric_ops={**more, "moved": moved}
            )
        with tf1.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
            train_op = self.train_op(self.context.wrap_optimizer, loss)
        tf1.summary.scalar("records", tf.cast(tf.shape(labels)[0], tf.float32))
        return detcore_estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def data(self, count: int, batch: int, *, train: bool) -> Any:
        x = {"x": X[:count], "word": WORDS[:count]}
        dataset = tf.data.Dataset.from_tensor_slices((x, Y[:count]))
        dataset = self.context.wrap_dataset(dataset)
        if train and self.is_shuffled:
            dataset = dataset.shuffle(50, seed=2)
        if train and not self.is_length_known:
            dataset = dataset.filter(lambda *_: True)
        return dataset.batch(batch)

    def build_estimator(self) -> Any:
        return detcore_estimator.Estimator(self.model_fn)

    def build_train_spec(self) -> Any:
        return detcore_estimator.TrainSpec(
            lambda: self.data(self.num_records, self.batch, train=True), hooks=self.hooks
        )

    def build_validation_spec(self) -> Any:
        return detcore_estimator.EvalSpec(
            lambda: self.data(self.num_eval_records, self.eval_batch or self.batch, train=False),
            steps=None,
        )


@dataclasses.dataclass
class Trained:
    """The result of a training."""

    variables: dict[str, np.ndarray]
    local: dict[str, np.ndarray]
    clock: WorkersClock


def train(
    context: EstimatorTrialContext,
    folder: Path | None = None,
    *,
    until: int,
    resume: int = 0,
    clock: Mapping[str, Any] | None = None,
    **trial: Any,
) -> Trained:
    """Train to a batch, with checkpoints in a directory, optionally from a checkpoint."""
    with contextlib.closing(EstimatorController(Linear(context, **trial), context)) as controller:
        controller.batches_per_epoch()
        if resume:
            assert folder is not None
            controller.restore(folder / str(resume))
        ticking = WorkersClock(
            controller, until=until, directory=folder, start=resume, **(clock or {})
        )
        local: dict[str, np.ndarray] = {}
        controller.run(ticking)
        training = controller._training
        assert training is not None
        graph = training.session.graph
        for name, key in (("", tf1.GraphKeys.GLOBAL_VARIABLES), ("local/", "local_variables")):
            for variable in graph.get_collection(key):
                local[name + variable.op.name] = training.session.run(variable)
    variables = context.distributed.broadcast(local)
    return Trained(variables, local, ticking)


def open_controller(workers: Workers, **trial: Any) -> contextlib.closing[EstimatorController]:
    context = workers.context()
    return contextlib.closing(EstimatorController(Linear(context, **trial), context))


def minimize(optimizer: Any, loss: Any) -> Any:
    return optimizer.minimize(loss, global_step=tf1.train.get_global_step())


def gradients_of(loss: Any) -> list[Any]:
    variables = tf1.trainable_variables()
    return list(zip(tf1.gradients(loss, variables), variables, strict=True))


def sgd(wrap: Any, loss: Any) -> Any:
    return minimize(wrap(tf1.train.GradientDescentOptimizer(0.1)), loss)


def adam(wrap: Any, loss: Any) -> Any:
    return minimize(wrap(tf1.train.AdamOptimizer(0.1)), loss)


def clipped(wrap: Any, loss: Any) -> Any:
    optimizer = wrap(tf1.train.MomentumOptimizer(0.1, 0.9))
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
    pairs = zip(gradients, variables, strict=True)
    return optimizer.apply_gradients(pairs, global_step=tf1.train.get_global_step())


def own_gradients(wrap: Any, loss: Any) -> Any:
    optimizer = wrap(tf1.train.GradientDescentOptimizer(0.1))
    return optimizer.apply_gradients(gradients_of(loss), tf1.train.get_global_step())


def legacy_updates(wrap: Any, loss: Any) -> Any:
    optimizer = wrap(tf.keras.optimizers.legacy.Adam(0.1))
    optimizer.iterations = tf1.train.get_or_create_global_step()
    return tf.group(*optimizer.get_updates(loss, tf1.trainable_variables()))


def legacy_minimize(wrap: Any, loss: Any) -> Any:
    optimizer = wrap(tf.keras.optimizers.legacy.SGD(0.1, clipnorm=0.5))
    optimizer.iterations = tf1.train.get_or_create_global_step()
    return optimizer.apply_gradients(gradients_of(loss))


def new_keras(wrap: Any, loss: Any) -> Any:
    train = wrap(tf.keras.optimizers.Adam(0.1)).apply_gradients(gradients_of(loss))
    step = tf1.train.get_global_step()
    with tf1.control_dependencies([train]):
        return tf1.assign_add(step, 1).op


def made_later(wrap: Any, loss: Any) -> Any:
    return minimize(wrap(lambda: tf1.train.GradientDescentOptimizer(0.1))(), loss)


IS_KERAS_2 = importlib.metadata.version("keras").startswith("2.")
OPTIMIZERS = (sgd, adam, clipped, own_gradients, made_later)
if IS_KERAS_2:
    OPTIMIZERS = (*OPTIMIZERS, legacy_updates, legacy_minimize, new_keras)


def assert_close(
    one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], *, within: float = 0.0
) -> None:
    """Assert that all variables are equal, except those that depend on a worker's batches."""
    names, other_names = (
        {n for n in values if "moving" not in n and not n.startswith("local/")}
        for values in (one, other)
    )
    assert names == other_names
    for name in sorted(names):
        np.testing.assert_allclose(one[name], other[name], rtol=0, atol=within, err_msg=name)


def check_equals_one_worker(workers: Workers, folder: Path) -> None:
    """N workers with one batch each are equal to one worker with all batches."""
    for make, has_embedding in itertools.product(OPTIMIZERS, (False, True)):
        setting = {"train_op": make, "has_embedding": has_embedding, "until": 6}
        together = train(workers.context(), batch=4, **setting)
        alone = train(workers.context(alone=True), batch=4 * workers.size, **setting)
        try:
            assert np.all(alone.local["kernel"] != 0)
            assert_close(together.local, alone.local, within=1e-6)
            assert_close(together.local, together.variables)
        except AssertionError as error:
            raise AssertionError(f"{make.__name__} embedding={has_embedding}") from error


def check_adding_up(workers: Workers, folder: Path) -> None:
    """The gradients of k batches are one update, and the global step counts batches."""
    counts = {"global_step", "Adam/iterations", "iterations", "Adam/iter"}

    def state(trained: Trained) -> dict[str, np.ndarray]:
        return {k: v for k, v in trained.local.items() if k.split(":")[0] not in counts}

    for make, has_embedding in itertools.product(OPTIMIZERS, (False, True)):
        if has_embedding and make is clipped:
            # TensorFlow's norm counts repeated rows separately, but summed gradients merge them.
            continue
        setting = {"train_op": make, "has_embedding": has_embedding}
        batch = 2 * workers.size
        large = train(workers.context(alone=True), until=2, batch=3 * batch, **setting)
        small = train(workers.context(aggregation_frequency=3), until=6, batch=2, **setting)
        context = workers.context(alone=True, aggregation_frequency=3)
        one = train(context, until=6, batch=batch, **setting)
        try:
            for added in (small, one):
                assert added.local["global_step"] == 6
                # Keras's Adam corrects by its iterations, which count batches.
                if "legacy" not in make.__name__ and make is not new_keras:
                    assert_close(state(added), state(large), within=1e-6)
            assert_close(small.local, small.variables)
        except AssertionError as error:
            raise AssertionError(f"{make.__name__} embedding={has_embedding}") from error


def check_sums_of_gradients(workers: Workers, folder: Path) -> None:
    """With average_aggregated_gradients: false, the update is multiplied."""
    sums, means = (
        train(
            workers.context(aggregation_frequency=2, average_aggregated_gradients=is_mean), until=2
        )
        for is_mean in (False, True)
    )
    np.testing.assert_allclose(sums.local["kernel"], 2 * means.local["kernel"], rtol=1e-6, atol=0)


def check_compression(workers: Workers, folder: Path) -> None:
    """Gradients are sent in half precision, so results are close but not equal."""
    setting = {"until": 6, "batch": 4, "has_embedding": True}
    halves = train(workers.context(gradient_compression=True), **setting)
    full = train(workers.context(), **setting)
    assert_close(halves.local, full.local, within=5e-3)
    assert np.any(halves.local["kernel"] != full.local["kernel"])
    assert_close(halves.local, halves.variables)


def check_uneven_shards(workers: Workers, folder: Path) -> None:
    """Workers with smaller shards begin their next pass earlier. All records are counted."""
    num_records = 2 * workers.size + 3
    shard = len(range(workers.rank, num_records, workers.size))
    batches = [min(2, shard - start) for start in range(0, shard, 2)]
    expected = [batches[i % len(batches)] for i in range(11)]
    for is_length_known in (True, False):
        trained = train(
            workers.context(),
            until=11,
            num_records=num_records,
            is_length_known=is_length_known,
            clock={"unit": 4},
        )
        assert [batch["records"] for batch in trained.clock.batches] == expected
        assert trained.clock.records == [sum(expected[:4]), sum(expected[4:8]), sum(expected[8:])]
        assert_close(trained.local, trained.variables)


def check_epoch_is_agreed(workers: Workers, folder: Path) -> None:
    """All workers report the longest pass. An empty shard is an error on all workers."""
    with open_controller(workers, batch=1, num_records=2 * workers.size + 1) as controller:
        assert controller.batches_per_epoch() == 3
    if workers.size > 1:
        with (
            open_controller(workers, batch=1, num_records=workers.size - 1) as controller,
            pytest.raises(DetcoreError, match=rf"(?s)1 of.*Rank {workers.size - 1} reports"),
        ):
            controller.batches_per_epoch()


def check_unwrapped_optimizer(workers: Workers, folder: Path) -> None:
    """An unwrapped optimizer is an error before the first step."""

    def one_of_two(wrap: Any, loss: Any) -> Any:
        kernel, bias = tf1.trainable_variables()
        first = wrap(tf1.train.GradientDescentOptimizer(0.1)).minimize(loss, var_list=[kernel])
        second = tf1.train.AdamOptimizer(0.1).minimize(loss, var_list=[bias])
        return tf.group(first, second)

    def keras(wrap: Any, loss: Any) -> Any:
        wrap(tf1.train.GradientDescentOptimizer(0.1))
        return legacy_updates(lambda optimizer: optimizer, loss)

    for make, names in ((one_of_two, "bias"), (keras, "kernel, bias")):
        with pytest.raises(DetcoreError, match=f"would have a different model.*: {names}[.]"):
            open_controller(workers, train_op=make)


def check_values_come_from_the_chief(workers: Workers, folder: Path) -> None:
    """All workers start with the chief's values, even if their hooks set other values."""

    class Disturbing(tf1.train.SessionRunHook):  # type: ignore[misc]
        def after_create_session(self, session: Any, coord: Any) -> None:
            (kernel,) = (v for v in tf1.trainable_variables() if v.op.name == "kernel")
            kernel.load(np.full(3, workers.rank + 1.0, "float32"), session)

    trained = train(workers.context(), until=1, hooks=[Disturbing()])
    assert_close(trained.local, trained.variables)
    assert abs(trained.local["kernel"][0] - 1.0) < 1.0


def check_dropout_differs(workers: Workers, folder: Path) -> None:
    """Each worker draws different numbers: its random operations have different keys."""
    with open_controller(workers, dropout=0.5) as controller:
        operations = controller._graph.graph.get_operations()
    (draw,) = (op for op in operations if op.type == "StatelessRandomUniform")
    key = int(tf.get_static_value(draw.inputs[1].op.inputs[0]))
    assert len(set(workers.distributed.allgather(key))) == workers.size


def check_exact_resume(workers: Workers, folder: Path) -> None:
    """Training resumes exactly in the middle of an epoch and of a gradient sum."""
    setting = {
        "train_op": adam,
        "batch": 3,
        "num_records": 41,
        "dropout": 0.3,
        "has_embedding": True,
        "is_shuffled": True,
        "eval_batch": 7,
    }
    for frequency in (1, 4):
        ticks = {"unit": 5, "validate_every": 5}
        target = folder / f"resumed-{frequency}"

        def run(target: Path, resume: int = 0, frequency: int = frequency, **clock: Any) -> Trained:
            context = workers.context(aggregation_frequency=frequency)
            return train(context, target, until=22, resume=resume, clock=clock, **setting)

        straight = run(folder / f"straight-{frequency}", **ticks, save_every=5)
        run(target, **ticks, stop_at=10)
        resumed = run(target, 10, **ticks)
        assert_same(resumed.local, straight.local)
        assert resumed.clock.batches == straight.clock.batches[10:]
        assert resumed.clock.validations == straight.clock.validations[2:]
        if frequency > 1:
            assert any("detcore_gradients/sum" in name for name in straight.local), straight.local
        if workers.size > 1:
            moving = workers.distributed.allgather(straight.local["moving"])
            assert any(np.any(value != moving[0]) for value in moving)
            directory = target / "10" / "workers" / "1"
            names = {path.name for path in directory.iterdir()}
            assert not any(name.startswith("model.ckpt") for name in names)
            assert "detcore-worker.ckpt.index" in names


def check_other_number_of_workers(workers: Workers, folder: Path) -> None:
    """One worker resumes a checkpoint of N workers, and N workers one of one worker."""
    alone = {"train_op": clipped, "batch": 2 * workers.size, "until": 12}
    together = {**alone, "batch": 2}
    straight = train(workers.context(alone=True), **alone)
    train(workers.context(), folder / "n", clock={"stop_at": 7}, **together)
    checkpoints = copy_checkpoints(folder / "n", folder / f"n-{workers.rank}")
    one = train(workers.context(alone=True), checkpoints, resume=7, **alone)
    assert_close(one.local, straight.local, within=1e-6)
    if workers.rank == 0:
        train(workers.context(alone=True), folder / "one", clock={"stop_at": 7}, **alone)
    workers.distributed.barrier()
    for is_length_known in (True, False):
        checkpoints = copy_checkpoints(folder / "one", folder / f"one-{is_length_known}", workers)
        setting = {**together, "is_length_known": is_length_known}
        many = train(workers.context(), checkpoints, resume=7, **setting)
        assert_close(many.local, straight.local, within=1e-6)


def copy_checkpoints(source: Path, target: Path, workers: Workers | None = None) -> Path:
    """Copy checkpoints, once for all workers that share them."""
    if workers is None or workers.rank == 0:
        shutil.copytree(source, target)
    if workers is not None:
        workers.distributed.barrier()
    return target


class LabelRange(detcore_estimator.MetricReducer):
    """The smallest and the largest label. Only the chief merges them."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def accumulate(self, metric: Any) -> Any:
        self.seen += [float(value) for value in metric["labels"]]
        return min(self.seen), max(self.seen), len(self.seen)

    def cross_slot_reduce(self, per_slot_metrics: Any) -> Any:
        lows, highs, counts = zip(*per_slot_metrics, strict=True)
        return np.array([min(lows), max(highs), sum(counts)])


def all_metrics(context: Any, labels: Any, predictions: Any) -> Mapping[str, Any]:
    is_high, looks_high = labels > 0, tf.sigmoid(predictions + 0.3 * labels)
    of_keras = {}
    if IS_KERAS_2:
        of_keras["keras_mean"] = tf.keras.metrics.MeanAbsoluteError()
        of_keras["keras_mean"].update_state(labels[:, tf.newaxis], predictions[:, tf.newaxis])
        of_keras["keras_auc"] = tf.keras.metrics.AUC(num_thresholds=20)
        of_keras["keras_auc"].update_state(is_high, looks_high)
    tables = (tf.cast(is_high, tf.int64), tf.cast(looks_high > 0.5, tf.int64))
    return {
        "accuracy": tf1.metrics.accuracy(*tables),
        "auc": tf1.metrics.auc(is_high, looks_high, num_thresholds=20),
        "precision": tf1.metrics.precision(*tables),
        "recall": tf1.metrics.recall(*tables),
        "rmse": tf1.metrics.root_mean_squared_error(labels, predictions),
        "iou": tf1.metrics.mean_iou(*tables, num_classes=2),
        "mean_tensor": tf1.metrics.mean(labels),
        **of_keras,
        "exact": context.make_metric([labels, predictions], ordered_mean, np.float64),
        "range": context.make_metric({"labels": labels}, LabelRange(), np.float64),
        "auroc": context.make_metric(
            {"labels": is_high, "predictions": labels * 0.5}, AUROC(), np.float64
        ),
    }


def ordered_mean(batches: Any) -> Any:
    labels = np.concatenate([labels for labels, _ in batches]).astype(np.float64)
    return np.sort(labels).sum() / len(labels)


def run_validation(context: Any, **trial: Any) -> Any:
    linear = Linear(context, **{"batch": 4, "metrics": all_metrics, **trial})
    with contextlib.closing(EstimatorController(linear, context)) as controller:
        return controller.validate()


def check_validation(workers: Workers, folder: Path) -> None:
    """Metrics over all workers equal those of one worker with the same data."""
    cases = [(96, 8), (29, 4), (workers.size + 1, 2), (1, 3)]
    for num_records, batch in cases:
        trial = {"num_eval_records": num_records, "eval_batch": batch}
        together = run_validation(workers.context(), **trial)
        alone = run_validation(workers.context(alone=True), **trial)
        assert together.n_records == alone.n_records == num_records
        assert together.metrics.keys() == alone.metrics.keys()
        for name, value in alone.metrics.items():
            is_exact = name.split("/")[0] in ("exact", "range", "auroc", "global_step")
            np.testing.assert_allclose(
                together.metrics[name],
                value,
                rtol=1e-12 if is_exact else 1e-6,
                atol=0 if is_exact else 1e-6,
                err_msg=f"{name} {num_records}",
            )
        everywhere = workers.distributed.allgather(together.metrics)
        assert all(metrics == together.metrics for metrics in everywhere) or num_records == 1


def check_no_validation_data(workers: Workers, folder: Path) -> None:
    """Without validation records, all workers raise an error."""
    with pytest.raises(DetcoreError, match="has no batch"):
        run_validation(workers.context(), num_eval_records=0)


def check_metrics_that_cannot_be_added(workers: Workers, folder: Path) -> None:
    """The mean of a maximum over workers is weighted by records."""

    def largest(context: Any, labels: Any, predictions: Any) -> Mapping[str, Any]:
        collections = [tf1.GraphKeys.LOCAL_VARIABLES, tf1.GraphKeys.METRIC_VARIABLES]
        variable = zeros("largest", trainable=False, collections=collections)
        update = variable.assign(tf.maximum(variable, tf.reduce_max(labels)))
        return {"largest": (variable.read_value(), update)}

    result = run_validation(workers.context(), metrics=largest, num_eval_records=29)
    shards = [Y[:29][rank :: workers.size] for rank in range(workers.size)]
    expected = sum(len(shard) * max(shard.max(), 0) for shard in shards) / 29
    np.testing.assert_allclose(result.metrics["largest"], expected, rtol=1e-6)


def main(results: Path, folder: Path, names: list[str]) -> None:
    distributed = DistributedContext.from_env()
    prepare_worker(
        PrepareOptions(
            seed=SEED,
            rank=distributed.rank,
            world_size=distributed.size,
            local_rank=distributed.local_rank,
            local_world_size=distributed.local_size,
        )
    )
    workers = Workers(distributed, folder)
    results_by_check: dict[str, str] = {}
    for name in names:
        place = folder / name
        if distributed.rank == 0:
            place.mkdir(parents=True)
        distributed.barrier()
        problem = ""
        try:
            globals()[name](workers, place)
        except Exception:  # noqa: BLE001  (reported to the test)
            problem = traceback.format_exc()
        problems = distributed.allgather(problem)
        results_by_check[name] = "\n".join(
            f"rank {r}: {text}" for r, text in enumerate(problems) if text
        )
        if results_by_check[name] and distributed.rank == 0:
            print(name, results_by_check[name], flush=True)
    if distributed.rank == 0:
        results.write_text(json.dumps(results_by_check), encoding="utf-8")
    distributed.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
