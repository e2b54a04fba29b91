"""Copy values of variables to another graph, and to other workers."""

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

    Values go through memory. If a graph has a custom saver (averaged weights, other names) or state
    other than variables (tables), they go through a checkpoint in a temporary folder instead, which
    the savers can read.

    Args:
        source: The training graph.
        target: The other graph, complete but for its scaffold.
        through_files: Whether one of the graphs has a saver that the user made.

    Raises:
        InvalidModelError: If the other graph has variables that the training graph has not.
    """

    def __init__(self, source: Any, target: Any, *, through_files: bool) -> None:
        self._through_files = through_files or any(
            graph.get_collection(tf1.GraphKeys.SAVEABLE_OBJECTS) for graph in (source, target)
        )
        self._targets = _variables(target)
        if any(each.initializer.type not in ASSIGNMENTS for each in self._targets):
            self._through_files = True
        if self._through_files:
            return
        check_variables(source, target)
        variables = {variable.op.name: variable for variable in _variables(source)}
        self._sources = [variables[variable.op.name] for variable in self._targets]

    def copy(self, source_session: Any, source_saver: Any, target_session: Any, saver: Any) -> None:
        """Copy all values.

        Args:
            source_session: Session of the training graph.
            source_saver: Its saver.
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
        assign(target_session, self._targets, source_session.run(self._sources))


def check_variables(source: Any, target: Any) -> None:
    """Make sure that a graph has no variables that the training graph has not.

    Args:
        source: The training graph.
        target: The other graph.

    Raises:
        InvalidModelError: If it has.
    """
    known = {variable.op.name for variable in _variables(source)}
    missing = sorted({variable.op.name for variable in _variables(target)} - known)
    if missing:
        raise InvalidModelError(
            f"the model has variables that it does not have in training: {', '.join(missing)}."
            "\nThey would have no trained values.\n"
            "Make the same variables, under the same names, in every mode of the model_fn."
        )


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


def _variables(graph: Any) -> list[Any]:
    """Return the variables that the default saver saves, each once."""
    found: dict[str, Any] = {}
    for variable in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES):
        found.setdefault(variable.op.name, variable)
    return list(found.values())
