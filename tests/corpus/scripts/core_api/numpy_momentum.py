"""Logistic regression in NumPy with momentum and an own generator for the batches."""

import json

import numpy as np

from detcore import core

EPOCHS = 4
data_rng = np.random.default_rng(0)
x = data_rng.normal(size=(96, 5))
y = (x @ [1, -1, 0.5, 0, 2] > 0).astype(float)


def main():
    rng = np.random.default_rng(1)
    weights, velocity, steps = np.zeros(5), np.zeros(5), 0
    with core.init(max_length={"batches": 24}, resume=True) as context:
        if context.info.latest_checkpoint is not None:
            with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
                arrays = np.load(path / "arrays.npz")
                weights, velocity = arrays["weights"], arrays["velocity"]
                state = json.loads((path / "state.json").read_text())
                steps = state["steps"]
                rng.bit_generator.state = state["rng"]
        for operation in context.searcher.operations():
            while steps < operation.length:
                batch = rng.choice(96, size=16, replace=False)
                noisy = x[batch] + rng.normal(0, 0.05, size=(16, 5))
                p = 1 / (1 + np.exp(-noisy @ weights))
                velocity = 0.9 * velocity - 0.1 * noisy.T @ (p - y[batch]) / 16
                weights = weights + velocity
                steps += 1
                if steps % 3 == 0:
                    context.train.report_training_metrics(steps, {"norm": np.linalg.norm(weights)})
                if context.preempt.should_preempt() or steps % 5 == 0 or steps == operation.length:
                    with context.checkpoint.store_path({"steps_completed": steps}) as (path, _):
                        np.savez(path / "arrays.npz", weights=weights, velocity=velocity)
                        state = {"steps": steps, "rng": rng.bit_generator.state}
                        (path / "state.json").write_text(json.dumps(state))
            accuracy = float(np.mean((x @ weights > 0) == y))
            context.train.report_validation_metrics(steps, {"accuracy": accuracy})
            operation.report_completed(accuracy)
    print("final", accuracy, weights.tolist())


main()
