"""Copy the chief's values to all workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from detcore_estimator._tf import tf

if TYPE_CHECKING:
    from detcore.distributed import DistributedContext


def broadcast_variables(
    session: Any, variables: Sequence[Any], distributed: DistributedContext
) -> None:
    """Give variables the chief's values; all workers call it together.

    Args:
        session: A session in which they are initialized.
        variables: The variables, the same ones in the same order on all workers.
        distributed: The workers.
    """
    wanted = [variable for variable in variables if variable.dtype.base_dtype != tf.variant]
    if distributed.get_size() == 1 or not wanted:
        return
    is_chief = distributed.get_rank() == 0
    values: Any = distributed.broadcast(session.run(wanted) if is_chief else None)
    if not is_chief:
        assign(session, wanted, values)


def assign(session: Any, variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Put values into variables of a graph that is finalized.

    Args:
        session: The session.
        variables: The variables.
        values: A value for each.
    """
    feeds: dict[Any, Any] = {}
    initializers: list[Any] = []

    def run() -> None:
        session.run(initializers, feed_dict=feeds)
        feeds.clear()
        initializers.clear()

    for variable, value in zip(variables, values, strict=True):
        source = variable.initializer.inputs[1]
        # Variables may share the tensor that they are initialized with.
        if source in feeds:
            run()
        feeds[source] = value
        initializers.append(variable.initializer)
    if initializers:
        run()
