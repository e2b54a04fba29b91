"""`Checkpoint`, the client's view of a checkpoint."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.atomic_files import replace_file
from detcore.client.arguments import check_keys, check_metadata
from detcore.client.transport import TransportUser
from detcore.contract.errors import (
    InvalidArgumentError,
    InvalidCheckpointError,
    PluginNotFoundError,
)
from detcore.contract.values import Framework
from detcore.environment import read_environment
from detcore.plugins import PluginManager
from detcore.trial import check_requirements, find_checkpoint_directory, import_object

if TYPE_CHECKING:
    from detcore.client.documents import Document
    from detcore.client.transport import Transport


_METADATA_FILE = "metadata.json"
_MAX_BYTES = 64 << 20
_SAVED_MODEL = "saved_model"
# Formats that the earlier system wrote, and the distributions that read them.
_LEGACY = {
    "tensorflow": "detcore-estimator",
    f"tensorflow:{_SAVED_MODEL}": "detcore-estimator",
    "tensorflow:h5": "detcore-keras",
    "tensorflow:saved_weights": "detcore-keras",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTrainingMetadata:
    """The experiment and the trial that saved a checkpoint."""

    experiment_config: Mapping[str, Any]
    experiment_id: int
    trial_id: int
    hparams: Mapping[str, Any]
    validation_metrics: Mapping[str, Any]


class Checkpoint(TransportUser):
    """A checkpoint: its files and its record.

    Attributes:
        uuid: UUID of the checkpoint.
        experiment_config: Configuration of its experiment. Secrets are masked with ``********``.
        experiment_id: Id of its experiment.
        trial_id: Id of its trial.
        hparams: Hyperparameters of the trial.
        batch_number: Batches completed when it was saved; alias: `steps_completed`.
        start_time: Start of saving, ISO 8601 in UTC.
        end_time: Completion time, ISO 8601 in UTC, or None; alias: `report_time`.
        resources: File sizes in bytes by file name.
        validation: ``{"metrics": {"validation_metrics": {...}, "num_inputs": ...}}`` of the
            validation at its batch; empty without a validation.
        determined_version: None, except in checkpoints of the earlier system.
        framework: Framework that wrote the checkpoint, such as ``"keras"``, or None.
        format: None, except in checkpoints of the earlier system.
        model_version: Version number in the model `model_name`, or None.
        model_name: Model through which the checkpoint was accessed, or None.
        metadata: Metadata saved with the checkpoint or added later.
        state: ACTIVE (being saved), COMPLETED, DAMAGED, PARTIALLY_DELETED, DELETING or DELETED.
    """

    def __init__(
        self,
        uuid: str,
        experiment_config: dict[str, Any],
        experiment_id: int,
        trial_id: int,
        hparams: dict[str, Any],
        batch_number: int,
        start_time: str,
        end_time: str | None,
        resources: dict[str, Any],
        validation: dict[str, Any],
        determined_version: str | None = None,
        framework: str | None = None,
        format: str | None = None,
        model_version: int | None = None,
        model_name: str | None = None,
        metadata: dict[str, Any] | None = None,
        master: str | None = None,
        *,
        state: str = "COMPLETED",
        transport: Transport | None = None,
    ) -> None:
        """Set the fields; `Determined.get_checkpoint` reads them from the store."""
        super().__init__(master, transport)
        self.uuid = uuid
        self.experiment_config = experiment_config
        self.experiment_id = experiment_id
        self.trial_id = trial_id
        self.hparams = hparams
        self.batch_number = batch_number
        self.start_time = start_time
        self.end_time = end_time
        self.resources = resources
        self.validation = validation
        self.determined_version = determined_version
        self.framework = framework
        self.format = format
        self.model_version = model_version
        self.model_name = model_name
        self.metadata = {} if metadata is None else metadata
        self.state = state

    @classmethod
    def from_document(
        cls,
        document: Document,
        transport: Transport | None,
        *,
        master: str | None = None,
        model_name: str | None = None,
        model_version: int | None = None,
    ) -> Checkpoint:
        """Create a checkpoint from a document of a store; see `Transport`."""
        metadata = document["metadata"]
        return cls(
            uuid=document["uuid"],
            experiment_config=document["experiment_config"],
            experiment_id=document["experiment_id"],
            trial_id=document["trial_id"],
            hparams=document["hparams"],
            batch_number=document["steps_completed"],
            start_time=document["started_at"],
            end_time=document["committed_at"],
            resources=document["resources"],
            validation=_make_validation(document["validation"]),
            determined_version=metadata.get("determined_version"),
            framework=metadata.get("framework"),
            format=metadata.get("format"),
            model_version=model_version,
            model_name=model_name,
            metadata=metadata,
            master=master,
            state=document["state"],
            transport=transport,
        )

    def __repr__(self) -> str:
        version = f", model={self.model_name!r} {self.model_version}" if self.model_name else ""
        return f"Checkpoint(uuid={self.uuid}, trial_id={self.trial_id}{version})"

    @property
    def steps_completed(self) -> int:
        """Batches completed when the checkpoint was saved."""
        return self.batch_number

    @property
    def report_time(self) -> str | None:
        """Completion time, ISO 8601 in UTC, or None."""
        return self.end_time

    @property
    def training(self) -> CheckpointTrainingMetadata:
        """The experiment and the trial that saved the checkpoint."""
        metrics = self.validation.get("metrics", {}).get("validation_metrics", {})
        return CheckpointTrainingMetadata(
            experiment_config=self.experiment_config,
            experiment_id=self.experiment_id,
            trial_id=self.trial_id,
            hparams=self.hparams,
            validation_metrics=metrics,
        )

    # -- files ------------------------------------------------------------------------------------

    def download(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy its files to a directory, and check each file against its digest.

        If the directory already contains the checkpoint, its files are only checked. If a file is
        missing or has changed, the checkpoint is downloaded again. (``metadata.json`` may be
        changed, and is written if the checkpoint has none.)

        Args:
            path: The directory; default: ``checkpoints/<uuid>`` in the working directory.

        Returns:
            The directory.

        Raises:
            CheckpointStateError: If the checkpoint is not complete, or was deleted.
            CheckpointCorruptError: If a file in the storage is missing or has changed.
            InvalidCheckpointError: If the directory contains another checkpoint.
            StorageFullError: If no space is left.
        """
        folder = os.fspath(path) if path is not None else os.path.join("checkpoints", self.uuid)
        self._transport.download_checkpoint(self.uuid, os.path.abspath(folder))
        if not os.path.lexists(os.path.join(folder, _METADATA_FILE)):
            self.write_metadata_file(os.path.join(folder, _METADATA_FILE))
        return folder

    def load(
        self,
        path: str | os.PathLike[str] | None = None,
        tags: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Download the checkpoint if necessary, and load it into memory.

        **This may run code from the checkpoint**; see `load_from_path`.

        Args:
            path: See `download`.
            tags: See `load_from_path`.
            kwargs: See `load_from_path`.

        Raises:
            DetcoreError: As `download` and `load_from_path`.
        """
        return self.load_from_path(self.download(path), tags, **kwargs)

    @staticmethod
    def load_from_path(
        path: str | os.PathLike[str], tags: Sequence[str] | None = None, **kwargs: Any
    ) -> Any:
        """Load the checkpoint in a directory into memory with the plugin of its framework.

        **This may run code from the checkpoint**: the trial class of a Keras or PyTorch trial
        builds the model. Load only checkpoints of people you trust.

        Args:
            path: The checkpoint's directory.
            tags: Tags of the graph of a TensorFlow SavedModel; default ``["serve"]``.
            kwargs: Passed to the plugin's function, such as ``map_location`` for PyTorch.

        Returns:
            The result of the plugin's function: a Keras model, the result of
            ``tf.saved_model.load``, or a PyTorch model.

        Raises:
            CheckpointNotFoundError: If the directory does not exist.
            InvalidCheckpointError: If its framework is unknown, or a file is damaged.
            PluginNotFoundError: If no plugin can load it, or a package that the plugin requires is
                missing; the message names the package.
            InvalidArgumentError: If the plugin's function does not accept these arguments.
        """
        folder = find_checkpoint_directory(path)
        written_by = _find_writer(folder)
        framework = _find_framework(written_by, folder)
        check_requirements(framework)
        load = import_object(str(framework.load_checkpoint))
        arguments = dict(kwargs) if tags is None else {"tags": tags, **kwargs}
        _check_arguments(load, arguments, framework)
        return load(str(folder), **arguments)

    def delete(self) -> None:
        """Delete its files. Its record stays. Further calls have no effect.

        Raises:
            CheckpointStateError: If it is being saved, or is in the model registry. Nothing was
                deleted.
        """
        self._update_from(self._transport.delete_checkpoint(self.uuid, None))

    def remove_files(self, globs: Iterable[str]) -> None:
        """Delete some of its files.

        Args:
            globs: Patterns as in `pathlib.Path.glob`. A matching directory is deleted with its
                content. ``["**/*"]`` deletes everything.

        Raises:
            CheckpointStateError: If it is not complete, or is in the model registry. Nothing was
                deleted.
            UnsafePathError: If a pattern leaves the checkpoint.
        """
        patterns = check_keys("globs", globs)
        self._update_from(self._transport.delete_checkpoint(self.uuid, patterns))

    # -- metadata ---------------------------------------------------------------------------------

    def add_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add to its metadata. Values of existing keys are replaced.

        Downloaded copies of the checkpoint keep their ``metadata.json``.

        Args:
            metadata: A dictionary of JSON values.

        Raises:
            InvalidArgumentError: If it cannot be stored as JSON.
        """
        plain = check_metadata(metadata)
        self._update_from(self._transport.add_checkpoint_metadata(self.uuid, plain))

    def remove_metadata(self, keys: Iterable[str]) -> None:
        """Remove top-level keys from its metadata. Missing keys are ignored.

        Raises:
            InvalidArgumentError: If `keys` is not a list of strings.
        """
        texts = check_keys("keys", keys)
        self._update_from(self._transport.remove_checkpoint_metadata(self.uuid, texts))

    def write_metadata_file(self, path: str | os.PathLike[str]) -> None:
        """Write its metadata to a JSON file. An existing file is replaced."""
        text = json.dumps(self.metadata, indent=2, sort_keys=True) + "\n"
        replace_file(Path(path), text.encode())

    def _update_from(self, document: Document) -> None:
        """Update the attributes from a document of a store."""
        self.metadata = document["metadata"]
        self.resources = document["resources"]
        self.state = document["state"]


def _make_validation(document: Document | None) -> dict[str, Any]:
    if document is None:
        return {}
    return {
        "metrics": {
            "validation_metrics": document["metrics"],
            "num_inputs": document["n_records"],
        }
    }


def _find_writer(folder: Path) -> str:
    """Return the framework of a checkpoint, with the format for the earlier system's files."""
    for name in ("trial.json", "manifest.json", "metadata.json"):
        fields = _read_json(folder / name)
        if name == "manifest.json":
            fields = fields.get("metadata", {})
        framework = _get_framework(fields) if isinstance(fields, Mapping) else None
        if framework is not None:
            return framework
    raise InvalidCheckpointError(
        f"unknown framework of the checkpoint in {folder}: neither trial.json nor manifest.json "
        "nor metadata.json names it.\n"
        "If the checkpoint was downloaded in part, download all files. A checkpoint that a script "
        "saved with the Core API can only be loaded by the script."
    )


def _get_framework(fields: Mapping[str, Any]) -> str | None:
    framework = fields.get("framework")
    if not isinstance(framework, str) or not framework:
        olds = [name for name in ("torch", "tensorflow") if f"{name}_version" in fields]
        if not olds:
            return None
        framework = olds[0]
    name = framework.partition("-")[0] if framework.startswith(("torch-", "tensorflow-")) else (
        framework
    )  # fmt: skip
    file_format = fields.get("format")
    is_tensorflow = name == "tensorflow" and isinstance(file_format, str)
    return f"{name}:{file_format}" if is_tensorflow else name


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
        fields = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(fields, dict):
            raise ValueError("it does not contain a JSON object")
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpointError(
            f"{path} is damaged: {error}\nDownload the checkpoint again."
        ) from error
    return fields


def _find_framework(written_by: str, folder: Path) -> Framework:
    environment = read_environment()
    manager = PluginManager(environment)
    frameworks = manager.frameworks()
    writer = frameworks.get(written_by)
    loaders = [framework for framework in frameworks.values() if framework.load_checkpoint]
    if writer is not None and writer.load_checkpoint:
        return writer
    readers = [framework for framework in loaders if written_by in framework.reads]
    if readers:
        return readers[0]
    if writer is not None:
        raise PluginNotFoundError(
            f"{folder} was written by the framework {written_by!r}, whose plugin cannot load "
            "checkpoints (it registers no load_checkpoint).\n"
            "Contact the authors of the plugin, or read the files directly."
        )
    distribution = _LEGACY.get(written_by, f"detcore-{written_by.partition(':')[0]}")
    raise PluginNotFoundError(
        f"{folder} was written by the framework {written_by!r}, and no installed plugin loads its "
        f"checkpoints.\nInstalled frameworks: {', '.join(sorted(frameworks)) or 'none'}.\n"
        f"Install the plugin into this environment ({sys.prefix}):\n  pip install {distribution}\n"
        "If it is installed, it may be disabled or broken. Check with: detcore plugins doctor"
    )


def _check_arguments(load: Any, arguments: Mapping[str, Any], framework: Framework) -> None:
    try:
        signature = inspect.signature(load)
    except (TypeError, ValueError):  # a callable without a signature
        return
    try:
        signature.bind("path", **arguments)
    except TypeError as error:
        raise InvalidArgumentError(
            f"checkpoints of the framework {framework.name!r} cannot be loaded with "
            f"{', '.join(arguments) or 'these arguments'}: {error}.\n"
            f"The arguments are passed to {framework.load_checkpoint}{signature}."
        ) from error
