"""Save and restore everything that training changes: variables and random generators."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from detcore.errors import InvalidCheckpointError, NotANumberError
from detcore.types import TensorInfo
from detcore_keras.frameworks import backend
from detcore_keras.state.array_files import (
    decode_array,
    encode_array,
    read_arrays,
    read_json,
    write_json,
)
from detcore_keras.state.input_spec import spec_to_json
from detcore_keras.state.npz_files import write_npz
from detcore_keras.state.variables import NamedVariable, model_variables, same_name

# Arrays by file and key.
ArrayFiles: TypeAlias = Mapping[str, Mapping[str, npt.NDArray[Any]]]

_logger = logging.getLogger("detcore.keras")

VARIABLES_FILE = "variables.json"
_VERSION = 1
_OWN_FILE = "own.json"
_OWN_ARRAYS = "own.npz"
# Groups that another trial's checkpoint does not replace.
OF_ONE_TRIAL = frozenset({"hyperparameters", "accumulated", "seeds", "metrics", "functions"})
_FILES = {
    "weights": "weights.npz",
    "extra": "weights.npz",
    "optimizer": "optimizer.npz",
    "hyperparameters": "optimizer.npz",
    "accumulated": "optimizer.npz",
    "seeds": "state.npz",
    "metrics": "state.npz",
    "counters": "state.npz",
    "functions": "state.npz",
}
_ARRAY_FILES = frozenset(_FILES.values())
# Required fields of a variable record.
_ROW_TYPES = {"key": str, "group": str, "name": str, "shape": list, "dtype": str, "file": str}


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingState:
    """Contents of the files of a checkpoint.

    Attributes:
        record_file: Name of the JSON file that lists the variables.
        record: Content of the JSON file.
        files: Copies of the variables' values, by file and key.
    """

    record_file: str
    record: Mapping[str, Any]
    files: ArrayFiles

    def write_record(self, directory: Path) -> None:
        """Write the JSON file."""
        write_json(directory / self.record_file, self.record)

    def tensors(self) -> list[TensorInfo]:
        """Return the variables with their files."""
        return [
            TensorInfo(row["name"], tuple(row["shape"]), row["dtype"], row["file"])
            for row in self.record["variables"]
        ]


def capture_training_state(
    variables: Sequence[NamedVariable], *, input_spec: Any = None
) -> TrainingState:
    """Return the current values of every variable that training changes.

    The files are ``weights.npz`` (needed for prediction), ``optimizer.npz``, ``state.npz`` (random
    generators of layers, metrics, counters) and ``variables.json``, which lists them in order.

    Args:
        variables: Result of `training_variables`.
        input_spec: Nested specification of a batch of the model's inputs. Loading the checkpoint
            needs it to build a model whose first call creates its weights.
    """
    files: dict[str, dict[str, npt.NDArray[Any]]] = {name: {} for name in sorted(_ARRAY_FILES)}
    rows = []
    for index, item in enumerate(variables):
        value = backend.read_variable(item.variable)
        row = _make_row(f"{index:05d}", item, value)
        files[row["file"]].update(encode_array(row["key"], value))
        rows.append(row)
    record = {
        "version": _VERSION,
        "keras_major": backend.keras_major,
        "backend": backend.name,
        "input_spec": spec_to_json(input_spec),
        "variables": rows,
    }
    return TrainingState(VARIABLES_FILE, record, files)


def write_array_files(directory: Path, files: ArrayFiles) -> None:
    """Write arrays of NumPy's own types.

    Args:
        directory: Directory to write into.
        files: The arrays, by file and key.
    """
    for name, arrays in files.items():
        write_npz(directory / name, arrays)


def restore_training_state(
    variables: Sequence[NamedVariable], directory: Path, *, leave_out: Collection[str] = ()
) -> None:
    """Restore every variable that training changes, bit for bit.

    Args:
        variables: Variables of the same model and optimizers, created by the same code.
        directory: Directory with the files of `capture_training_state`.
        leave_out: Groups of variables that are neither compared nor restored.

    Raises:
        InvalidCheckpointError: If a variable does not fit. The message lists all differences, and
            all variables stay unchanged.
    """
    rows = [
        row for row in _read_own_variables(directory)["variables"] if row["group"] not in leave_out
    ]
    _restore_rows(rows, [item for item in variables if item.group not in leave_out], directory)


def _find_nan(state: TrainingState) -> str | None:
    """Return the name of a weight that is NaN or infinite; None if all are finite."""
    for row in state.record["variables"]:
        is_weight = row["file"] == _FILES["weights"] and is_float(row["dtype"])
        array = state.files[row["file"]].get(row["key"]) if is_weight else None
        if array is not None and array.dtype.kind == "f" and not np.isfinite(array).all():
            return str(row["name"])
    return None


def refuse_nan(state: TrainingState, step: int) -> None:
    """Raise an error if a weight is not finite, so that no such checkpoint is saved.

    Args:
        state: The contents of the checkpoint.
        step: Batches trained.

    Raises:
        NotANumberError: If a weight is NaN or infinite.
    """
    name = _find_nan(state)
    if name is not None:
        raise NotANumberError(
            f"the weight {name} is not finite at batch {step}, and TerminateOnNaN ends training.\n"
            "The latest checkpoint is from an earlier batch. Lower the learning rate, clip the "
            "gradients, or look for NaN in the data."
        )


def capture_own_state(variables: Sequence[NamedVariable], indices: Sequence[int]) -> TrainingState:
    """Return the current values of one worker's variables that differ from the chief's.

    Args:
        variables: All variables of the training.
        indices: Indices of the variables that differ.
    """
    rows: list[dict[str, Any]] = []
    arrays: dict[str, npt.NDArray[Any]] = {}
    for index in indices:
        value = backend.read_variable(variables[index].variable)
        row = _make_row(f"{index:05d}", variables[index], value)
        rows.append({**row, "index": index, "file": _OWN_ARRAYS})
        arrays.update(encode_array(row["key"], value))
    return TrainingState(_OWN_FILE, {"version": _VERSION, "variables": rows}, {_OWN_ARRAYS: arrays})


def restore_own_state(variables: Sequence[NamedVariable], directory: Path) -> None:
    """Restore the variables of `capture_own_state`. Call it after `restore_training_state`.

    Raises:
        InvalidCheckpointError: If a variable does not fit. All variables then stay unchanged.
    """
    rows = _read_record(directory / _OWN_FILE)["variables"]
    count = len(variables)
    if any(row.get("index", count) >= count for row in rows):
        raise InvalidCheckpointError(
            f"{directory / _OWN_FILE} is for a model with more variables than the {count} of this "
            "model"
        )
    _restore_rows(rows, [variables[row["index"]] for row in rows], directory)


def restore_mean_gradients(variables: Sequence[NamedVariable], own_folders: Sequence[Path]) -> None:
    """Set restored sums of gradients to their mean over the checkpoint's workers.

    Use it when the number of workers has changed. All workers then take part in the next update.

    Args:
        variables: Variables of the training, restored from the checkpoint.
        own_folders: Directories with the values of each worker except the chief.
    """
    parts = {
        index: [backend.read_variable(item.variable)]
        for index, item in enumerate(variables)
        if item.group == "accumulated" and is_float(backend.get_dtype(item.variable))
    }
    for folder in own_folders:
        rows = {row.get("index"): row for row in _read_record(folder / _OWN_FILE)["variables"]}
        arrays = read_arrays(folder / _OWN_ARRAYS)
        for index, values in parts.items():
            row = rows.get(index)
            worker_value = None if row is None else decode_array(arrays, row["key"], row["dtype"])
            values.append(values[0] if worker_value is None else worker_value)
    for index, values in parts.items():
        total = np.sum([value.astype(np.float64) for value in values], axis=0)
        mean = (total / len(values)).astype(values[0].dtype)
        variables[index].variable.assign(mean)


def clear_step(model: Any, variables: Sequence[NamedVariable]) -> None:
    """Undo the effects of a step that a checkpoint of another trial does not replace.

    These are metrics, sums of gradients, and the states of recurrent layers.

    Args:
        model: The model, which has trained one batch.
        variables: Variables of the training.
    """
    model.reset_metrics()
    for item in variables:
        if item.group == "accumulated":
            item.variable.assign(np.zeros_like(backend.read_variable(item.variable)))
    for layer in model._flatten_layers(include_self=False):
        if getattr(layer, "stateful", False):
            backend.reset_layer(layer)


def _read_own_variables(directory: Path) -> dict[str, Any]:
    record = read_variables(directory)
    if not is_of_backend(record):
        raise InvalidCheckpointError(
            f"the checkpoint was written with {_name_writer(record)}; this is {backend}.\n"
            "Their optimizers and random generators have different state, so training cannot "
            "resume exactly.\n"
            "Resume with the Keras version and the back end that wrote it: "
            f"KERAS_BACKEND={record.get('backend')}. To load only the weights, use "
            "detcore_keras.load_model_from_checkpoint_path."
        )
    return record


def _name_writer(record: Mapping[str, Any]) -> str:
    return f"Keras {record.get('keras_major')} on {record.get('backend')}"


def is_of_backend(record: Mapping[str, Any]) -> bool:
    """Whether this version of Keras and its back end have written a ``variables.json``."""
    writer = (record.get("keras_major"), record.get("backend"))
    return writer == (backend.keras_major, backend.name)


def restore_weights(model: Any, directory: Path) -> None:
    """Load only the variables that a model needs to predict.

    Args:
        model: A built model of the same structure. Layer numbers may differ (``dense_1`` for
            ``dense``).
        directory: Directory with the files of `capture_training_state`.

    Raises:
        InvalidCheckpointError: If a variable does not fit. All variables then stay unchanged.
    """
    record = read_variables(directory)
    if not is_of_backend(record):
        _logger.warning(
            "the checkpoint was written with %s, and its weights are loaded on %s. An exact resume "
            "needs the back end that wrote it",
            _name_writer(record),
            backend,
        )
    rows = [row for row in record["variables"] if row["group"] in {"weights", "extra"}]
    _restore_rows(rows, model_variables(model), directory)


def read_variables(directory: Path) -> dict[str, Any]:
    """Return the content of ``variables.json``.

    Raises:
        InvalidCheckpointError: If the file is missing, damaged, or has another version.
    """
    return _read_record(directory / VARIABLES_FILE)


def _read_record(path: Path) -> dict[str, Any]:
    record = read_json(path, ".\nA checkpoint of detcore-keras has trial.json and variables.json.")
    if record.get("version") != _VERSION:
        raise InvalidCheckpointError(
            f"{path} has version {record.get('version')!r}, written by another detcore-keras. "
            f"This detcore-keras reads version {_VERSION}.\n"
            "  pip install --upgrade detcore-keras"
        )
    rows = record.get("variables")
    if not isinstance(rows, list):
        raise InvalidCheckpointError(f"{path} is damaged: it has no list of variables")
    for number, row in enumerate(rows):
        problem = _find_row_problem(row, path.name)
        if problem is not None:
            raise InvalidCheckpointError(
                f"{path} is damaged: entry {number} of its variables {problem}"
            )
    return record


def _find_row_problem(row: Any, record_file: str) -> str | None:
    """Return the problem of a record entry, which may be malicious; None if it is valid."""
    if not isinstance(row, dict):
        return "is not an object"
    for field, kind in _ROW_TYPES.items():
        if not isinstance(row.get(field), kind):
            return f"has no {field!r} of type {kind.__name__}"
    if not all(type(size) is int and size >= 0 for size in row["shape"]):
        return f"has the shape {row['shape']}"
    if row["group"] not in _FILES:
        return f"has the unknown group {row['group']!r}; known: {', '.join(_FILES)}"
    files = {_OWN_ARRAYS} if record_file == _OWN_FILE else _ARRAY_FILES
    if row["file"] not in files:
        # This also excludes paths that lead elsewhere.
        return f"has the unknown file {row['file']!r}; known: {', '.join(sorted(files))}"
    index = row.get("index", 0)
    if type(index) is not int or index < 0:
        return f"has the index {index!r}"
    return None


def _make_row(key: str, item: NamedVariable, value: npt.NDArray[Any]) -> dict[str, Any]:
    return {
        "key": key,
        "group": item.group,
        "name": item.name,
        "shape": list(value.shape),
        "dtype": backend.get_dtype(item.variable),
        "file": _FILES[item.group],
    }


def _restore_rows(
    rows: Sequence[Mapping[str, Any]], variables: Sequence[NamedVariable], directory: Path
) -> None:
    problems: list[str] = []
    pairs: list[tuple[Mapping[str, Any], NamedVariable]] = []
    for group in _FILES:
        saved_rows = [row for row in rows if row["group"] == group]
        group_variables = [item for item in variables if item.group == group]
        if len(saved_rows) == len(group_variables):
            pairs += zip(saved_rows, group_variables, strict=True)
        else:
            problems += _describe_unmatched(group, saved_rows, group_variables)
    problems += [problem for row, item in pairs if (problem := _describe_difference(row, item))]
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise InvalidCheckpointError(
            f"the checkpoint in {directory} does not fit this model; {len(problems)} "
            f"difference(s):\n{listed}\n"
            "The code that builds the model or the optimizer, or a hyperparameter it uses, has "
            "changed since the checkpoint was saved.\n"
            "Use the code in the checkpoint's directory code/, or start training again."
        )
    files = {row["file"]: read_arrays(directory / row["file"]) for row in rows}
    values = [decode_array(files[row["file"]], row["key"], row["dtype"]) for row, _ in pairs]
    for value, (row, _) in zip(values, pairs, strict=True):
        if list(value.shape) != row["shape"]:
            raise InvalidCheckpointError(
                f"{directory / row['file']}: {row['name']} has shape {list(value.shape)}, but "
                f"{VARIABLES_FILE} has {row['shape']}. The files were not written together"
            )
    for value, (row, item) in zip(values, pairs, strict=True):
        item.variable.assign(backend.make_tensor(value, row["dtype"]))


def _describe_difference(row: Mapping[str, Any], item: NamedVariable) -> str | None:
    shape, dtype = backend.get_shape(item.variable), backend.get_dtype(item.variable)
    if not same_name(row["name"], item.name):
        return f"{row['group']}: saved {row['name']!r}, but here {item.name!r} at this position"
    if shape is not None and not _fits(shape, row["shape"]):
        saved_shape = _format_shape(row["shape"])
        return f"{row['name']}: saved with shape {saved_shape}, here {_format_shape(shape)}"
    if dtype != row["dtype"]:
        return f"{row['name']}: saved as {row['dtype']}, here {dtype}"
    return None


def _describe_unmatched(
    group: str, saved: Sequence[Mapping[str, Any]], here: Sequence[NamedVariable]
) -> list[str]:
    """Describe the variables without a counterpart on the other side."""
    unmatched = list(here)
    problems = [f"{group}: {len(saved)} variable(s) saved, {len(here)} here"]
    for row in saved:
        partner = next(
            (item for item in unmatched if _describe_difference(row, item) is None), None
        )
        if partner is None:
            problems.append(
                f"{group}: {row['name']} {_format_shape(row['shape'])} only in the checkpoint"
            )
        else:
            unmatched.remove(partner)
    problems += [
        f"{group}: {item.name} {_format_shape(backend.get_shape(item.variable))} only here"
        for item in unmatched
    ]
    return problems


def _fits(shape: Sequence[int | None], saved: Sequence[int]) -> bool:
    return len(shape) == len(saved) and all(
        size in (None, other) for size, other in zip(shape, saved, strict=True)
    )


def is_float(dtype: str) -> bool:
    """Whether the name of a type is that of a floating-point type."""
    return dtype.startswith(("float", "bfloat"))


def _format_shape(shape: Any) -> str:
    return str(tuple(shape))
