"""Load weights in the formats of Determined's checkpoints: Keras's HDF5 and TensorFlow's format."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detcore.errors import InvalidCheckpointError, PluginNotFoundError
from detcore_keras.frameworks import backend, keras
from detcore_keras.state.variables import same_name

_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "VARIABLE_VALUE"


def load_h5_weights(model: Any, path: Path) -> None:
    """Load the weights of a model that Keras saved as HDF5, without its configuration.

    Args:
        model: A built model.
        path: File with a whole model, or only its weights.

    Raises:
        InvalidCheckpointError: If the weights do not fit. The model then stays unchanged.
        PluginNotFoundError: If h5py is not installed.
    """
    saved_weights = _read_h5_weights(path)
    model_weights = [
        (variable.name, variable)
        for layer in model.layers
        # The order in which Keras writes them.
        for variable in [*layer.trainable_weights, *layer.non_trainable_weights]
    ]
    problems = []
    if len(saved_weights) != len(model_weights):
        saved_names = ", ".join(name for name, _ in saved_weights)
        model_names = ", ".join(name for name, _ in model_weights)
        problems.append(
            f"{len(saved_weights)} weight(s) saved ({saved_names}), "
            f"{len(model_weights)} in the model ({model_names})"
        )
    for (saved_name, value), (name, variable) in zip(saved_weights, model_weights, strict=False):
        if not same_name(saved_name.rpartition("/")[2], name.rpartition("/")[2]):
            problems.append(f"saved {saved_name!r}, but the model has {name!r} at this position")
        elif tuple(variable.shape) != value.shape:
            problems.append(
                f"{saved_name}: saved with shape {value.shape}, but the model has "
                f"{tuple(variable.shape)}"
            )
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise InvalidCheckpointError(f"{path} does not fit this model:\n{listed}")
    for (_, value), (_, variable) in zip(saved_weights, model_weights, strict=True):
        backend.get_raw(variable).assign(value)


def _read_h5_weights(path: Path) -> list[tuple[str, npt.NDArray[Any]]]:
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise PluginNotFoundError(
            f"reading {path.name} needs h5py, which is not installed.\n"
            '  pip install "detcore-keras[legacy]"'
        ) from error
    try:
        with h5py.File(path, "r") as file:
            group = file.get("model_weights", file)
            return [
                (name, np.asarray(group[layer][name]))
                for layer in _read_names(group, "layer_names")
                for name in _read_names(group[layer], "weight_names")
            ]
    except (OSError, KeyError) as error:
        raise InvalidCheckpointError(f"{path} cannot be read as Keras HDF5: {error}") from error


def _read_names(group: Any, name: str) -> list[str]:
    """Return an attribute that is a list of names. Long lists are split into numbered parts."""
    numbered = (f"{name}{number}" for number in itertools.count())
    present = itertools.takewhile(lambda part: part in group.attrs, numbered)
    parts = [name] if name in group.attrs else list(present)
    if not parts:
        raise KeyError(f"no attribute {name!r}")
    return [
        text.decode() if isinstance(text, bytes) else str(text)
        for part in parts
        for text in group.attrs[part]
    ]


def load_object_graph_weights(model: Any, prefix: Path) -> None:
    """Load the weights that ``model.save_weights`` of Keras 2 wrote in TensorFlow's format.

    Args:
        model: A built model.
        prefix: Path of the checkpoint without ``.index``.

    Raises:
        InvalidCheckpointError: If the file is damaged, or lacks a weight of the model with its
            shape and type. The model then stays unchanged.
    """
    reader, nodes = _open_checkpoint(prefix)
    keys = dict(_match_variables(model, nodes))
    values: list[tuple[Any, npt.NDArray[Any]]] = []
    problems = []
    for variable in filter(backend.is_variable, model.weights):
        raw, name = backend.get_raw(variable), getattr(variable, "path", variable.name)
        key = keys.get(backend.get_key(raw))
        if key is None:
            problems.append(f"{name} {tuple(raw.shape)}: not found")
            continue
        value = reader.get_tensor(key)
        if value.shape != tuple(raw.shape) or backend.get_dtype(raw) not in (
            value.dtype.name,
            "string",
        ):
            problems.append(
                f"{name}: saved as {value.dtype} {value.shape}, but the model has "
                f"{backend.get_dtype(raw)} {tuple(raw.shape)}"
            )
        values.append((raw, value))
    if problems:
        raise _mismatch_error(prefix, problems, reader)
    for raw, value in values:
        raw.assign(value)


def _open_checkpoint(prefix: Path) -> tuple[Any, Any]:
    try:
        import tensorflow as tf
        from tensorflow.core.protobuf import trackable_object_graph_pb2
    except ModuleNotFoundError as error:
        raise PluginNotFoundError(
            f"reading {prefix.name} needs TensorFlow, which is not installed.\n"
            "  pip install tensorflow"
        ) from error

    try:
        reader = tf.train.load_checkpoint(str(prefix))
        graph = trackable_object_graph_pb2.TrackableObjectGraph()
        graph.ParseFromString(reader.get_tensor(_GRAPH_KEY))
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise InvalidCheckpointError(
            f"{prefix}.index cannot be read as a TensorFlow checkpoint: {error}"
        ) from error
    return reader, graph.nodes


def _match_variables(model: Any, nodes: Any) -> Iterator[tuple[int, str]]:
    """Yield the handle id and the checkpoint key of each variable found by its attribute path."""
    visited_ids = {id(model)}
    pending: list[tuple[Any, int]] = [(model, 0)]
    while pending:
        current, index = pending.pop()
        node_ids: Mapping[str, int] = {c.local_name: c.node_id for c in nodes[index].children}
        for name, part in _list_parts(current):
            if name not in node_ids or id(part) in visited_ids:
                continue
            node = nodes[node_ids[name]]
            keys = [a.checkpoint_key for a in node.attributes if a.name == _VALUE]
            if keys and backend.is_variable(part):
                yield backend.get_key(backend.get_raw(part)), keys[0]
            elif not keys:
                visited_ids.add(id(part))
                pending.append((part, node_ids[name]))


def _list_parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of an object by their names in Keras 2."""
    if isinstance(value, dict):
        yield from ((str(key), part) for key, part in value.items())
        return
    if isinstance(value, list | tuple):
        yield from ((str(index), part) for index, part in enumerate(value))
        return
    if isinstance(value, keras.Model):
        with_weights = [layer for layer in value.layers if layer.weights]
        yield from (
            (f"layer_with_weights-{index}", layer) for index, layer in enumerate(with_weights)
        )
    for name, part in getattr(value, "__dict__", {}).items():
        yield name, part
        if backend.is_variable(part):
            # Some layers expose variables through a property of that name.
            yield part.name, part


def _mismatch_error(prefix: Path, problems: list[str], reader: Any) -> InvalidCheckpointError:
    listed = "\n".join(f"  {problem}" for problem in problems)
    shapes = reader.get_variable_to_shape_map()
    suffix = f"/.ATTRIBUTES/{_VALUE}"
    saved_names = ", ".join(
        sorted(key.removesuffix(suffix) for key in shapes if key.endswith(suffix))
    )
    advice = "The code that builds the model has changed since the checkpoint was saved."
    advice += backend.legacy_advice
    return InvalidCheckpointError(
        f"{prefix}: {len(problems)} weight(s) of the model do not match the checkpoint:\n"
        f"{listed}\nThe checkpoint has: {saved_names}.\n{advice}"
    )
