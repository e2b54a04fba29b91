"""Load weights in Keras's older HDF5 layout."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detcore.errors import InvalidCheckpointError, PluginNotFoundError
from detcore_keras.frameworks import KERAS_MAJOR, keras, tf
from detcore_keras.state.variables import is_variable, raw_variable, same_name

_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "VARIABLE_VALUE"


def load_h5_weights(model: Any, path: Path) -> None:
    """Load the weights of a model that Keras saved as HDF5; its configuration is not read.

    Args:
        model: A built model.
        path: The file: a whole model, or its weights.

    Raises:
        InvalidCheckpointError: If they do not fit; the model stays unchanged.
        PluginNotFoundError: If h5py is not installed.
    """
    saved = _read(path)
    here = [
        (variable.name, variable)
        for layer in model.layers
        # The order in which Keras writes them.
        for variable in [*layer.trainable_weights, *layer.non_trainable_weights]
    ]
    problems = []
    if len(saved) != len(here):
        problems.append(
            f"{len(saved)} weight(s) saved ({', '.join(name for name, _ in saved)}), "
            f"{len(here)} in the model ({', '.join(name for name, _ in here)})"
        )
    for (saved_name, value), (name, variable) in zip(saved, here, strict=False):
        if not same_name(saved_name.rpartition("/")[2], name.rpartition("/")[2]):
            problems.append(f"saved {saved_name!r}, in the model {name!r} in its place")
        elif tuple(variable.shape) != value.shape:
            problems.append(
                f"{saved_name}: saved with shape {value.shape}, in the model "
                f"{tuple(variable.shape)}"
            )
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise InvalidCheckpointError(f"{path} does not fit this model:\n{listed}")
    for (_, value), (_, variable) in zip(saved, here, strict=True):
        raw_variable(variable).assign(value)


def _read(path: Path) -> list[tuple[str, npt.NDArray[Any]]]:
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
                for layer in _texts(group, "layer_names")
                for name in _texts(group[layer], "weight_names")
            ]
    except (OSError, KeyError) as error:
        raise InvalidCheckpointError(f"{path} cannot be read as Keras HDF5: {error}") from error


def _texts(group: Any, name: str) -> list[str]:
    """Return an attribute that is a list of names; long ones are split into numbered parts."""
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
        InvalidCheckpointError: If the file is damaged, or any weight of the model is not found in
            it with its shape and type; the model stays unchanged.
    """
    reader, nodes = _open(prefix)
    keys = dict(_matched(model, nodes))
    values: list[tuple[Any, npt.NDArray[Any]]] = []
    problems = []
    for variable in filter(is_variable, model.weights):
        raw, name = raw_variable(variable), getattr(variable, "path", variable.name)
        key = keys.get(id(raw.handle))
        if key is None:
            problems.append(f"{name} {tuple(raw.shape)}: not found")
            continue
        value = reader.get_tensor(key)
        if value.shape != tuple(raw.shape) or value.dtype != raw.dtype.as_numpy_dtype:
            problems.append(
                f"{name}: saved as {value.dtype} {value.shape}, in the model {raw.dtype.name} "
                f"{tuple(raw.shape)}"
            )
        values.append((raw, value))
    if problems:
        raise _does_not_fit(prefix, problems, reader)
    for raw, value in values:
        raw.assign(value)


def _open(prefix: Path) -> tuple[Any, Any]:
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    try:
        reader = tf.train.load_checkpoint(str(prefix))
        graph = trackable_object_graph_pb2.TrackableObjectGraph()
        graph.ParseFromString(reader.get_tensor(_GRAPH_KEY))
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise InvalidCheckpointError(
            f"{prefix}.index cannot be read as a TensorFlow checkpoint: {error}"
        ) from error
    return reader, graph.nodes


def _matched(model: Any, nodes: Any) -> Iterator[tuple[int, str]]:
    """Yield the variables that the names lead to, by their handle's id, with their keys."""
    seen = {id(model)}
    pending: list[tuple[Any, int]] = [(model, 0)]
    while pending:
        current, index = pending.pop()
        saved: Mapping[str, int] = {c.local_name: c.node_id for c in nodes[index].children}
        for name, part in _parts(current):
            if name not in saved or id(part) in seen:
                continue
            node = nodes[saved[name]]
            keys = [a.checkpoint_key for a in node.attributes if a.name == _VALUE]
            raw = raw_variable(part)
            if keys and isinstance(raw, tf.Variable):
                yield id(raw.handle), keys[0]
            elif not keys:
                seen.add(id(part))
                pending.append((part, saved[name]))


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
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
        if KERAS_MAJOR == 3 and isinstance(part, keras.Variable):
            # Some layers expose them through a property of that name.
            yield part.name, part


def _does_not_fit(prefix: Path, problems: list[str], reader: Any) -> InvalidCheckpointError:
    listed = "\n".join(f"  {problem}" for problem in problems)
    shapes = reader.get_variable_to_shape_map()
    suffix = f"/.ATTRIBUTES/{_VALUE}"
    saved = ", ".join(sorted(key.removesuffix(suffix) for key in shapes if key.endswith(suffix)))
    advice = "The code that builds the model has changed since the checkpoint was saved."
    if KERAS_MAJOR == 3:
        advice += (
            "\nIf it is the same, Keras 3 arranges the model otherwise than Keras 2, which wrote "
            "the checkpoint. Load it where TensorFlow 2.15 is installed:\n"
            '  pip install "tensorflow==2.15.*"'
        )
    return InvalidCheckpointError(
        f"{prefix}: {len(problems)} weight(s) of the model are not in the checkpoint as they "
        f"should be:\n{listed}\nThe checkpoint has: {saved}.\n{advice}"
    )
