"""Write the TensorFlow files of a checkpoint: variables, graph, and values missing in the saver."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detcore.types import TensorInfo
from detcore_estimator.checkpoint.tensorflow_files import (
    find_assignments,
    find_tensorflow_checkpoint,
    restore_variables,
    stored_tensors,
)
from detcore_estimator.tensorflow_versions import tf, tf1

_MODEL = "model.ckpt"
_REST = "detcore-uncovered.ckpt"
_LOCAL = "detcore-local.ckpt"
_OWN = "detcore-worker.ckpt"
# SaveSlices is the V1 format, with inputs in the same order.
_SAVES = ("SaveV2", "SaveSlices")
# Other operations in a saver's graph, which merge shards and compute file names.
_NAMING = (
    "Const",
    "Identity",
    "MergeV2Checkpoints",
    "NoOp",
    "Pack",
    "Placeholder",
    "PlaceholderWithDefault",
    "RegexFullMatch",
    "Select",
    "SelectV2",
    "ShardedFilename",
    "ShardedFilespec",
    "StaticRegexFullMatch",
    "StringJoin",
)


class ModelFiles:
    """Writes and reads ``model.ckpt-N``, ``checkpoint`` and ``graph.pbtxt``.

    Args:
        graph: The training graph.
        saver: The built saver of the graph's scaffold.
        rest: A saver of the variables that `saver` leaves out, or None.
        local: A saver of local variables, or None.
        own: A saver of global variables that differ from the chief's on this worker, or None.
        session_config: ``ConfigProto`` of the sessions that write.
    """

    def __init__(
        self, graph: Any, saver: Any, rest: Any, local: Any, own: Any, *, session_config: Any
    ) -> None:
        self._saver, self._rest = saver, rest
        self._local_saver, self._own_saver = local, own
        self._graph = graph
        chiefs = {_MODEL: saver, _REST: rest, _LOCAL: local}
        self._chiefs = _SaverSet(graph, chiefs, session_config)
        self._own = _SaverSet(graph, {_LOCAL: local, _OWN: own}, session_config)
        # The graph no longer changes, so its description is created once for all checkpoints.
        self._description: tuple[bytes, str] | None = None

    def snapshot(self, session: Any, directory: Path, global_step: int) -> Callable[[], None]:
        """Copy the variables. Return a function that writes all files, from any thread.

        Args:
            session: The training session. The returned function does not need it.
            directory: Directory to write into.
            global_step: The number in the file names.
        """
        name = model_prefix(directory, global_step).name
        write_files = self._chiefs.snapshot(session, directory, {_MODEL: name})

        def write_all() -> None:
            write_files()
            self._write_descriptions(directory, name)

        return write_all

    def write_own(self, session: Any, directory: Path) -> None:
        """Write values of this worker that the chief does not write."""
        self._own.snapshot(session, directory, {})()

    def tensors(self) -> list[TensorInfo]:
        """Return the tensors in the files of the last `snapshot`."""
        return self._chiefs.tensors

    def read(self, session: Any, directory: Path) -> None:
        """Restore the variables.

        Raises:
            InvalidCheckpointError: If the saved values do not fit the graph.
        """
        restore_variables(self._saver, session, find_tensorflow_checkpoint(directory))
        self._restore_if_present(_REST, session, self._rest, directory)

    def read_own(self, session: Any, directory: Path) -> None:
        """Restore the variables that only this worker has. Call it after `read`.

        Raises:
            InvalidCheckpointError: If the saved values do not fit the graph.
        """
        self._restore_if_present(_LOCAL, session, self._local_saver, directory)
        self._restore_if_present(_OWN, session, self._own_saver, directory)

    def _restore_if_present(self, name: str, session: Any, saver: Any, directory: Path) -> None:
        if saver is not None and (directory / f"{name}.index").exists():
            restore_variables(saver, session, directory / name)

    def _write_descriptions(self, directory: Path, name: str) -> None:
        # Two threads may run this concurrently. Both compute the same description.
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
        graph: The graph of the savers.
        savers: The savers by their file names. None values are left out.
        session_config: ``ConfigProto`` of the sessions that write.

    Attributes:
        tensors: Tensors in the files of the last `snapshot`.
    """

    def __init__(self, graph: Any, savers: Mapping[str, Any], session_config: Any) -> None:
        self._session_config = session_config
        self.tensors: list[TensorInfo] = []
        self._plans: dict[str, SavePlan] = {}
        self._others: dict[str, Any] = {}
        for name, saver in savers.items():
            save_plan = None if saver is None else read_saver(graph, saver)
            if save_plan is not None:
                self._plans[name] = save_plan
            elif saver is not None:
                self._others[name] = saver

    def snapshot(
        self, session: Any, directory: Path, files: Mapping[str, str]
    ) -> Callable[[], None]:
        """Copy the variables, and return a function that writes the files.

        Args:
            session: The session. No other code may change its variables during the call.
            directory: Directory to write into.
            files: Other names for the files of some savers.
        """
        tensors = [tensor for plan in self._plans.values() for tensor in plan.tensors]
        copies = list(map(_copy_value, tensors, session.run(tensors)))
        self.tensors = []
        writes = []
        first = 0
        for name, plan in self._plans.items():
            file = files.get(name, name)
            values = copies[first : first + len(plan.tensors)]
            first += len(plan.tensors)
            self.tensors += _describe_tensors(plan, values, f"{file}.data-00000-of-00001")
            writes.append((str(directory / file), plan, values))
        for name, saver in self._others.items():
            file = files.get(name, name)
            # With its own state file, TensorFlow would delete the files of earlier checkpoints.
            saver.save(session, str(directory / file), write_meta_graph=False, write_state=False)
            self.tensors += stored_tensors(directory, file)

        def write_files() -> None:
            for arguments in writes:
                _write_tensors(*arguments, self._session_config)

        return write_files


