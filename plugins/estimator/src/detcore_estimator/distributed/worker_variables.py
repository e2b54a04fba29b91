"""Find the variables that get different values on each worker in a training step."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

from detcore.errors import InvalidExperimentError
from detcore_estimator.data.record_ids import flat_tensors
from detcore_estimator.graph.random_ops import called_functions, find_upstream, function_library
from detcore_estimator.tensorflow_versions import tf, tf1

# Operations whose results are the same on all workers.
_MEETINGS = ("HorovodAllreduce", "HorovodGroupedAllreduce", "HorovodAllgather", "HorovodBroadcast")
_HANDLES = ("VarHandleOp", "VariableV2", "Variable")
# Operations between a variable's creation and its use.
_PASS_ON = ("Identity", "Switch", "RefSwitch", "Enter", "RefEnter")
_READS = (
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "VariableShape",
    "VarIsInitializedOp",
    "IsVariableInitialized",
)
_WITH_CONDITION = ("If", "StatelessIf", "Case", "StatelessCase")
_PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def worker_variables(graph: Any, *, batch: Any, drawn: Iterable[Any], step: Any) -> list[Any]:
    """Return the global variables that a step sets to values from one worker's data.

    Values from data, random numbers or Python belong to one worker. So do all values computed from
    them, up to a reduction by Horovod. A typical example are the averages of batch normalization.

    Args:
        graph: The complete training graph.
        batch: A structure with the tensors of the batch.
        drawn: Operations whose random numbers differ between workers.
        step: The operation that runs a training step.
    """
    in_step = set(find_upstream([step]))
    handles = map_handles(graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES))
    writers = _Writers(graph)
    sources = [part.op for part in flat_tensors(batch)]
    sources += [op for op in drawn if op in in_step]
    sources += [op for op in in_step if op.type in _PYTHON_OPS]
    pending, local_ops, changed_variables = list(sources), set(sources), {}
    while pending:
        op = pending.pop()
        reached = [c for tensor in op.outputs for c in tensor.consumers() if c in in_step]
        for handle in writers.find_written(op):
            variable = handles.get(handle)
            if handle not in local_ops:
                local_ops.add(handle)
                reached += [user for user in _list_users(handle) if user in in_step]
            if variable is not None:
                changed_variables[handle] = variable
        for consumer in reached:
            if consumer not in local_ops and consumer.type not in _MEETINGS:
                local_ops.add(consumer)
                pending.append(consumer)
    return [variable for handle, variable in handles.items() if handle in changed_variables]


def check_trainable(variables: Iterable[Any], graph: Any) -> None:
    """Raise an error if workers would train these variables separately.

    Args:
        variables: Result of `worker_variables`.
        graph: The training graph.

    Raises:
        InvalidExperimentError: If a variable is trainable.
    """
    trainable = {id(item) for item in graph.get_collection(tf1.GraphKeys.TRAINABLE_VARIABLES)}
    names = [variable.op.name for variable in variables if id(variable) in trainable]
    if names:
        raise InvalidExperimentError(
            "these variables are trained with gradients that are not averaged over the workers, so "
            f"that each worker would have a different model: {', '.join(names)}.\n"
            "An optimizer in the model_fn was not wrapped, or its updates depend on one "
            "worker's data in another way.\n"
            "Wrap each optimizer right after it is created, and use the result: "
            "optimizer = self.context.wrap_optimizer(optimizer)"
        )


def map_handles(variables: Iterable[Any]) -> dict[Any, Any]:
    """Return variables by the operation that creates them."""
    handles = ((getattr(variable, "handle", None), variable) for variable in variables)
    return {variable.op if handle is None else handle.op: variable for handle, variable in handles}


class _Writers:
    """Determines the variables that an operation may change.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def find_written(self, op: Any) -> Iterator[Any]:
        """Yield the creating operations of the variables that an operation may change."""
        if op.type in _READS or op.type in _PASS_ON or op.type in _HANDLES:
            return
        for index, tensor in enumerate(op.inputs):
            if tensor.dtype.base_dtype != tf.resource and not tensor.dtype._is_ref_dtype:
                continue
            source = tensor.op
            while source.type in _PASS_ON:
                source = source.inputs[0].op
            if source.type in _HANDLES and self._may_write(op.type, op.node_def.attr, index):
                yield source

    def _may_write(self, kind: str, attributes: Any, index: int) -> bool:
        """Whether an operation may change the variable at this input index."""
        functions = called_functions(attributes)
        # The condition of If and the index of Case are not passed to the functions.
        place = index - (kind in _WITH_CONDITION)
        return not functions or any(self._function_writes(name, place) for name in functions)

    def _function_writes(self, name: str, place: int) -> bool:
        function = self._library.get(name)
        if function is None or place >= len(function.signature.input_arg):
            return True  # Unknown, so assume that it writes.
        aliases = {function.signature.input_arg[place].name}
        for node in function.node_def:
            places = [i for i, source in enumerate(node.input) if source.split(":")[0] in aliases]
            if node.op in _PASS_ON and places:
                aliases.add(node.name)
            elif node.op not in _READS and any(
                self._may_write(node.op, node.attr, i) for i in places
            ):
                return True
        return False

    @functools.cached_property
    def _library(self) -> dict[str, Any]:
        return function_library(self._graph)


def _list_users(handle: Any) -> Iterator[Any]:
    pending = [handle]
    while pending:
        for tensor in pending.pop().outputs:
            for consumer in tensor.consumers():
                if consumer.type in _PASS_ON:
                    pending.append(consumer)
                yield consumer
