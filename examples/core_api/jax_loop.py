"""Train a network on scans of handwritten digits with JAX."""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
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
    x, y = digits.data.astype(np.float32) / 16, digits.target
    ranks, rank, steps = context.distributed, context.distributed.rank, context.info.steps_completed
    key = jax.random.key(context.info.trial_seed)
    weights = initial_weights(key)
    momentum = jax.tree.map(jnp.zeros_like, weights)
    if context.info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            weights = dict(np.load(path / "weights.npz"))
            momentum = dict(np.load(path / "momentum.npz"))
    sampler = IndexSampler(
        NUM_TRAINING, global_batch_size // ranks.size, shuffle=True,
        seed=context.info.trial_seed, rank=rank, world_size=ranks.size,
    )  # fmt: skip
    for operation in context.searcher.operations():
        while steps < operation.length:
            batch = sampler.batch(steps)
            dropout = jax.random.fold_in(key, steps * ranks.size + rank)
            local = loss_and_gradients(weights, x[batch], y[batch], dropout)
            results = ranks.allgather(jax.device_get(local))
            loss, gradients = jax.tree.map(lambda *parts: sum(parts) / ranks.size, *results)
            momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
            weights = jax.tree.map(lambda w, m: w - learning_rate * m, weights, momentum)
            steps += 1
            if steps % 10 == 0 and rank == 0:
                context.train.report_training_metrics(steps, {"loss": loss})
            is_preempted = context.preempt.should_preempt()
            if rank == 0 and (is_preempted or steps % 50 == 0 or steps == operation.length):
                with context.checkpoint.store_path({"steps_completed": steps}) as (path, _):
                    np.savez(path / "weights.npz", **weights)
                    np.savez(path / "momentum.npz", **momentum)
            if is_preempted:
                raise SystemExit(75)
        if rank == 0:
            metric = np.mean(predict(weights, x[NUM_TRAINING:]).argmax(1) == y[NUM_TRAINING:])
            context.train.report_validation_metrics(steps, {"accuracy": metric})
            operation.report_completed(metric)


def initial_weights(key: jax.Array) -> dict[str, jax.Array]:
    first, last = jax.random.split(key)
    return {
        "hidden": jax.random.normal(first, (64, 32)) / 8,
        "bias": jnp.zeros(32),
        "output": jax.random.normal(last, (32, 10)) / 6,
    }


def predict(weights: dict[str, jax.Array], x: np.ndarray, mask: jax.Array | float = 1) -> jax.Array:
    return (jax.nn.relu(x @ weights["hidden"] + weights["bias"]) * mask) @ weights["output"]


@jax.jit
@jax.value_and_grad
def loss_and_gradients(
    weights: dict[str, jax.Array], x: np.ndarray, y: np.ndarray, dropout: jax.Array
) -> jax.Array:
    mask = jax.random.bernoulli(dropout, 0.8, (len(x), 32)) / 0.8
    return -jax.nn.log_softmax(predict(weights, x, mask))[jnp.arange(len(y)), y].mean()


if __name__ == "__main__":
    main()
