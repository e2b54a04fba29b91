"""Make random operations of a graph resumable.

An operation such as in ``tf.nn.dropout`` keeps its random state inside the session, where it cannot
be saved. A resumed run would draw the first step's numbers again. This module replaces each random
operation with its stateless counterpart, whose numbers depend only on the operation's seeds and on
a step counter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from detcore_estimator.tensorflow_versions import tf, tf1

_NO_SEED = (0, 0)


class RandomOps:
    """The rewired random operations of one graph.

    Attributes:
        counter: Completed steps, ``(), int64``. As a local variable, it is not in checkpoints.
        increment: Operation to run with each step, ordered after the reading of `counter`.
        unsupported: Names of random operations that still have their own state.
    """

    def __init__(self, counter: Any, reading: Any) -> None:
        self.counter = counter
        self.reading = reading
        self.unsupported: list[str] = []
        with tf1.control_dependencies([reading]):
            self.increment = counter.assign_add(1, read_value=False)
        self._new_value = tf1.placeholder(tf.int64, [], name="new_value")
        self._assign = counter.assign(self._new_value, read_value=False)

    def set_counter(self, session: Any, value: int) -> None:
        """Set the counter. The next step then draws the numbers of step `value`, counted from 0."""
        session.run(self._assign, {self._new_value: value})


def make_random_ops_resumable(
    graph: Any, targets: Iterable[Any], *, seed_offset: int = 0
) -> RandomOps | None:
    """Replace the random operations of a step with stateless operations.

    All readers of an operation's numbers, including gradients, read the new numbers. Initial values
    of variables stay unchanged. Two operations with the same seeds draw the same numbers, as
    before.

    Args:
        graph: The complete graph, not finalized and not yet run by a session.
        targets: Tensors and operations that a step fetches.
        seed_offset: Makes the numbers differ, for example between workers.

    Returns:
        The rewired operations, or None if the step has no random operations.
    """
    step_ops = find_upstream(_list_operations(targets))
    random_op_list = [op for op in step_ops if _keeps_random_state(op.type, op.node_def.attr)]
    names_in_functions = _random_in_functions(graph, step_ops)
    if not random_op_list and not names_in_functions:
        return None
    initializer_ops = set(find_upstream(_list_initializers(graph)))
    fetched = set(_list_operations(targets))
    with graph.as_default(), tf1.control_dependencies(None), tf1.name_scope("detcore_random"):
        counter = tf1.Variable(
            0,
            name="counter",
            dtype=tf.int64,
            trainable=False,
            use_resource=True,
            collections=[tf1.GraphKeys.LOCAL_VARIABLES],
        )
        step = counter.read_value()
        random_ops = RandomOps(counter, step)
        for op in random_op_list:
            seed = tf.stack([_make_key(op, seed_offset), step])
            if op in fetched or not _rewire_readers(graph, op, seed, initializer_ops):
                random_ops.unsupported.append(op.name)
    random_ops.unsupported.extend(names_in_functions)
    return random_ops


def _rewire_readers(graph: Any, op: Any, seed: Any, kept: set[Any]) -> bool:
    """Let the readers of an operation read its stateless sibling. Return whether one exists."""
    replace = _REPLACEMENTS.get(op.type)
    context = op._get_control_flow_context()
    if replace is None or not _is_drawn_once(context):
        return False
    readers = [reader for reader in op.outputs[0].consumers() if reader not in kept]
    if not readers:
        return True
    # Inside tf.cond, the sibling must be in the same branch. Otherwise its inputs would be dead.
    outer = graph._get_control_flow_context()
    graph._set_control_flow_context(context)
    try:
        with tf1.device(op.device):
            values = replace(op, seed)
    finally:
        graph._set_control_flow_context(outer)
    values.set_shape(op.outputs[0].shape)
    for reader in readers:
        for index, tensor in enumerate(reader.inputs):
            if tensor is op.outputs[0]:
                reader._update_input(index, values)
    return True


def _is_drawn_once(context: Any) -> bool:
    """Whether a step runs a control flow context at most once, because it has no loops."""
    while context is not None:
        if not context.IsCondContext():
            return False
        context = context.outer_context
    return True


def _make_key(op: Any, seed_offset: int) -> Any:
    """Return 64 bits that distinguish an operation's numbers from those of other operations."""
    seeds = op.get_attr("seed"), op.get_attr("seed2")
    name = op.name if seeds == _NO_SEED else ""
    text = f"{seeds[0]},{seeds[1]},{name},{seed_offset}"
    digest = hashlib.sha256(text.encode()).digest()
    return np.frombuffer(digest[:8], "<i8")[0]


