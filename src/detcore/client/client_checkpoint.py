"""A checkpoint, as the client sees it."""

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
from detcore.client.transport import Connected
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
# Formats that the earlier system wrote, and the distributions that read them here.
_LEGACY = {
    "tensorflow": "detcore-estimator",
    f"tensorflow:{_SAVED_MODEL}": "detcore-estimator",
    "tensorflow:h5": "detcore-keras",
    "tensorflow:saved_weights": "detcore-keras",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTrainingMetadata:
    """The experiment and the trial that a checkpoint came from."""

    experiment_config: Mapping[str, Any]
    experiment_id: int
    trial_id: int
    hparams: Mapping[str, Any]
    validation_metrics: Mapping[str, Any]


class Checkpoint(Connected):
    """A checkpoint: its files and its record.

    Attributes:
        uuid: Its UUID.
        experiment_config: The configuration of its experiment; secrets are shown as ``********``.
        experiment_id: Its experiment.
        trial_id: Its trial.
        hparams: The trial's hyperparameters.
        batch_number: Batches completed when it was made; also called `steps_completed`.
        start_time: When saving it began, ISO 8601 in UTC.
        end_time: When it was complete, ISO 8601 in UTC, or None; also called `report_time`.
        resources: Its files and their sizes in bytes.
        validation: ``{"metrics": {"validation_metrics": {...}, "num_inputs": ...}}`` of the
            validation at its batch; empty without one.
        determined_version: None, but in objects of other makers.
        framework: The framework that wrote it, such as ``"keras"``, or None.
        format: None, but in objects of other makers.
        model_version: Its number in `model_name`, where it came from the model registry.
        model_name: The model that it was asked for as a version of.
        metadata: Saved with it, or added since.
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
        """Make one from a store's document; see `Transport`."""
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
            validation=_validation(document["validation"]),
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
        """Batches completed when it was made."""
        return self.batch_number

    @property
    def report_time(self) -> str | None:
        """When it was complete, ISO 8601 in UTC, or None."""
        return self.end_time

    @property
    def training(self) -> CheckpointTrainingMetadata:
        """The experiment and the trial that it came from."""
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
        """Copy its files to a folder, each checked against its digest.

        A folder that holds it already is checked and left alone; where a file is missing or has
        changed, the checkpoint is fetched again. (``metadata.json`` may be changed, and is written
        if the checkpoint has none.)

        Args:
            path: The folder; default: ``checkpoints/<uuid>`` below the current one.

        Returns:
            The folder.

        Raises:
            CheckpointStateError: If it is not complete, or was deleted.
            CheckpointCorruptError: If a file in the storage is missing or has changed.
            InvalidCheckpointError: If the folder holds another checkpoint.
            StorageFullError: If there is no room for it.
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
        """Download it, unless it is there, and load it into memory.

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
        """Load the checkpoint in a folder into memory, by the plugin of its framework.

        **This may run code from the checkpoint**: a Keras or PyTorch trial's own class builds its
        model. Load only checkpoints of people you trust.

        Args:
            path: The checkpoint's folder.
            tags: For SavedModels of TensorFlow: the tags of the graph; default ``["serve"]``.
            kwargs: Passed to the plugin's function, such as ``map_location`` for PyTorch.

        Returns:
            The result of the plugin's function: a Keras model, the result of
            ``tf.saved_model.load``, or a PyTorch model.

        Raises:
            CheckpointNotFoundError: If there is no such folder.
            InvalidCheckpointError: If it does not say which framework wrote it, or says so in a
                file that is damaged.
            PluginNotFoundError: If no plugin loads it, or a package that the plugin needs is
                missing; the message says which one would.
            InvalidArgumentError: If the plugin's function does not take these arguments.
        """
        folder = find_checkpoint_directory(path)
        written_by = _written_by(folder)
        framework = _find_framework(written_by, folder)
        check_requirements(framework)
        load = import_object(str(framework.load_checkpoint))
        given = dict(kwargs) if tags is None else {"tags": tags, **kwargs}
        _check_arguments(load, given, framework)
        return load(str(folder), **given)

    def delete(self) -> None:
        """Delete its files; its record stays. Deleting it again is fine.

        Raises:
            CheckpointStateError: If it is being saved, or in the model registry; nothing was
                deleted.
        """
        self._take(self._transport.delete_checkpoint(self.uuid, None))

    def remove_files(self, globs: Iterable[str]) -> None:
        """Delete some of its files.

        Args:
            globs: Patterns as in `pathlib.Path.glob`; a folder that matches goes with all that is
                in it. ``["**/*"]`` deletes everything.

        Raises:
            CheckpointStateError: If it is not complete, or in the model registry; nothing was
                deleted.
            UnsafePathError: If a pattern leads out of the checkpoint.
        """
        patterns = check_keys("globs", globs)
        self._take(self._transport.delete_checkpoint(self.uuid, patterns))

    # -- metadata ---------------------------------------------------------------------------------

    def add_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add to its metadata; of keys that are there already the values are replaced.

        Copies of the checkpoint keep the ``metadata.json`` that they have.

        Args:
            metadata: A dictionary that JSON can say.

        Raises:
            InvalidArgumentError: If it cannot.
        """
        plain = check_metadata(metadata)
        self._take(self._transport.add_checkpoint_metadata(self.uuid, plain))

    def remove_metadata(self, keys: Iterable[str]) -> None:
        """Remove top-level keys from its metadata; those that are not there are skipped.

        Raises:
            InvalidArgumentError: If `keys` is not a list of texts.
        """
        texts = check_keys("keys", keys)
        self._take(self._transport.remove_checkpoint_metadata(self.uuid, texts))

    def write_metadata_file(self, path: str | os.PathLike[str]) -> None:
        """Write its metadata to a JSON file, which is replaced if it is there."""
        text = json.dumps(self.metadata, indent=2, sort_keys=True) + "\n"
        replace_file(Path(path), text.encode())

    def _take(self, document: Document) -> None:
        """Take over the values of a store's document."""
        self.metadata = document["metadata"]
        self.resources = document["resources"]
        self.state = document["state"]


def _validation(document: Document | None) -> dict[str, Any]:
    if document is None:
        return {}
    return {
        "metrics": {
            "validation_metrics": document["metrics"],
            "num_inputs": document["n_records"],
        }
    }


def _written_by(folder: Path) -> str:
    """Return the framework of a checkpoint, with the format where the earlier system says one."""
    for name in ("trial.json", "manifest.json", "metadata.json"):
        fields = _read(folder / name)
        if name == "manifest.json":
            fields = fields.get("metadata", {})
        found = _framework_of(fields) if isinstance(fields, Mapping) else None
        if found is not None:
            return found
    raise InvalidCheckpointError(
        f"{folder} does not say which framework wrote it: none of trial.json, manifest.json and "
        "metadata.json names one.\n"
        "A trial's checkpoints do. If it was downloaded in part, download all of it; what a script "
        "saved with the Core API is loaded by the script."
    )


def _framework_of(fields: Mapping[str, Any]) -> str | None:
    framework = fields.get("framework")
    if not isinstance(framework, str) or not framework:
        olds = [name for name in ("torch", "tensorflow") if f"{name}_version" in fields]
        if not olds:
            return None
        framework = olds[0]
    name = framework.partition("-")[0] if framework.startswith(("torch-", "tensorflow-")) else (
        framework
    )  # fmt: skip
    written = fields.get("format")
    return f"{name}:{written}" if name == "tensorflow" and isinstance(written, str) else name


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
        fields = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(fields, dict):
            raise ValueError("it holds no JSON object")
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpointError(
            f"{path} is damaged: {error}\nDownload the checkpoint again."
        ) from error
    return fields


def _find_framework(written_by: str, folder: Path) -> Framework:
    environment = read_environment()
    manager = PluginManager(environment)
    frameworks = manager.frameworks()
    own = frameworks.get(written_by)
    loaders = [framework for framework in frameworks.values() if framework.load_checkpoint]
    if own is not None and own.load_checkpoint:
        return own
    reading = [framework for framework in loaders if written_by in framework.reads]
    if reading:
        return reading[0]
    if own is not None:
        raise PluginNotFoundError(
            f"{folder} was written by the framework {written_by!r}, and the plugin that registers "
            "it cannot load checkpoints (it names no load_checkpoint).\n"
            "Ask the plugin's authors, or read its files yourself."
        )
    distribution = _LEGACY.get(written_by, f"detcore-{written_by.partition(':')[0]}")
    raise PluginNotFoundError(
        f"{folder} was written by the framework {written_by!r}, and no installed plugin loads its "
        f"checkpoints.\nFrameworks here: {', '.join(sorted(frameworks)) or 'none'}.\n"
        f"Install it into this environment ({sys.prefix}):\n  pip install {distribution}\n"
        "If it is installed, it may be switched off or broken: detcore plugins doctor"
    )


def _check_arguments(load: Any, given: Mapping[str, Any], framework: Framework) -> None:
    try:
        signature = inspect.signature(load)
    except (TypeError, ValueError):  # a callable that does not tell
        return
    try:
        signature.bind("path", **given)
    except TypeError as error:
        raise InvalidArgumentError(
            f"checkpoints of the framework {framework.name!r} are not loaded with "
            f"{', '.join(given) or 'these arguments'}: {error}.\n"
            f"What is passed on goes to {framework.load_checkpoint}{signature}."
        ) from error
