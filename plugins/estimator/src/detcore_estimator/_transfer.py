"""Transfer the values of one graph's variables to another graph's variables of the same names."""

from __future__ import annotations

import tempfile
from typing import Any

from detcore.errors import InvalidModelError
from detcore_estimator._checkpoint_files import ASSIGNMENTS
from detcore_estimator._tf import tf1


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
        wanted = _variables(target)
        self._through_files = self._through_files or not _can_be_fed(wanted)
        if self._through_files:
            return
        check_variables(source, target)
        known = {variable.op.name: variable for variable in _variables(source)}
        self._pairs = [(known[v.op.name], v) for v in wanted]

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
        values = source_session.run([source for source, _ in self._pairs])
        feeds = {
            target.initializer.inputs[1]: value
            for (_, target), value in zip(self._pairs, values, strict=True)
        }
        target_session.run([target.initializer for _, target in self._pairs], feed_dict=feeds)


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


def _variables(graph: Any) -> list[Any]:
    """Return the variables that the default saver saves, each once."""
    found: dict[str, Any] = {}
    for variable in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES):
        found.setdefault(variable.op.name, variable)
    return list(found.values())


def _can_be_fed(variables: list[Any]) -> bool:
    """Whether each variable has an initializer with a separate value, to be fed instead."""
    if any(variable.initializer.type not in ASSIGNMENTS for variable in variables):
        return False
    values = {variable.initializer.inputs[1].name for variable in variables}
    return len(values) == len(variables)
