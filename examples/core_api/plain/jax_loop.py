"""Train a network on scans of handwritten digits with JAX."""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

HPARAMS = {"learning_rate": 0.1, "global_batch_size": 32}
NUM_TRAINING = 1500


def main() -> None:
    train(**HPARAMS)


def train(*, learning_rate: float, global_batch_size: int) -> None:
    digits = load_digits()
    x, y = digits.data.astype(np.float32) / 16, digits.target
    key, generator = jax.random.key(0), np.random.default_rng(0)
    weights = initial_weights(key)
    momentum = jax.tree.map(jnp.zeros_like, weights)
    steps = 0
    for _ in range(5):
        order = generator.permutation(NUM_TRAINING)
        for start in range(0, NUM_TRAINING, global_batch_size):
            batch = order[start : start + global_batch_size]
            dropout = jax.random.fold_in(key, steps)
            loss, gradients = loss_and_gradients(weights, x[batch], y[batch], dropout)
            momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
            weights = jax.tree.map(lambda w, m: w - learning_rate * m, weights, momentum)
            steps += 1
            if steps % 10 == 0:
                print(f"step {steps}: loss {float(loss):.4f}")
        metric = np.mean(predict(weights, x[NUM_TRAINING:]).argmax(1) == y[NUM_TRAINING:])
        print(f"step {steps}: accuracy {metric:.4f}")
    np.savez("weights.npz", **weights)


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