def _keeps_random_state(kind: str, attributes: Any) -> bool:
    return "seed2" in attributes and not kind.startswith("Stateless") and "Dataset" not in kind


def _list_operations(targets: Iterable[Any]) -> list[Any]:
    flat = tf.nest.flatten(list(targets), expand_composites=True)
    return [target if isinstance(target, tf.Operation) else target.op for target in flat]


def find_reachable(start: Iterable[Any], neighbours: Callable[[Any], Iterable[Any]]) -> set[Any]:
    """Return all operations that are reachable through `neighbours`."""
    pending = list(start)
    visited = set(pending)
    while pending:
        new = set(neighbours(pending.pop())) - visited
        visited |= new
        pending += new
    return visited


def find_upstream(operations: Iterable[Any]) -> list[Any]:
    """Return operations and all operations they depend on, in the order of the graph."""
    sources = find_reachable(
        operations, lambda op: (*(tensor.op for tensor in op.inputs), *op.control_inputs)
    )
    return sorted(sources, key=lambda op: op._id)


def _list_initializers(graph: Any) -> Iterator[Any]:
    variables = {
        id(item): item
        for name in graph.get_all_collection_keys()
        for item in graph.get_collection(name)
        if isinstance(item, tf.Variable)
    }
    for variable in variables.values():
        if variable.initializer is not None:
            yield variable.initializer


def _random_in_functions(graph: Any, operations: Iterable[Any]) -> list[str]:
    """Return the names of operations that call functions with random operations."""
    calls = {op.name: names for op in operations if (names := called_functions(op.node_def.attr))}
    if not calls:
        return []
    library = function_library(graph)
    return [name for name, called in calls.items() if _draws_random(called, library, set())]


def function_library(graph: Any) -> dict[str, Any]:
    """Return the definitions of a graph's functions by name."""
    return {function.signature.name: function for function in graph.as_graph_def().library.function}


def _draws_random(names: Iterable[str], library: Any, seen: set[str]) -> bool:
    for name in names:
        if name in seen or name not in library:
            continue
        seen.add(name)
        for node in library[name].node_def:
            if _keeps_random_state(node.op, node.attr):
                return True
            if _draws_random((*called_functions(node.attr), node.op), library, seen):
                return True
    return False


def called_functions(attributes: Any) -> list[str]:
    """Return the names of the functions in an operation's attributes."""
    names = []
    for attribute in attributes.values():
        if attribute.HasField("func"):
            names.append(attribute.func.name)
        names.extend(function.name for function in attribute.list.func)
    return names


def _draw_with(draw: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    return lambda op, seed: draw(shape=op.inputs[0], seed=seed, dtype=op.outputs[0].dtype)


def _with_parameters(shape: Any, parameters: Any) -> Any:
    """Return the shape of samples. The stateful operations draw `shape` for each parameter."""
    return tf.concat([shape, tf.shape(parameters, out_type=shape.dtype)], axis=0)


# Each function receives the operation and a ``(2,), int64`` seed, which is its key and the step.
_REPLACEMENTS: dict[str, Callable[[Any, Any], Any]] = {
    "Multinomial": lambda op, seed: tf.raw_ops.StatelessMultinomial(
        logits=op.inputs[0],
        num_samples=op.inputs[1],
        seed=seed,
        output_dtype=op.get_attr("output_dtype"),
    ),
    "RandomGamma": lambda op, seed: tf.raw_ops.StatelessRandomGammaV2(
        shape=_with_parameters(*op.inputs), seed=seed, alpha=op.inputs[1]
    ),
    "RandomPoissonV2": lambda op, seed: tf.raw_ops.StatelessRandomPoisson(
        shape=_with_parameters(*op.inputs),
        seed=seed,
        lam=op.inputs[1],
        dtype=op.outputs[0].dtype,
    ),
    "RandomShuffle": lambda op, seed: tf.random.experimental.stateless_shuffle(
        op.inputs[0], seed=seed
    ),
    "RandomStandardNormal": _draw_with(tf.raw_ops.StatelessRandomNormal),
    "RandomUniform": _draw_with(tf.raw_ops.StatelessRandomUniform),
    "RandomUniformInt": lambda op, seed: tf.raw_ops.StatelessRandomUniformInt(
        shape=op.inputs[0], seed=seed, minval=op.inputs[1], maxval=op.inputs[2]
    ),
    "TruncatedNormal": _draw_with(tf.raw_ops.StatelessTruncatedNormal),
}
