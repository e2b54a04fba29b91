"""Run many training steps of JAX in one call.

One program runs any number of consecutive batches of a block. However many a call runs, a batch has
the same bits, because all calls run this program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax import lax
from jax import numpy as jnp

from detcore_keras.backends.batch_steps import BatchTrainSteps, RunStep, flatten_outputs

# Enough that the cost of a call is small beside these batches.
_MAX_BLOCK_BATCHES = 32
_MAX_BLOCK_BYTES = 64 << 20
_CONVOLUTION = "conv_general_dilated"


class LoopTrainSteps(BatchTrainSteps):
    """The model's training step, in a loop over batches of arrays if it allows that.

    Args:
        arguments: See `BatchTrainSteps`.
        make_state_step: Returns a function of a batch that calls a function of the model's state
            and the batch, and keeps the state.
        read_state: Returns the model's state.
    """

    def __init__(
        self,
        *arguments: Any,
        make_state_step: Callable[[Any], RunStep],
        read_state: Callable[[], Any],
    ) -> None:
        super().__init__(*arguments)
        self._make_state_step = make_state_step
        self._read_state = read_state
        self._loop: RunStep | None = None
        self._capacity = 0  # batches in a block
        # The latest block, and which batches of which inputs it holds.
        self._block: Any = None
        self._inputs: Any = None
        self._range = range(0)

    def trace_step(self) -> None:
        """Create the variables, and prepare the loop unless the step needs separate calls."""
        if self._step is None:
            super().trace_step()
            self.slow_reason = self._prepare_loop()

    def run_one(self, inputs: Any, index: int) -> dict[str, Any]:
        """Train on one batch, and return the results of the step as tensors."""
        if self._loop is None:
            return super().run_one(inputs, index)
        _, results = self._run_loop(inputs, index, index + 1)
        return flatten_outputs(self._model, "train", results)

    def run_many(self, inputs: Any, count: int) -> dict[str, npt.NDArray[Any]]:
        """Train on the first `count` batches of a block. Return the results, stacked."""
        parts: list[tuple[slice, Mapping[str, Any]]] = []
        index = 0
        while index < count:
            stacked, _ = self._run_loop(inputs, index, count)
            start, index = index, min(count, self._range.stop)
            rows = slice(start - self._range.start, index - self._range.start)
            parts.append((rows, flatten_outputs(self._model, "train", stacked)))
        names = parts[0][1].keys()
        # Reading a result waits for its batches, so all of them are started before.
        return {
            name: np.concatenate([np.asarray(part[name])[rows] for rows, part in parts])
            for name in names
        }

    def _prepare_loop(self) -> str | None:
        """Return the reason why batches need separate calls, or None."""
        model = self._model
        if self._collective is not None:
            return "several workers train on JAX"
        if model.run_eagerly or not model.jit_compile:
            return "the model is not compiled"
        if self._data.split is not None or not self._data.in_graph:
            return "the data are not arrays"
        step = jax.jit(model.train_step)
        state, batch = self._read_state(), self._read_batch(self._data.peek_block(), 0)
        program, results = jax.make_jaxpr(step, return_shape=True)(state, batch)
        if _CONVOLUTION in str(program):
            return "XLA runs convolutions in a loop more slowly on a CPU, and with other bits"
        if not isinstance(results, tuple) or len(results) != 2 or not _is_same(results[1], state):
            return "train_step does not return the state as it receives it"
        if any(value.shape for value in jax.tree.leaves(results[0])):
            return "train_step returns values that are not single numbers"
        batch_bytes = sum(part.nbytes for part in jax.tree.leaves(batch))
        self._capacity = max(1, min(_MAX_BLOCK_BATCHES, _MAX_BLOCK_BYTES // batch_bytes))
        loop = _make_loop(step, results[0], self._capacity)
        self._loop = self._make_state_step(jax.jit(loop, donate_argnums=0))
        return None

    def _run_loop(self, inputs: Any, start: int, stop: int) -> Any:
        """Train on batches from `start` to `stop` or the end of the block, which is `_range`."""
        if inputs is not self._inputs or start not in self._range:
            self._open_block(inputs, start)
        first, end = self._range.start, min(stop, self._range.stop)
        assert self._loop is not None
        return self._loop((self._block, np.int32(start - first), np.int32(end - first)))

    def _read_batch(self, inputs: Any, index: int) -> Any:
        return self.weigh_batch(self._data.fetch_batch(inputs, index))

    def _open_block(self, inputs: Any, start: int) -> None:
        """Stack batches of the same shape. A block always has space for the same number."""
        batches = [self._read_batch(inputs, start)]
        shapes = _list_shapes(batches[0])
        try:
            while len(batches) < self._capacity:
                batch = self._read_batch(inputs, start + len(batches))
                if _list_shapes(batch) != shapes:
                    break  # the smaller last batch of an epoch
                batches.append(batch)
        except IndexError:
            pass  # the end of the inputs

        def stack_parts(*parts: Any) -> Any:
            array = np.zeros((self._capacity, *parts[0].shape), parts[0].dtype)
            np.stack([np.asarray(part) for part in parts], out=array[: len(parts)])
            return array

        self._block = jax.device_put(jax.tree.map(stack_parts, *batches))
        self._inputs, self._range = inputs, range(start, start + len(batches))


def _make_loop(
    step: Callable[[Any, Any], Any], results: Any, capacity: int
) -> Callable[[Any, Any], Any]:
    """Return a function that runs a step on a range of the batches of a block.

    It returns the results of each batch, stacked, and those of the last batch; and the state.

    Args:
        step: Returns the results, which are scalars, and the state.
        results: Their types.
        capacity: Number of batches in a block.
    """

    def run_batches(state: Any, block_and_range: Any) -> Any:
        block, start, stop = block_and_range
        nothing = jax.tree.map(lambda value: jnp.zeros((), value.dtype), results)
        stacked = jax.tree.map(lambda value: jnp.zeros(capacity, value.dtype), results)

        def train_batch(carry: Any) -> Any:
            index, state, stacked, _ = carry

            def read_row(rows: Any) -> Any:
                return lax.dynamic_index_in_dim(rows, index, keepdims=False)

            def write_row(rows: Any, row: Any) -> Any:
                return lax.dynamic_update_index_in_dim(rows, row, index, 0)

            logs, state = step(state, jax.tree.map(read_row, block))
            return index + 1, state, jax.tree.map(write_row, stacked, logs), logs

        carry = (start, state, stacked, nothing)
        _, state, stacked, last = lax.while_loop(lambda c: c[0] < stop, train_batch, carry)
        return (stacked, last), state

    return run_batches


def _is_same(returned: Any, state: Any) -> bool:
    """Whether two nested structures have arrays of the same shapes and types."""
    return jax.tree.structure(returned) == jax.tree.structure(state) and all(
        (one.shape, one.dtype) == (other.shape, other.dtype)
        for one, other in zip(jax.tree.leaves(returned), jax.tree.leaves(state), strict=True)
    )


def _list_shapes(batch: Any) -> list[tuple[int, ...]]:
    return [part.shape for part in jax.tree.leaves(batch)]
