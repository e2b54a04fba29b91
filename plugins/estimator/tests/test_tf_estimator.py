"""Train estimators of ``tf.estimator`` (TensorFlow 2.15) as trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_fakes import (
    FEATURES,
    LABELS,
    assert_same,
    make_context,
    open_controller,
    train,
    variables_in,
)

import detcore_estimator
from detcore.errors import InvalidExperimentError
from detcore_estimator.tensorflow_versions import tf, tf1, tf_estimator

estimator: Any = tf_estimator()
# TensorFlow 2.16 and later have no tf.estimator.
pytestmark = [
    pytest.mark.skipif(estimator is None, reason="this TensorFlow has no tf.estimator"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

UNTIL = 23


class Premade(detcore_estimator.EstimatorTrial):
    """A DNNClassifier on feature columns, with dropout."""

    exporters: Any = None

    def columns(self) -> list[Any]:
        column = tf.feature_column
        buckets = column.bucketized_column(column.numeric_column("x0"), [-1.0, 0.0, 1.0])
        letters = column.categorical_column_with_vocabulary_list("letter", ["a", "b", "c"])
        return [
            *(column.numeric_column(f"x{index}") for index in range(4)),
            column.indicator_column(buckets),
            column.embedding_column(letters, 3),
        ]

    def build_estimator(self) -> Any:
        optimizer = self.context.wrap_optimizer(tf1.train.AdagradOptimizer(0.1))
        return tf1.estimator.DNNClassifier(
            [8, 4], self.columns(), optimizer=optimizer, dropout=0.2, batch_norm=True
        )

    def dataset(self, count: int) -> Any:
        letters = np.array(list("abcd"))[np.arange(count) % 4]
        features = {f"x{index}": FEATURES[:count, index] for index in range(4)}
        records = ({**features, "letter": letters}, LABELS[:count])
        return self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices(records))

    def build_train_spec(self) -> Any:
        return estimator.TrainSpec(lambda: self.dataset(50).shuffle(50).repeat().batch(8))

    def build_validation_spec(self) -> Any:
        return estimator.EvalSpec(
            lambda: self.dataset(20).batch(8), steps=None, exporters=self.exporters
        )

    def build_serving_input_receiver_fns(self) -> dict[str, Any]:
        spec = tf.feature_column.make_parse_example_spec(self.columns())
        return {"parsing": estimator.export.build_parsing_serving_input_receiver_fn(spec)}


class PremadeV2(Premade):
    """A DNNClassifier of TensorFlow 2, with a Keras optimizer."""

    def build_estimator(self) -> Any:
        optimizer = self.context.wrap_optimizer(tf.keras.optimizers.legacy.Adam(0.01))
        return estimator.DNNClassifier([8, 4], self.columns(), optimizer=optimizer)


class Linear(Premade):
    """A linear model with an optimizer that is created by name."""

    def build_estimator(self) -> Any:
        optimizer = self.context.wrap_optimizer("Ftrl")
        return estimator.LinearClassifier(self.columns(), optimizer=optimizer)


class KerasModel(Premade):
    """A Keras model converted to an Estimator. Its saver is a ``tf.train.Checkpoint``."""

    format = "checkpoint"

    def build_estimator(self) -> Any:
        tf.keras.utils.set_random_seed(4)
        model = tf.keras.Sequential(
            [
                tf.keras.Input((4,), name="features"),
                tf.keras.layers.Dense(8, activation="relu", name="hidden"),
                tf.keras.layers.Dropout(0.3),
                tf.keras.layers.Dense(2, name="logits"),
            ]
        )
        optimizer = self.context.wrap_optimizer(tf.keras.optimizers.legacy.Adam(0.01))
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, metrics=["accuracy"])
        return tf.keras.estimator.model_to_estimator(model, checkpoint_format=self.format)

    def dataset(self, count: int) -> Any:
        records = ({"features": FEATURES[:count]}, LABELS[:count])
        return self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices(records))

    def build_serving_input_receiver_fns(self) -> dict[str, Any]:
        return {}


class KerasModelWithSaver(KerasModel):
    format = "saver"


@pytest.mark.parametrize(
    "trial_class", [Premade, PremadeV2, Linear, KerasModel, KerasModelWithSaver]
)
def test_tf_estimator_resumes_exactly(tmp_path: Path, trial_class: type[Premade]) -> None:
    periods = {"until": UNTIL, "validate_every": 10}
    straight = train(trial_class, tmp_path, tmp_path / "straight", **periods)
    stopped = train(trial_class, tmp_path, tmp_path / "other", stop_at=7, **periods)
    resumed = train(trial_class, tmp_path, tmp_path / "other", resume=7, **periods)

    assert stopped.batches + resumed.batches == straight.batches
    assert resumed.validations == straight.validations
    assert {"accuracy", "loss", "global_step"} <= set(straight.validations[0][1])
    variables, expected = (variables_in(tmp_path / f"{n}/{UNTIL}") for n in ("other", "straight"))
    assert_same(variables, expected)


def test_tf_estimator_exporters_run(tmp_path: Path) -> None:

    class Exporting(Premade):
        def build_validation_spec(self) -> Any:
            receiver = self.build_serving_input_receiver_fns()["parsing"]
            self.exporters = [
                estimator.BestExporter("best", receiver),
                estimator.LatestExporter("latest", receiver),
                estimator.FinalExporter("final", receiver),
            ]
            return super().build_validation_spec()

    train(Exporting, tmp_path, tmp_path / "c", until=20, validate_every=10)

    exports = tmp_path / "trial" / "estimator" / "export"
    assert len(list((exports / "latest").iterdir())) == 2
    assert len(list((exports / "final").iterdir())) == 1
    assert (next((exports / "best").iterdir()) / "saved_model.pb").exists()
    # Exports of the checkpoint
    assert len(list((tmp_path / "c" / "20" / "parsing").glob("*/saved_model.pb"))) == 1


def test_distribution_strategy_is_rejected(tmp_path: Path) -> None:
    class Mirrored(Premade):
        def build_estimator(self) -> Any:
            config = estimator.RunConfig(train_distribute=tf.distribute.MirroredStrategy(["cpu:0"]))
            return tf1.estimator.DNNClassifier([8], self.columns(), config=config)

    refused = pytest.raises(InvalidExperimentError, match="slots_per_trial")
    with refused, open_controller(Mirrored, tmp_path):
        pass


def test_losses_equal_plain_tf_estimator(tmp_path: Path) -> None:
    """Without random operations, the losses equal those of a plain ``train``."""
    losses: list[float] = []

    class Watch(tf1.train.SessionRunHook):  # type: ignore[misc]
        def before_run(self, run_context: Any) -> Any:
            losses_of = tf1.get_default_graph().get_collection(tf1.GraphKeys.LOSSES)
            return tf1.train.SessionRunArgs(losses_of[0])

        def after_run(self, run_context: Any, run_values: Any) -> None:
            losses.append(float(run_values.results))

    class Plain(Premade):
        def build_estimator(self) -> Any:
            optimizer = self.context.wrap_optimizer(tf1.train.AdagradOptimizer(0.1))
            config = estimator.RunConfig(model_dir=str(tmp_path / "bare"), tf_random_seed=3)

            def model_fn(features: Any, labels: Any, mode: str) -> Any:
                kernel = tf1.get_variable("kernel", [4, 2])
                logits = tf.matmul(tf.stack([features[f"x{i}"] for i in range(4)], 1), kernel)
                loss = tf1.losses.sparse_softmax_cross_entropy(labels, logits)
                step = tf1.train.get_global_step()
                train_op = optimizer.minimize(loss, global_step=step) if mode == "train" else None
                return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

            return estimator.Estimator(model_fn, config=config)

        def build_train_spec(self) -> Any:
            return estimator.TrainSpec(lambda: self.dataset(50).batch(10).repeat())

        def build_serving_input_receiver_fns(self) -> dict[str, Any]:
            return {}

    clock = train(Plain, tmp_path, until=UNTIL)
    trial = Plain(make_context(tmp_path))
    bare = trial.build_estimator()
    bare.train(trial.build_train_spec().input_fn, steps=UNTIL, hooks=[Watch()])
    assert losses == [batch["loss"] for batch in clock.batches]
