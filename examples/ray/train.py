"""Softmax regression on handwritten digits with gradients averaged over workers."""

import numpy as np
from sklearn.datasets import load_digits

from detcore import core
from detcore.data import IndexSampler

NUM_TRAINING = 1500


def main() -> None:
    with core.init(distributed=core.DistributedContext.from_env()) as context:
        train(context, **context.info.hparams)


def train(context: core.Context, *, learning_rate: float, global_batch_size: int) -> None:
    digits = load_digits()
    x, y = digits.data / 16, np.eye(10)[digits.target]
    ranks = context.distributed
    weights, steps = np.zeros((64, 10)), 0
    if context.info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            weights, steps = np.load(path / "weights.npy"), context.info.steps_completed
    sampler = IndexSampler(
        NUM_TRAINING, global_batch_size // ranks.size, shuffle=True,
        seed=context.info.trial_seed, rank=ranks.rank, world_size=ranks.size,
    )  # fmt: skip
    for operation in context.searcher.operations():
        while steps < operation.length:
            batch = sampler.batch(steps)
            error = softmax(x[batch] @ weights) - y[batch]
            gradients = ranks.allgather(x[batch].T @ error / len(batch))
            weights -= learning_rate * np.mean(gradients, axis=0)
            steps += 1
            is_preempted = context.preempt.should_preempt()
            if ranks.rank == 0 and (steps % 50 == 0 or is_preempted):
                with context.checkpoint.store_path({"steps_completed": steps}) as (path, _):
                    np.save(path / "weights.npy", weights)
            if is_preempted:
                raise SystemExit(75)
        if ranks.rank == 0:
            predictions = (x[NUM_TRAINING:] @ weights).argmax(axis=1)
            accuracy = float(np.mean(predictions == digits.target[NUM_TRAINING:]))
            context.train.report_validation_metrics(steps, {"accuracy": accuracy})
            operation.report_completed(accuracy)


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


if __name__ == "__main__":
    main()
