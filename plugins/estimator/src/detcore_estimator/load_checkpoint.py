"""Load a serving function from a checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import message, text_format  # type: ignore[import-untyped]  # no types
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from detcore.errors import InvalidCheckpointError, UnsafePathError
from detcore.trial import find_checkpoint_directory, read_trial_file
from detcore_estimator.checkpoint.bundle_index import find_index_fault
from detcore_estimator.checkpoint.tensorflow_files import check_inside, readable_by_tensorflow
from detcore_estimator.tensorflow_versions import tf

_SERVE = ("serve",)
_SAVED_MODELS = ("saved_model.pb", "saved_model.pbtxt")
_VARIABLES_INDEX = "variables/variables.index"
_ASSETS = "saved_model_assets"
_NOT_SERVING = "code"
# Output of exporters in the EvalSpec: export/<name of the exporter>/<seconds>.
_EXPORTERS = "export"
_FRAMEWORK = "estimator"
_TRIAL_TYPE = "EstimatorTrial"
_FORMAT = "saved_model"


def load_estimator_from_checkpoint_path(
    path: str | os.PathLike[str], tags: Sequence[str] | None = None, name: str | None = None
) -> Any:
    """Load a serving function of a trial from a checkpoint.

    Reads checkpoints of this plugin, and checkpoints that Determined 0.12 to 0.17 wrote for an
    ``EstimatorTrial``. Runs no code from the checkpoint's directory ``code/`` and loads no pickle.
    The graph of the SavedModel is run, so load only checkpoints of people you trust.

    If TensorFlow's V2 behaviour is disabled, initialize the variables in the session::

        session.run([tf.compat.v1.global_variables_initializer(),
                     tf.compat.v1.tables_initializer(),
                     tf.compat.v1.get_collection("saved_model_initializers")])

    Args:
        path: The checkpoint's directory, such as from ``detcore checkpoint download``.
        tags: Tags of the graph in the SavedModel; default ``["serve"]``.
        name: The serving function, a key of the dict from ``build_serving_input_receiver_fns``.
            Required if the checkpoint has several serving functions.

    Returns:
        The result of ``tf.saved_model.load``. Call ``.signatures["serving_default"]`` with tensors
        by name.

    Raises:
        CheckpointNotFoundError: If the directory does not exist.
        InvalidCheckpointError: If the directory is not a checkpoint of an ``EstimatorTrial``, is
            damaged, or has no matching serving function; or if `name` is missing and it has
            several serving functions.
        UnsafePathError: If a file is a link that leads out of the directory.
    """
    folder = Path(path)
    check_is_estimator_checkpoint(folder)
    export = _choose_export(_serving_functions(folder), folder, name)
    tag_list = [tags] if isinstance(tags, str) else list(_SERVE if tags is None else tags)
    _check_saved_model(export, tag_list)
    with readable_by_tensorflow(export) as readable:
        try:
            return tf.saved_model.load(str(readable), tags=tag_list)
        except (tf.errors.OpError, OSError, RuntimeError, ValueError) as error:
            raise InvalidCheckpointError(
                f"the SavedModel {export} cannot be loaded.\n"
                f"TensorFlow reports: {str(error).strip()}\n"
                "If the copy was truncated, download the checkpoint again."
            ) from error


def _serving_functions(folder: Path) -> dict[str, Path]:
    """Return the newest export of each serving function, by the function's name."""
    exports_by_name: dict[str, Path] = {}
    for export in sorted(_find_exports(folder), key=lambda path: int(path.name)):
        parts = export.relative_to(folder).parts
        if parts[0] == _NOT_SERVING or (parts[0] == _EXPORTERS and len(parts) == 3):
            continue
        exports_by_name["/".join(parts[:-1])] = export
    return exports_by_name


def _find_exports(folder: Path) -> Iterator[Path]:
    """Yield the numbered directories that contain a SavedModel, below named directories."""
    for directory, subfolders, files in os.walk(folder):
        here = Path(directory)
        for name in subfolders:
            # os.walk does not follow links, so a link to an export must be checked.
            if (here / name).is_symlink():
                check_inside(here / name, folder)
        is_below_a_name = len(here.relative_to(folder).parts) > 1
        if is_below_a_name and here.name.isdecimal() and set(files) & set(_SAVED_MODELS):
            yield here
            subfolders.clear()


