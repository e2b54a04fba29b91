"""Copy variable values to another graph, and to other workers."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from detcore.errors import InvalidModelError
from detcore_estimator.checkpoint.tensorflow_files import ASSIGNMENTS
from detcore_estimator.tensorflow_versions import tf, tf1

if TYPE_CHECKING:
    from detcore.distributed import DistributedContext


class VariableTransfer:
    """Copies the contents of a checkpoint from the training session to another session.

    Values are usually copied in memory. If a graph has a custom saver (averaged weights, other
    names) or state other than variables (tables), they are copied through a temporary checkpoint
    that the savers can read.

    Args:
        source: The training graph.
        target: The other graph, complete except for its scaffold.
        through_files: Whether a graph has a saver from the user's code.

    Raises:
        InvalidModelError: If the other graph has variables that the training graph lacks.
    """

    def __init__(self, source: Any, target: Any, *, through_files: bool) -> None:
        self._through_files = through_files or any(
            graph.get_collection(tf1.GraphKeys.SAVEABLE_OBJECTS) for graph in (source, target)
        )
        self._targets = _list_variables(target)
        if any(
            target_variable.initializer.type not in ASSIGNMENTS for target_variable in self._targets
        ):
            self._through_files = True
        if self._through_files:
            return
        check_variables(source, target)
        variables = {variable.op.name: variable for variable in _list_variables(source)}
        self._sources = [variables[variable.op.name] for variable in self._targets]

    def copy(self, source_session: Any, source_saver: Any, target_session: Any, saver: Any) -> None:
        """Copy all values.

        Args:
            source_session: Session of the training graph.
            source_saver: The saver of the training graph.
            target_session: Session of the other graph.
            saver: The saver of the other graph.
        """
        if self._through_files:
            with tempfile.TemporaryDirectory(prefix="detcore-") as folder:
                prefix = source_saver.save(
                    source_session,
                    f"{folder}/model.ckpt",
                    write_meta_graph=False,
                    write_state=False,
                )
                saver.restore(target_session, prefix)
            return
        assign_values(target_session, self._targets, source_session.run(self._sources))


def check_variables(source: Any, target: Any) -> None:
    """Check that the training graph has all variables of another graph.

    Args:
        source: The training graph.
        target: The other graph.

    Raises:
        InvalidModelError: If the training graph lacks a variable.
    """
    source_names = {variable.op.name for variable in _list_variables(source)}
    missing = sorted({variable.op.name for variable in _list_variables(target)} - source_names)
    if missing:
        raise InvalidModelError(
            f"the model has variables that it does not have in training: {', '.join(missing)}.\n"
            "They would have no trained values.\n"
            "Create the same variables, with the same names, in every mode of the model_fn."
        )


def broadcast_variables(
    session: Any, variables: Sequence[Any], distributed: DistributedContext
) -> None:
    """Set variables to the chief's values. All workers call it together.

    Args:
        session: A session with initialized variables.
        variables: The same variables in the same order on all workers.
        distributed: The workers.
    """
    shared_variables = [
        variable for variable in variables if variable.dtype.base_dtype != tf.variant
    ]
    if distributed.get_size() == 1 or not shared_variables:
        return
    is_chief = distributed.get_rank() == 0
    values: Any = distributed.broadcast(session.run(shared_variables) if is_chief else None)
    if not is_chief:
        assign_values(session, shared_variables, values)


def assign_values(session: Any, variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Assign values to variables of a finalized graph.

    Args:
        session: The session.
        variables: The variables.
        values: A value for each variable.
    """
    feeds: dict[Any, Any] = {}
    initializers: list[Any] = []

    def run_initializers() -> None:
        session.run(initializers, feed_dict=feeds)
        feeds.clear()
        initializers.clear()

    for variable, value in zip(variables, values, strict=True):
        source = variable.initializer.inputs[1]
        # Variables may share their initial value tensor.
        if source in feeds:
            run_initializers()
        feeds[source] = value
        initializers.append(variable.initializer)
    if initializers:
        run_initializers()


def _list_variables(graph: Any) -> list[Any]:
    """Return the variables that the default saver saves, without duplicates."""
    variables_by_name: dict[str, Any] = {}
    for variable in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES):
        variables_by_name.setdefault(variable.op.name, variable)
    return list(variables_by_name.values())
