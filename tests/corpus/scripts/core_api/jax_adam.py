"""A network in JAX with Adam written by hand, a split key and an EMA."""

import jax
import jax.numpy as jnp
import numpy as np

from detcore import core
from detcore.data import IndexSampler

EPOCHS = 4
rng = np.random.default_rng(6)
x = rng.normal(size=(96, 4)).astype("float32")
y = np.sin(x.sum(1, keepdims=True)).astype("float32")


def predict(params, inputs, key=None):
    hidden = jnp.tanh(inputs @ params["w1"] + params["b1"])
    if key is not None:
        hidden = hidden * jax.random.bernoulli(key, 0.9, hidden.shape) / 0.9
    return hidden @ params["w2"] + params["b2"]


def loss_fn(params, inputs, targets, key):
    return jnp.mean((predict(params, inputs, key) - targets) ** 2)


@jax.jit
def update(state, inputs, targets):
    key, subkey = jax.random.split(state["key"])
    loss, grads = jax.value_and_grad(loss_fn)(state["params"], inputs, targets, subkey)
    count = state["count"] + 1
    m = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, state["m"], grads)
    v = jax.tree.map(lambda a, g: 0.999 * a + 0.001 * g * g, state["v"], grads)
    scale = 0.01 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    params = jax.tree.map(
        lambda p, a, b: p - scale * a / (jnp.sqrt(b) + 1e-8), state["params"], m, v
    )
    ema = jax.tree.map(lambda a, p: 0.95 * a + 0.05 * p, state["ema"], params)
    new = {"params": params, "m": m, "v": v, "ema": ema, "count": count, "key": key}
    return new, loss


k1, k2, key = jax.random.split(jax.random.PRNGKey(6), 3)
params = {
    "w1": jax.random.normal(k1, (4, 16)) / 2,
    "b1": jnp.zeros(16),
    "w2": jax.random.normal(k2, (16, 1)) / 4,
    "b2": jnp.zeros(1),
}
zeros = jax.tree.map(jnp.zeros_like, params)
state = {"params": params, "m": zeros, "v": zeros, "ema": params, "count": 0, "key": key}
sampler = IndexSampler(96, 16, shuffle=True, seed=6)
with core.init(max_length={"batches": 24}, resume=True) as context:
    step = context.info.steps_completed
    if context.info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            leaves = np.load(path / "state.npz")
            structure = jax.tree.structure(state)
            state = jax.tree.unflatten(
                structure, [leaves[str(i)] for i in range(len(leaves.files))]
            )
    for operation in context.searcher.operations():
        while step < operation.length:
            batch = sampler.batch(step)
            state, loss = update(state, x[batch], y[batch])
            step += 1
            if step % 4 == 0:
                context.train.report_training_metrics(step, {"loss": loss})
            if context.preempt.should_preempt() or step % 5 == 0 or step == operation.length:
                with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
                    leaves = jax.tree.leaves(state)
                    arrays = {str(i): np.asarray(leaf) for i, leaf in enumerate(leaves)}
                    np.savez(path / "state.npz", **arrays)
        error = float(jnp.mean((predict(state["ema"], x) - y) ** 2))
        context.train.report_validation_metrics(step, {"val_loss": error})
        operation.report_completed(error)
print("final", error, float(loss))
