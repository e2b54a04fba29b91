"""Find TensorFlow's files in the directory of a checkpoint of detcore or Determined."""

from __future__ import annotations

import contextlib
import logging
import math
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detcore.errors import CheckpointNotFoundError, InvalidCheckpointError, UnsafePathError
from detcore.types import TensorInfo
from detcore_estimator.checkpoint.bundle_index import find_index_fault
from detcore_estimator.tensorflow_versions import tf, tf1

_logger = logging.getLogger("detcore.estimator")

_INDEX = re.compile(r"model\.ckpt-(\d+)\.index")
_DATA = re.compile(r"\.data-(\d{5,})-of-(\d{5,})")
# Operations that give a variable its value.
ASSIGNMENTS = ("Assign", "AssignVariableOp")
_WITHOUT_SIZE = (tf.variant, tf.resource)
# The length of each string, and a checksum over them.
_STRING_BYTES, _STRINGS_BYTES = 1, 4


def find_tensorflow_checkpoint(folder: Path) -> Path:
    """Return the prefix of the newest complete ``model.ckpt-N`` in a directory.

    Only the directory listing is used, not its file ``checkpoint``, in which Determined wrote
    absolute paths of another machine. A checkpoint is complete if its index can be read, and all
    data files exist with at least the number of bytes in the index. A warning names newer
    incomplete checkpoints. Opens no session and runs no operation.

    Args:
        folder: A checkpoint's directory, from detcore or Determined.

    Returns:
        ``folder / "model.ckpt-N"``, for `restore_variables` and ``tf.train.load_checkpoint``. It is
        not the name of a file.

    Raises:
        CheckpointNotFoundError: If the directory does not exist.
        InvalidCheckpointError: If the directory contains no complete checkpoint.
        UnsafePathError: If a file is a link that leads out of the directory.
    """
    if not folder.is_dir():
        raise CheckpointNotFoundError(
            f"the directory {folder} does not exist.\n"
            "Pass the path of a checkpoint's directory, which contains model.ckpt-N.index.\n"
            "  detcore checkpoint download UUID"
        )
    names = sorted(path.name for path in folder.iterdir())
    steps = sorted({int(match[1]) for name in names if (match := _INDEX.fullmatch(name))})
    faults: list[str] = []
    for step in reversed(steps):
        prefix = folder / f"model.ckpt-{step}"
        fault = _find_fault(prefix, names)
        if fault is None:
            for text in faults:
                _logger.warning("%s: using %s instead of %s", folder, prefix.name, text)
            return prefix
        faults.append(f"{prefix.name}: {fault}")
    if faults:
        raise InvalidCheckpointError(
            f"no checkpoint in {folder} is complete.\n"
            + "".join(f"  {text}\n" for text in faults)
            + "The copy may be truncated. Download the checkpoint again."
        )
    raise InvalidCheckpointError(
        f"{folder} holds no TensorFlow checkpoint: it has no model.ckpt-N.index.\n"
        f"It has: {', '.join(names) or 'nothing'}.\n"
        "Pass the directory that contains these files, not its parent or a subdirectory."
    )


def restore_variables(saver: Any, session: Any, prefix: Path) -> None:
    """Restore the values of a checkpoint into a session's variables.

    Unlike ``saver.restore``, this checks the shapes of resource variables, and reads paths that
    TensorFlow cannot read (see `readable_by_tensorflow`).

    Args:
        saver: A built ``tf.compat.v1.train.Saver``.
        session: A raw session on the saver's graph.
        prefix: Result of `find_tensorflow_checkpoint`.

    Raises:
        InvalidCheckpointError: If the checkpoint lacks a variable, or has it with another shape or
            type, or its bytes are damaged.
    """
    definition = saver.saver_def
    with readable_by_tensorflow(prefix.parent) as folder:
        path = str(folder / prefix.name)
        try:
            _check_shapes(session.graph, definition.restore_op_name, path, prefix)
            session.run(definition.restore_op_name, {definition.filename_tensor_name: path})
        except (
            tf.errors.NotFoundError,
            tf.errors.InvalidArgumentError,
            tf.errors.DataLossError,
            tf.errors.OutOfRangeError,
        ) as error:
            raise InvalidCheckpointError(
                f"the variables of this model cannot be read from {prefix}.\n"
                f"TensorFlow reports: {_first_line(error)}\n"
                "The model_fn must build the same variables (names, shapes, types) as the model_fn "
                "that wrote the checkpoint."
            ) from error


def stored_tensors(folder: Path, name: str) -> list[TensorInfo]:
    """Return the tensors in the files of a checkpoint.

    TensorFlow does not reveal which of several data files contains a tensor. The result is empty
    unless exactly one data file exists.

    Args:
        folder: Directory of the files.
        name: The prefix of the file names.
    """
    files = [
        path.name
        for path in folder.iterdir()
        if path.name.startswith(name) and _DATA.fullmatch(path.name.removeprefix(name))
    ]
    if len(files) != 1:
        return []
    with readable_by_tensorflow(folder) as readable:
        reader = tf1.train.NewCheckpointReader(str(readable / name))
    types = reader.get_variable_to_dtype_map()
    return [
        TensorInfo(key, tuple(shape), tf.as_dtype(types[key]).name, files[0])
        for key, shape in sorted(reader.get_variable_to_shape_map().items())
    ]


