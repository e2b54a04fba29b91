"""Train a network on scans of handwritten digits with Keras on JAX, in `model.fit`."""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras.layers import Dense, Dropout
from sklearn.datasets import load_digits

from detcore import core
from detcore.data import IndexSampler

HPARAMS = {"learning_rate": 0.1, "global_batch_size": 32}
NUM_TRAINING = 1500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=235)
    parser.add_argument("--checkpoint-storage", help="a directory or URL, such as s3://bucket/runs")
    args = parser.parse_args()
    with core.init(
        distributed=core.DistributedContext.from_env(),
        checkpoint_storage=args.checkpoint_storage,
        script=core.ScriptExperiment(hparams=HPARAMS),
        max_length={"batches": args.steps},
        resume=True,
    ) as context:
        train(context, **context.info.hparams)


def train(context: core.Context, *, learning_rate: float, global_batch_size: int) -> None:
    digits = load_digits()
    x, y = digits.data.astype("float32") / 16, digits.target
    val_data = x[NUM_TRAINING:], y[NUM_TRAINING:]
    ranks, seed, steps = context.distributed, context.info.trial_seed, context.info.steps_completed
    keras.utils.set_random_seed(seed)
    model = build_model(learning_rate)
    if context.info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            arrays = np.load(path / "state.npz")
            for variable, name in zip(list_state(model), arrays, strict=True):
                variable.assign(arrays[name])
    sampler = IndexSampler(
        NUM_TRAINING, global_batch_size // ranks.size, shuffle=True,
        seed=seed, rank=ranks.rank, world_size=ranks.size,
    )  # fmt: skip
    for operation in context.searcher.operations():
        if plan := sampler.batches(steps, operation.length):
            data, loop = ((x[b], y[b]) for b in plan), Loop(context, operation, steps)
            model.fit(data, steps_per_epoch=len(plan), shuffle=False, callbacks=[loop], verbose=0)
        steps = operation.length
        if ranks.rank == 0:
            metrics = model.evaluate(*val_data, verbose=0, return_dict=True)
            context.train.report_validation_metrics(steps, metrics)
            operation.report_completed(metrics["accuracy"])


class Loop(keras.callbacks.Callback):
    def __init__(self, context: core.Context, operation: core.SearcherOperation, steps: int):
        super().__init__()
        self.context, self.operation, self.steps = context, operation, steps

    def on_train_batch_end(self, batch: int, logs: dict[str, float]) -> None:
        context, ranks, self.steps = self.context, self.context.distributed, self.steps + 1
        if ranks.size > 1:  # equivalent to averaging gradients
            for variable in list_state(self.model):
                variable.assign(np.mean(ranks.allgather(np.asarray(variable)), axis=0))
        if self.steps % 10 == 0 and ranks.rank == 0:
            context.train.report_training_metrics(self.steps, logs)
        is_preempted = context.preempt.should_preempt()
        is_due = is_preempted or self.steps % 50 == 0 or self.steps == self.operation.length
        if is_due and ranks.rank == 0:
            with context.checkpoint.store_path({"steps_completed": self.steps}) as (path, _):
                np.savez(path / "state.npz", *map(np.asarray, list_state(self.model)))
        if is_preempted:
            raise SystemExit(75)


def list_state(model: keras.Model) -> list[keras.Variable]:
    return [*model.variables, *model.optimizer.variables]


def build_model(learning_rate: float) -> keras.Model:
    model = keras.Sequential([keras.Input((64,)), Dense(32, "relu"), Dropout(0.2), Dense(10)])
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.optimizer.build(model.trainable_variables)
    return model


if __name__ == "__main__":
    main()
