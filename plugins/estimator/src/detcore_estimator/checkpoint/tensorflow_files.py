"""Find TensorFlow's files in the folder of a checkpoint of detcore or Determined."""

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
from detcore_estimator.checkpoint.bundle_index import index_fault
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
    """Return the prefix of the newest complete ``model.ckpt-N`` of a folder.

    Only the folder is examined, never its file ``checkpoint``, in which Determined wrote absolute
    paths of another machine. A checkpoint is complete if its index can be read and all data files
    exist with at least the number of bytes in the index; newer ones that are not complete are named
    in a warning. Opens no session and runs no operation.

    Args:
        folder: A checkpoint's folder, of detcore or of Determined.

    Returns:
        ``folder / "model.ckpt-N"``, for `restore_variables` and ``tf.train.load_checkpoint``; not
        itself a file.

    Raises:
        CheckpointNotFoundError: If the folder does not exist.
        InvalidCheckpointError: If it contains no complete checkpoint.
        UnsafePathError: If one of the files is a link that leads out of the folder.
    """
    if not folder.is_dir():
        raise CheckpointNotFoundError(
            f"there is no folder {folder}.\n"
            "The path is that of a checkpoint's folder, with model.ckpt-N.index in it.\n"
            "  detcore checkpoint download UUID"
        )
    names = sorted(path.name for path in folder.iterdir())
    steps = sorted({int(match[1]) for name in names if (match := _INDEX.fullmatch(name))})
    faults: list[str] = []
    for step in reversed(steps):
        prefix = folder / f"model.ckpt-{step}"
        fault = _fault(prefix, names)
        if fault is None:
            for text in faults:
                _logger.warning("%s is passed over for %s: %s", folder, prefix.name, text)
            return prefix
        faults.append(f"{prefix.name}: {fault}")
    if faults:
        raise InvalidCheckpointError(
            f"no checkpoint in {folder} is complete.\n"
            + "".join(f"  {text}\n" for text in faults)
            + "Copies that were cut off look like this: download the checkpoint again."
        )
    raise InvalidCheckpointError(
        f"{folder} holds no TensorFlow checkpoint: there is no model.ckpt-N.index in it.\n"
        f"It has: {', '.join(names) or 'nothing'}.\n"
        "Give the folder that holds these files itself, not one above or below it."
    )


def restore_variables(saver: Any, session: Any, prefix: Path) -> None:
    """Restore the values of a checkpoint into a session's variables.

    Stricter than ``saver.restore``, which puts a value of any shape into a resource variable, and
    able to read paths that TensorFlow cannot (see `readable_by_tensorflow`).

    Args:
        saver: A built ``tf.compat.v1.train.Saver``.
        session: A raw session on the saver's graph.
        prefix: Result of `find_tensorflow_checkpoint`.

    Raises:
        InvalidCheckpointError: If a variable is not in the checkpoint, or has another shape or
            type there, or its bytes are damaged.
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
                f"TensorFlow says: {_first_line(error)}\n"
                "The model_fn has to build the same variables (names, shapes, types) as the one "
                "that wrote the checkpoint."
            ) from error


def stored_tensors(folder: Path, name: str) -> list[TensorInfo]:
    """Return the tensors in the files of a checkpoint.

    TensorFlow does not reveal which of several data files contains a tensor, so the result is empty
    unless there is exactly one.

    Args:
        folder: Folder of the files.
        name: The prefix of the files' names.
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
    """Give a folder a path that TensorFlow can read checkpoints from.

    TensorFlow takes the path of a checkpoint as a pattern, so it finds nothing in a folder with
    ``[``, ``*``, ``?`` or a backslash in its path; such a folder gets a link with another name.

    Args:
        folder: The folder.

    Yields:
        The folder's absolute path, or that of a link to it, which is gone after the block.
    """
    if not set(str(folder.absolute())) & set("[]*?\\"):
        yield folder.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="detcore-link-") as parent:
        link = Path(parent) / "folder"
        link.symlink_to(folder.absolute(), target_is_directory=True)
        yield link


