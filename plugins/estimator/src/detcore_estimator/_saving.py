"""The TensorFlow files of a checkpoint: variables, graph, and what the user's saver leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detcore_estimator._checkpoint_files import (
    assignments,
    find_tensorflow_checkpoint,
    restore_variables,
)
from detcore_estimator._tf import tf1

__all__ = ["ModelFiles", "saver_of", "saver_of_local", "saver_of_uncovered"]

_REST = "detcore-uncovered.ckpt"
_LOCAL = "detcore-local.ckpt"
_OWN = "detcore-worker.ckpt"


class ModelFiles:
    """Writes and reads ``model.ckpt-N``, ``checkpoint`` and ``graph.pbtxt``.

    Args:
        graph: The training graph, finalized.
        saver: The saver that its scaffold has.
        rest: A saver of the variables that `saver` leaves out, or None.
        local: A saver of local variables, or None.
        own: A saver of global variables that are not the chief's on this worker, or None.
    """

    def __init__(self, graph: Any, saver: Any, rest: Any, local: Any, own: Any = None) -> None:
        self._saver = saver
        named = ((_REST, rest), (_LOCAL, local), (_OWN, own))
        self._more = {name: more for name, more in named if more is not None}
        self._graph = graph
        # The graph does not change any more: described once, written into every checkpoint.
        self._meta_graph: bytes | None = None
        self._graph_text: str | None = None

    def write(self, session: Any, directory: Path, global_step: int) -> None:
        """Write all files into a folder."""
        prefix = directory / f"model.ckpt-{global_step}"
        # TensorFlow's own state file would make it delete the files of earlier checkpoints.
        self._saver.save(session, str(prefix), write_meta_graph=False, write_state=False)
        self._write(session, directory, (_REST, _LOCAL))
        if self._meta_graph is None:
            with self._graph.as_default():
                self._meta_graph = tf1.train.export_meta_graph(
                    saver_def=self._saver.as_saver_def(), clear_devices=False
                ).SerializeToString()
            self._graph_text = str(self._graph.as_graph_def())
        prefix.with_name(f"{prefix.name}.meta").write_bytes(self._meta_graph)
        (directory / "graph.pbtxt").write_text(self._graph_text or "", encoding="utf-8")
        write_state_file(directory, prefix.name)

    def write_own(self, session: Any, directory: Path) -> None:
        """Write what a worker has that the chief does not write."""
        self._write(session, directory, (_LOCAL, _OWN))

    def read(self, session: Any, directory: Path) -> None:
        """Put the saved values into the variables.

        Raises:
            InvalidCheckpointError: If they do not fit the graph.
        """
        restore_variables(self._saver, session, find_tensorflow_checkpoint(directory))
        self._read(_REST, session, directory)

    def read_own(self, session: Any, directory: Path) -> None:
        """Put a worker's own values into its variables, which have other values before.

        Raises:
            InvalidCheckpointError: If they do not fit the graph.
        """
        self._read(_LOCAL, session, directory)
        self._read(_OWN, session, directory)

    def _write(self, session: Any, directory: Path, names: Sequence[str]) -> None:
        for name in names:
            if name in self._more:
                saver = self._more[name]
                path = str(directory / name)
                saver.save(session, path, write_meta_graph=False, write_state=False)

    def _read(self, name: str, session: Any, directory: Path) -> None:
        if name in self._more and (directory / f"{name}.index").exists():
            restore_variables(self._more[name], session, directory / name)


def write_state_file(directory: Path, name: str) -> None:
    """Write TensorFlow's ``checkpoint`` file, with a path relative to the folder."""
    text = f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n'
    (directory / "checkpoint").write_text(text, encoding="utf-8")


def saver_of_uncovered(graph: Any, saver: Any) -> Any:
    """Return a saver of the global variables that the user's saver does not save, or None.

    A user's saver may name some variables only; an exact resume needs all of them.

    Args:
        graph: The training graph, before it is finalized.
        saver: The user's ``tf.compat.v1.train.Saver``.
    """
    with graph.as_default():
        if not saver.saver_def:
            saver.build()
        restores = assignments(graph, saver.saver_def.restore_op_name)
        covered = {op.inputs[0].op.name for op in restores}
        variables = [
            variable
            for variable in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)
            if variable.op.name not in covered
        ]
        return saver_of(variables, "uncovered")


def saver_of_local(graph: Any, *, without: Any) -> Any:
    """Return a saver of the local variables, or None where there are none.

    Streaming metrics of the training graph (``tf.compat.v1.metrics``) keep their sums in them.

    Args:
        graph: The training graph, before it is finalized.
        without: A variable that is left out.
    """
    variables = [
        variable
        for variable in graph.get_collection(tf1.GraphKeys.LOCAL_VARIABLES)
        if variable is not without
    ]
    with graph.as_default():
        return saver_of(variables, "local")


def saver_of(variables: Sequence[Any], name: str) -> Any:
    """Return a saver of variables of the default graph, or None where there are none.

    Args:
        variables: The variables.
        name: Part of the name of its operations.
    """
    return tf1.train.Saver(variables, name=f"detcore_{name}") if variables else None
