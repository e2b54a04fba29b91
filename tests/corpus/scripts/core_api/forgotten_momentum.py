"""A careless loop: it saves only the weights, and records digests of its steps."""

import numpy as np

from detcore import core

EPOCHS = 4
rng = np.random.default_rng(11)
x = rng.normal(size=(96, 4))
y = x @ [1.0, 2.0, -1.0, 0.0]
weights, velocity, step = np.zeros(4), np.zeros(4), 0
with core.init(max_length={"batches": 24}, resume=True) as context:
    if context.info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            weights = np.load(path / "weights.npy")
        step = context.info.steps_completed
    for operation in context.searcher.operations():
        while step < operation.length:
            first = 16 * step % 96
            batch, goal = x[first : first + 16], y[first : first + 16]
            context.train.digest_batch(step + 1, content=[batch])
            velocity = 0.9 * velocity - 0.05 * batch.T @ (batch @ weights - goal) / 16
            weights = weights + velocity
            step += 1
            context.train.report_training_metrics(step, {"norm": float(abs(weights).sum())})
            context.train.digest_state(step, {"model.weights": weights})
            if context.preempt.should_preempt() or step % 5 == 0 or step == operation.length:
                with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
                    np.save(path / "weights.npy", weights)
        operation.report_completed(float(np.mean((x @ weights - y) ** 2)))
print("final", weights.tolist())