@contextlib.contextmanager
def readable_by_tensorflow(folder: Path) -> Iterator[Path]:
    """Yield a path of a directory from which TensorFlow can read checkpoints.

    TensorFlow treats the path of a checkpoint as a pattern. It finds no checkpoint in a directory
    with ``[``, ``*``, ``?`` or a backslash in its path. A link with another name replaces it.

    Args:
        folder: The directory.

    Yields:
        The directory's absolute path, or the path of a link that is deleted after the block.
    """
    if not set(str(folder.absolute())) & set("[]*?\\"):
        yield folder.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="detcore-link-") as parent:
        link = Path(parent) / "folder"
        link.symlink_to(folder.absolute(), target_is_directory=True)
        yield link


def check_inside(path: Path, folder: Path) -> Path:
    """Return a path in a checkpoint if its links stay inside the checkpoint's directory.

    Raises:
        UnsafePathError: If the path leads out of the directory.
    """
    real = path.resolve()
    if not real.is_relative_to(folder.resolve()):
        raise UnsafePathError(
            f"{path} leads to {real}, which is outside of the checkpoint {folder}.\n"
            "Files outside the checkpoint's directory are never read.\n"
            "If you trust the file, replace the link with a copy."
        )
    return path


def _find_fault(prefix: Path, names: list[str]) -> str | None:
    """Return why a checkpoint is incomplete; None if it is complete."""
    index = check_inside(prefix.with_name(f"{prefix.name}.index"), prefix.parent)
    shards: dict[int, dict[int, Path]] = {}
    for name in names:
        if not name.startswith(f"{prefix.name}."):
            continue
        match = _DATA.fullmatch(name.removeprefix(prefix.name))
        if match:
            path = check_inside(prefix.with_name(name), prefix.parent)
            shards.setdefault(int(match[2]), {})[int(match[1])] = path
    if not shards:
        return "it has no data file"
    # A file left by a save with another number of shards would hide missing files.
    if len(shards) > 1:
        return f"its data files are from sets of different sizes: {' and '.join(map(str, shards))}"
    [(count, files)] = shards.items()
    missing = sorted(set(range(count)) - set(files))
    if missing:
        return f"{len(missing)} of {count} data files are missing, such as number {missing[0]}"
    present = sum(path.stat().st_size for path in files.values())
    impossible = find_index_fault(index)
    if impossible is not None:
        return f"{index.name} cannot be read: {impossible}"
    try:
        with readable_by_tensorflow(prefix.parent) as folder:
            needed = _stored_bytes(tf1.train.NewCheckpointReader(str(folder / prefix.name)))
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        return f"{index.name} cannot be read: {_first_line(error)}"
    if present < needed:
        return f"its data files have {present} bytes, but its variables need {needed}"
    return None


def _stored_bytes(reader: Any) -> int:
    """Return the minimum number of bytes for the variables of a checkpoint."""
    types = reader.get_variable_to_dtype_map()
    total = 0
    for name, shape in reader.get_variable_to_shape_map().items():
        kind = tf.as_dtype(types[name])
        if kind == tf.string:
            total += math.prod(shape) * _STRING_BYTES + _STRINGS_BYTES
        elif kind not in _WITHOUT_SIZE:
            total += math.prod(shape) * kind.size
    return total


def _check_shapes(graph: Any, restore_op_name: str, path: str, prefix: Path) -> None:
    """Compare the shapes of all variables that will be restored with those in the checkpoint."""
    stored = tf1.train.NewCheckpointReader(path).get_variable_to_shape_map()
    wrong = [
        f"{name} is {tuple(shape)} in the model, but {tuple(stored[name])} in the checkpoint"
        for name, shape in _list_restored(graph, restore_op_name)
        if name in stored and not tf.TensorShape(shape).is_compatible_with(stored[name])
    ]
    if wrong:
        raise InvalidCheckpointError(
            f"{prefix} does not fit this model: {'; '.join(sorted(wrong))}.\n"
            "The model_fn must build the same variables (names, shapes, types) as the model_fn "
            "that wrote the checkpoint."
        )


def _list_restored(graph: Any, restore_op_name: str) -> Iterator[tuple[str, Any]]:
    """Yield the checkpoint name and the shape of each variable that a restore operation assigns.

    The names come from the graph, because a saver may use other names in the checkpoint. Parts of
    partitioned variables are left out, because TensorFlow checks them.
    """
    for op in find_assignments(graph, restore_op_name):
        target, value = op.inputs[0], op.inputs[1]
        while value.op.type == "Identity":
            value = value.op.inputs[0]
        if value.op.type != "RestoreV2":
            continue
        names = tf.get_static_value(value.op.inputs[1])
        slices = tf.get_static_value(value.op.inputs[2])
        if names is None or slices is None or slices[value.value_index]:
            continue
        shape = target.op.get_attr("shape") if "shape" in target.op.node_def.attr else None
        yield names[value.value_index].decode(), tf.TensorShape(shape)


def find_assignments(graph: Any, restore_op_name: str) -> Iterator[Any]:
    """Yield the operations with which a restore operation assigns variables.

    Args:
        graph: The graph.
        restore_op_name: The name in the ``SaverDef``.
    """
    pending, visited = [graph.get_operation_by_name(restore_op_name)], set()
    while pending:
        op = pending.pop()
        if op.name in visited:
            continue
        visited.add(op.name)
        pending += op.control_inputs
        if op.type in ASSIGNMENTS:
            yield op


def _first_line(error: BaseException) -> str:
    lines = (getattr(error, "message", None) or str(error)).strip().splitlines()
    # A session's error contains the location of the operation before the cause.
    node = next((index for index, line in enumerate(lines) if line.startswith("Node: ")), None)
    if node is not None:
        lines = lines[node + 1 :] or lines
    causes = (line for line in lines if line.strip() and line != "Graph execution error:")
    return next(causes, lines[0] if lines else "nothing")