@dataclasses.dataclass(frozen=True, slots=True)
class SavePlan:
    """All tensors that a saver saves, from all its shards.

    Attributes:
        names: Name of each tensor in the checkpoint.
        slices: For each tensor, its part of a partitioned variable in TensorFlow's notation
            (``"10 4 0,5:-"``), or an empty string for a whole variable.
        tensors: The tensors, of any shape, and of dtypes that NumPy also has.
    """

    names: list[str]
    slices: list[str]
    tensors: list[Any]


def read_saver(graph: Any, saver: Any) -> SavePlan | None:
    """Return the plan of a saver; None if the saver does more than a plan can describe.

    Args:
        graph: The graph of the saver.
        saver: A built ``tf.compat.v1.train.Saver``.
    """
    if saver.saver_def is None or type(saver).save is not tf1.train.Saver.save:
        return None
    plan = SavePlan([], [], [])
    pending, visited = [graph.get_tensor_by_name(saver.saver_def.save_tensor_name).op], set()
    while pending:
        op = pending.pop()
        if op in visited:
            continue
        visited.add(op)
        inputs = op.inputs
        if op.type in _SAVES:
            inputs = op.inputs[:3]
            names, slices = (tf.get_static_value(tensor) for tensor in inputs[1:])
            tensors = op.inputs[3:]
            if names is None or slices is None or not all(map(_has_numpy_type, tensors)):
                return None
            plan.names.extend(name.decode() for name in names)
            plan.slices.extend(text.decode() for text in slices)
            plan.tensors.extend(tensors)
        elif op.type not in _NAMING:
            return None
        pending += [*op.control_inputs, *(tensor.op for tensor in inputs)]
    return plan


def _has_numpy_type(tensor: Any) -> bool:
    """Whether NumPy has the type of a tensor. It has no types for quantized numbers."""
    dtype = tensor.dtype.base_dtype
    return bool(dtype.is_numpy_compatible) and not dtype.is_quantized


def _copy_value(tensor: Any, value: Any) -> npt.NDArray[Any]:
    """Return the result of a session as an array that does not use TensorFlow's memory."""
    array: npt.NDArray[Any] = np.asarray(value, tensor.dtype.base_dtype.as_numpy_dtype)
    return array if array.flags.owndata else array.copy()


def _describe_tensors(
    plan: SavePlan, values: Sequence[npt.NDArray[Any]], file: str
) -> list[TensorInfo]:
    infos: dict[str, TensorInfo] = {}
    for name, spec, tensor, value in zip(
        plan.names, plan.slices, plan.tensors, values, strict=True
    ):
        # "10 4 0,5:-" is the shape of the whole variable, then the part of each axis.
        shape = tuple(map(int, spec.split()[:-1])) if spec else value.shape
        infos[name] = TensorInfo(name, shape, tensor.dtype.base_dtype.name, file)
    return list(infos.values())


def _write_tensors(
    prefix: str, plan: SavePlan, values: Sequence[npt.NDArray[Any]], session_config: Any
) -> None:
    with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
        feeds = {
            tf1.placeholder(tensor.dtype.base_dtype, value.shape): value
            for tensor, value in zip(plan.tensors, values, strict=True)
        }
        save = tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=plan.names,
            shape_and_slices=plan.slices,
            tensors=list(feeds),
        )
    with tf1.Session(graph=graph, config=session_config) as session:
        # Run on this thread, because training needs TensorFlow's threads, which may be few.
        session.run(save, feeds, options=tf1.RunOptions(inter_op_thread_pool=-1))


def model_prefix(directory: Path, global_step: int) -> Path:
    """Return the prefix of the files with the variables of a checkpoint."""
    return directory / f"{_MODEL}-{global_step}"


def write_state_file(directory: Path, name: str) -> None:
    """Write TensorFlow's ``checkpoint`` file, with a path relative to the directory."""
    text = f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n'
    (directory / "checkpoint").write_text(text, encoding="utf-8")


def saver_of_uncovered(graph: Any, saver: Any) -> Any:
    """Return a saver of the global variables that the user's saver does not save, or None.

    A user's saver may save only some variables, but exact resume needs all of them.

    Args:
        graph: The training graph, before it is finalized.
        saver: The user's ``tf.compat.v1.train.Saver``.
    """
    with graph.as_default():
        if not saver.saver_def:
            saver.build()
        restores = find_assignments(graph, saver.saver_def.restore_op_name)
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
        name: Part of the saver's operation names.
    """
    return tf1.train.Saver(variables, name=f"detcore_{name}") if variables else None