def _choose_export(exports: dict[str, Path], folder: Path, name: str | None) -> Path:
    if not exports:
        raise InvalidCheckpointError(
            f"{folder} has no serving function to load.\n"
            "A checkpoint has one SavedModel for each entry of the dict from the trial's optional "
            "method build_serving_input_receiver_fns. Add the method:\n"
            "  def build_serving_input_receiver_fns(self):\n"
            "      features = tf.feature_column.make_parse_example_spec(columns)\n"
            "      build = detcore_estimator.export.build_parsing_serving_input_receiver_fn\n"
            '      return {"my_serving_function": build(features)}\n'
            "To read only the variables, use tf.train.load_checkpoint."
        )
    listed = ", ".join(repr(export_name) for export_name in sorted(exports))
    if name is None:
        if len(exports) > 1:
            raise InvalidCheckpointError(
                f"{folder} has {len(exports)} serving functions: {listed}.\n"
                "Pass a name:\n"
                f"  load_estimator_from_checkpoint_path(path, name={min(exports)!r})"
            )
        return next(iter(exports.values()))
    if name not in exports:
        raise InvalidCheckpointError(
            f"{folder} has no serving function {name!r}; it has: {listed}.\n"
            "The names are the keys of the dict from build_serving_input_receiver_fns."
        )
    return exports[name]


def _check_saved_model(export: Path, tags: list[str]) -> None:
    """Check tags, and paths out of the directory, before TensorFlow reads the SavedModel."""
    for directory, subfolders, files in os.walk(export):
        for name in (*subfolders, *files):
            check_inside(Path(directory) / name, export)
    index = export / _VARIABLES_INDEX
    impossible = find_index_fault(index) if index.is_file() else None
    if impossible is not None:
        raise InvalidCheckpointError(
            f"{index} cannot be read: {impossible}.\n"
            "If the copy was truncated, download the checkpoint again."
        )
    graphs = _read_saved_model(export).meta_graphs
    for graph in graphs:
        for name in _asset_names(graph):
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise UnsafePathError(
                    f"the SavedModel {export} names the asset {name!r}, which is outside its "
                    "directory.\n"
                    "Files outside a checkpoint's directory are never read."
                )
    available_tags = [sorted(graph.meta_info_def.tags) for graph in graphs]
    if sorted(set(tags)) not in available_tags:
        raise InvalidCheckpointError(
            f"the SavedModel {export} has no graph with the tags {tags}; it has graphs with: "
            f"{' or '.join(map(str, available_tags)) or 'none'}.\nPass one of these as tags."
        )


def _asset_names(graph: Any) -> Iterator[str]:
    """Yield the files that a graph reads from the directory ``assets``."""
    for asset in graph.asset_file_def:
        yield asset.filename
    if _ASSETS in graph.collection_def:  # where TensorFlow 1 lists them
        for packed in graph.collection_def[_ASSETS].any_list.value:
            asset = meta_graph_pb2.AssetFileDef()
            packed.Unpack(asset)
            yield asset.filename


def _read_saved_model(export: Path) -> Any:
    saved_model = saved_model_pb2.SavedModel()
    path = next(export / name for name in _SAVED_MODELS if (export / name).exists())
    try:
        if path.suffix == ".pb":
            saved_model.ParseFromString(path.read_bytes())
        else:
            text_format.Parse(path.read_text(encoding="utf-8"), saved_model)
    except (message.DecodeError, text_format.ParseError, UnicodeDecodeError) as error:
        raise InvalidCheckpointError(
            f"{path} is damaged: {error}.\n"
            "If the copy was truncated, download the checkpoint again."
        ) from error
    return saved_model


def check_is_estimator_checkpoint(folder: Path) -> None:
    """Reject directories that are not a checkpoint of an ``EstimatorTrial``.

    Reads only JSON descriptions. A Determined checkpoint has ``load_data.json``, or only
    ``metadata.json``. Its pickles (``rng_state.pkl``, ``workload_sequencer.pkl``) are not opened. A
    directory without a description is accepted, because later steps check for the needed files.

    Raises:
        CheckpointNotFoundError: If the directory does not exist.
        InvalidCheckpointError: If it describes another kind of checkpoint, or its description
            cannot be read.
    """
    if (find_checkpoint_directory(folder) / "trial.json").exists():
        read_trial_file(folder, _FRAMEWORK)
        return
    load_data = _read_json(folder / "load_data.json")
    if load_data is not None:
        if load_data.get("trial_type", _TRIAL_TYPE) != _TRIAL_TYPE:
            raise _other_checkpoint_error(folder, f"of a {load_data['trial_type']} of Determined")
        return
    metadata = _read_json(folder / "metadata.json") or {}
    if metadata.get("format", _FORMAT) != _FORMAT:
        kind = f"with the format {metadata['format']!r} (framework {metadata.get('framework')!r})"
        raise _other_checkpoint_error(folder, kind)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise InvalidCheckpointError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise InvalidCheckpointError(
            f"{path} is damaged: it holds a {type(value).__name__}, not an object"
        )
    return value


def _other_checkpoint_error(folder: Path, kind: str) -> InvalidCheckpointError:
    return InvalidCheckpointError(
        f"{folder} is a checkpoint {kind}, not of an EstimatorTrial.\n"
        "Each framework's plugin loads its own checkpoints."
    )