def checked_inside(path: Path, folder: Path) -> Path:
    """Return a path of a checkpoint, after a look at where its links lead.

    Raises:
        UnsafePathError: If it leads out of the folder.
    """
    real = path.resolve()
    if not real.is_relative_to(folder.resolve()):
        raise UnsafePathError(
            f"{path} leads to {real}, which is outside of the checkpoint {folder}.\n"
            "Nothing outside of a checkpoint's folder is read for it.\n"
            "If you trust it, put a copy of the file in place of the link."
        )
    return path


def _fault(prefix: Path, names: list[str]) -> str | None:
    """Return why a checkpoint is not complete; None if it is."""
    index = checked_inside(prefix.with_name(f"{prefix.name}.index"), prefix.parent)
    shards: dict[int, dict[int, Path]] = {}
    for name in names:
        if not name.startswith(f"{prefix.name}."):
            continue
        match = _DATA.fullmatch(name.removeprefix(prefix.name))
        if match:
            path = checked_inside(prefix.with_name(name), prefix.parent)
            shards.setdefault(int(match[2]), {})[int(match[1])] = path
    if not shards:
        return "it has no data file"
    # A file left by a save with another number of shards would hide missing files.
    if len(shards) > 1:
        return f"its data files are of different sets: of {' and of '.join(map(str, shards))}"
    [(count, files)] = shards.items()
    missing = sorted(set(range(count)) - set(files))
    if missing:
        return f"{len(missing)} of {count} data files are missing, such as number {missing[0]}"
    present = sum(path.stat().st_size for path in files.values())
    impossible = index_fault(index)
    if impossible is not None:
        return f"{index.name} cannot be read: {impossible}"
    try:
        with readable_by_tensorflow(prefix.parent) as folder:
            needed = _stored_bytes(tf1.train.NewCheckpointReader(str(folder / prefix.name)))
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        return f"{index.name} cannot be read: {_first_line(error)}"
    if present < needed:
        return f"its data files have {present} bytes, and its variables need {needed}"
    return None


def _stored_bytes(reader: Any) -> int:
    """Return the fewest bytes that the variables of a checkpoint take."""
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
        f"{name} is {tuple(shape)} in the model, and {tuple(stored[name])} in the checkpoint"
        for name, shape in _restored(graph, restore_op_name)
        if name in stored and not tf.TensorShape(shape).is_compatible_with(stored[name])
    ]
    if wrong:
        raise InvalidCheckpointError(
            f"{prefix} does not fit this model: {'; '.join(sorted(wrong))}.\n"
            "The model_fn has to build the same variables (names, shapes, types) as the one that "
            "wrote the checkpoint."
        )


def _restored(graph: Any, restore_op_name: str) -> Iterator[tuple[str, Any]]:
    """Yield name in the checkpoint and shape of each variable that a restore op assigns.

    Read off the graph, because a saver may give variables other names in the checkpoint. Parts of
    partitioned variables are left out: TensorFlow checks those itself.
    """
    for op in assignments(graph, restore_op_name):
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


def assignments(graph: Any, restore_op_name: str) -> Iterator[Any]:
    """Yield the operations with which a restore operation assigns variables.

    Args:
        graph: The graph.
        restore_op_name: As a ``SaverDef`` names it.
    """
    pending, seen = [graph.get_operation_by_name(restore_op_name)], set()
    while pending:
        op = pending.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        pending += op.control_inputs
        if op.type in ASSIGNMENTS:
            yield op


def _first_line(error: BaseException) -> str:
    lines = (getattr(error, "message", None) or str(error)).strip().splitlines()
    # A session's error names the place of the operation before its cause.
    node = next((index for index, line in enumerate(lines) if line.startswith("Node: ")), None)
    if node is not None:
        lines = lines[node + 1 :] or lines
    said = (line for line in lines if line.strip() and line != "Graph execution error:")
    return next(said, lines[0] if lines else "nothing")
