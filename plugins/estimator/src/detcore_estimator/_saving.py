"""Write the TensorFlow files of a checkpoint: variables, graph, and values the saver leaves out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from detcore.types import TensorInfo
from detcore_estimator._checkpoint_files import (
    assignments,
    find_tensorflow_checkpoint,
    restore_variables,
    stored_tensors,
)
from detcore_estimator._saver_graph import read_saver
from detcore_estimator._snapshot import SnapshotOps, can_be_copied
from detcore_estimator._tf import tf1

_MODEL = "model.ckpt"
_REST = "detcore-uncovered.ckpt"
_LOCAL = "detcore-local.ckpt"
_OWN = "detcore-worker.ckpt"


class ModelFiles:
    """Writes and reads ``model.ckpt-N``, ``checkpoint`` and ``graph.pbtxt``.

    Args:
        graph: The training graph, not finalized: operations that copy variables are added.
        saver: The saver that its scaffold has, built.
        rest: A saver of the variables that `saver` leaves out, or None.
        local: A saver of local variables, or None.
        own: A saver of global variables that are not the chief's on this worker, or None.
    """

    def __init__(self, graph: Any, saver: Any, rest: Any, local: Any, own: Any = None) -> None:
        self._saver, self._rest = saver, rest
        self._local_saver, self._own_saver = local, own
        self._graph = graph
        self._chiefs = _SaverSet(graph, {_MODEL: saver, _REST: rest, _LOCAL: local})
        self._own = _SaverSet(graph, {_LOCAL: local, _OWN: own})
        # The graph does not change any more: described once, written into every checkpoint.
        self._description: tuple[bytes, str] | None = None

    def write(self, session: Any, directory: Path, global_step: int) -> None:
        """Write all files into a folder."""
        name = model_prefix(directory, global_step).name
        self._chiefs.write(session, directory, {_MODEL: name})
        self._write_descriptions(directory, name)

    def snapshot(self, session: Any, directory: Path, global_step: int) -> Callable[[], None]:
        """Copy the variables, and return what writes all files into a folder, from any thread.

        Args:
            session: The training session; it stays open until the returned function is done.
            directory: The folder.
            global_step: The number in the files' names.
        """
        name = model_prefix(directory, global_step).name
        write = self._chiefs.snapshot(session, directory, {_MODEL: name})

        def write_all() -> None:
            write()
            self._write_descriptions(directory, name)

        return write_all

    def write_own(self, session: Any, directory: Path) -> None:
        """Write values of this worker that the chief does not write."""
        self._own.write(session, directory, {})

    def tensors(self) -> list[TensorInfo]:
        """Return the tensors in the files of the last `write` or `snapshot`."""
        return self._chiefs.tensors

    def read(self, session: Any, directory: Path) -> None:
        """Put the saved values into the variables.

        Raises:
            InvalidCheckpointError: If they do not fit the graph.
        """
        restore_variables(self._saver, session, find_tensorflow_checkpoint(directory))
        self._read(_REST, session, self._rest, directory)

    def read_own(self, session: Any, directory: Path) -> None:
        """Put a worker's own values into its variables, which have other values before.

        Raises:
            InvalidCheckpointError: If they do not fit the graph.
        """
        self._read(_LOCAL, session, self._local_saver, directory)
        self._read(_OWN, session, self._own_saver, directory)

    def _read(self, name: str, session: Any, saver: Any, directory: Path) -> None:
        if saver is not None and (directory / f"{name}.index").exists():
            restore_variables(saver, session, directory / name)

    def _write_descriptions(self, directory: Path, name: str) -> None:
        # Two threads may come here at once; both would find the same.
        if self._description is None:
            with self._graph.as_default():
                meta_graph = tf1.train.export_meta_graph(
                    saver_def=self._saver.as_saver_def(), clear_devices=False
                ).SerializeToString()
            self._description = meta_graph, str(self._graph.as_graph_def())
        meta_graph, text = self._description
        (directory / f"{name}.meta").write_bytes(meta_graph)
        (directory / "graph.pbtxt").write_text(text, encoding="utf-8")
        write_state_file(directory, name)


class _SaverSet:
    """Savers whose files are written together.

    Args:
        graph: Their graph, not finalized.
        savers: The savers by the names of their files; those that are None are left out.

    Attributes:
        tensors: Tensors in the files that were written last, or will be.
    """

    def __init__(self, graph: Any, savers: Mapping[str, Any]) -> None:
        self.tensors: list[TensorInfo] = []
        plans, self._others = {}, {}
        for name, saver in savers.items():
            if saver is None:
                continue
            plan = read_saver(graph, saver)
            if plan is not None and can_be_copied(plan):
                plans[name] = plan
            else:
                self._others[name] = saver
        self._names = [*plans, *self._others]
        self._operations = SnapshotOps(graph, plans)

    def write(self, session: Any, directory: Path, files: Mapping[str, str]) -> None:
        """Write the files.

        Args:
            session: The session; nothing changes its variables meanwhile.
            directory: The folder.
            files: Other names for the files of some savers.
        """
        names = self._file_names(files)
        self._operations.write_now(session, _prefixes(directory, names))
        self._write_others(session, directory, names)

    def snapshot(
        self, session: Any, directory: Path, files: Mapping[str, str]
    ) -> Callable[[], None]:
        """Copy the variables and return what writes the files; arguments as for `write`."""
        names = self._file_names(files)
        copies = self._operations.take(session)
        self._write_others(session, directory, names)
        return functools.partial(copies.write, _prefixes(directory, names))

    def _write_others(self, session: Any, directory: Path, names: Mapping[str, str]) -> None:
        """Write values that cannot be copied immediately, and record the tensors."""
        found = self._operations.tensors(session, names)
        for name, saver in self._others.items():
            prefix = str(directory / names[name])
            # TensorFlow's own state file would make it delete the files of earlier checkpoints.
            saver.save(session, prefix, write_meta_graph=False, write_state=False)
            found += stored_tensors(directory, names[name])
        self.tensors = found

    def _file_names(self, files: Mapping[str, str]) -> dict[str, str]:
        return {name: files.get(name, name) for name in self._names}


def model_prefix(directory: Path, global_step: int) -> Path:
    """Return the prefix of the files with the variables of a checkpoint."""
    return directory / f"{_MODEL}-{global_step}"


def _prefixes(directory: Path, names: Mapping[str, str]) -> dict[str, str]:
    return {name: str(directory / file) for name, file in names.items()}


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
    """Return a saver of the local variables, or None without such variables.

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
    """Return a saver of variables of the default graph, or None without such variables.

    Args:
        variables: The variables.
        name: Part of the name of its operations.
    """
    return tf1.train.Saver(variables, name=f"detcore_{name}") if variables else None
