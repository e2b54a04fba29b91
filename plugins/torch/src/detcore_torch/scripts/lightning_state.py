"""Lightning's part of a checkpoint: loops, callbacks, and the content that hooks add or change."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from detcore.trial import read_own_state, read_values
from detcore_torch.libraries import torch
from detcore_torch.state.model_attributes import restore_buffers
from detcore_torch.state.shared_state import attributes_in, load_models
from detcore_torch.state.state_files import read_state
from detcore_torch.state.user_attributes import TorchCodec, UserAttributes, name_callbacks

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer

    from detcore import core


FRAMEWORK = "lightning"
_PACKAGES = ("lightning", "pytorch_lightning", "detcore_torch")
# Constructor arguments of objects that the script creates again.
_SKIPPED_KEYS = (
    "hparams_name", "hyper_parameters", "hparams_type", "datamodule_hparams_name",
    "datamodule_hyper_parameters",
)  # fmt: skip
# Time of ``ModelCheckpoint(train_time_interval=...)`` on a clock that restarts with the machine.
_PROCESS_TIME = "_last_time_checked"


class StateIO:
    """Saves the trainer's state through detcore; other checkpoints are saved as before.

    Attributes:
        original: Saves the checkpoints of the user's own callbacks.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.original = trainer.strategy.checkpoint_io
        self._trainer = trainer
        self._captured: dict[str, Any] = {}
        self._without_folder = [
            callback
            for callback in trainer.checkpoint_callbacks
            if getattr(callback, "dirpath", "") is None
        ]

    def __getattr__(self, name: str) -> object:
        return getattr(self.original, name)

    def capture_trainer(self) -> dict[str, Any]:
        """Return Lightning's part of the state, which is empty on workers other than the chief."""
        self._captured = {}
        self._trainer.save_checkpoint(FRAMEWORK, weights_only=False)
        return self._captured

    def save_checkpoint(
        self, checkpoint: Mapping[str, object], path: str | Path, *args: object, **kw: object
    ) -> None:
        """Store a checkpoint for detcore, or save a user's checkpoint."""
        if path == FRAMEWORK:
            content = {key: value for key, value in checkpoint.items() if key not in _SKIPPED_KEYS}
            self._captured = _without_copies(content, self._list_saved_states())
        else:
            self.original.save_checkpoint(checkpoint, path, *args, **kw)

    def load_checkpoint(self, path: str | Path, *args: object, **kw: object) -> object:
        """Read a checkpoint; the callback restores optimizers and schedulers."""
        folder = Path(path)
        if not (folder / f"{FRAMEWORK}.json").is_file():
            return self.original.load_checkpoint(path, *args, **kw)
        model = self._trainer.lightning_module
        load_models([model], folder)
        attributes_in([model], folder, restore_buffers)()
        document = read_state(folder, FRAMEWORK)["trainer"]
        # Lightning copies the weights into the model. Hooks may use the other states.
        weights = {
            name: value.detach().clone() if isinstance(value, torch.Tensor) else value
            for name, value in model.state_dict().items()
        }
        states = {"state_dict": weights, "optimizer_states": [], "lr_schedulers": []}
        copies = {key: states[name] for key, name in document.pop("copies").items()}
        changes = document.get("state_dict", {})
        for callback in self._without_folder:
            # A logger may have another directory in each process. The first has the best files.
            state = document.get("callbacks", {}).get(callback.state_key, {})
            callback.dirpath = state.get("dirpath", callback.dirpath)
        return {**states, **document, **copies, "state_dict": {**weights, **changes}}

    def _list_saved_states(self) -> dict[str, Any]:
        """Return the parts of Lightning's checkpoints that `TrainingState` already saves."""
        trainer = self._trainer
        return {
            "state_dict": trainer.strategy.lightning_module_state_dict(),
            "optimizer_states": [
                trainer.strategy.optimizer_state(optimizer) for optimizer in trainer.optimizers
            ],
            "lr_schedulers": [
                config.scheduler.state_dict() for config in trainer.lr_scheduler_configs
            ],
        }


def _without_copies(checkpoint: dict[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Replace values that are saved elsewhere with their names; hooks may have moved them."""
    copies = {
        key: name
        for key, value in checkpoint.items()
        for name, state in saved.items()
        if value and _is_same(value, state)
    }
    content = {key: value for key, value in checkpoint.items() if key not in copies}
    return {**content, "copies": copies}


def _is_same(first: Any, second: Any) -> bool:
    """Whether two states are equal, and their tensors share memory."""
    if isinstance(first, torch.Tensor):
        return (
            isinstance(second, torch.Tensor)
            and first.data_ptr() == second.data_ptr()
            and first.shape == second.shape
        )
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return list(first) == list(second) and all(_is_same(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(_is_same, first, second))
    return first is second or bool(np.all(first == second))


class CallbackStates:
    """State of callbacks and metrics on each worker, besides the results of ``state_dict``.

    This state consists of the attributes of the script's callbacks and of checkpoint callbacks, the
    metrics that callbacks monitor, and partial sums of metrics that are logged over an epoch.

    Args:
        trainer: The trainer, before it trains.
        model: Its model.
    """

    def __init__(self, trainer: Trainer, model: LightningModule) -> None:
        self._trainer = trainer
        self._results: dict[str, dict[str, Any]] = {}
        callbacks = [
            callback
            for callback in trainer.callbacks
            if type(callback).__module__.partition(".")[0] not in _PACKAGES
            or callback in trainer.checkpoint_callbacks
        ]
        parts = [part for part in vars(trainer).values() if hasattr(part, "__dict__")]
        names = dict(name_callbacks(callbacks))
        self._others = [callback for callback in trainer.callbacks if callback not in callbacks]
        self._attributes = UserAttributes(
            names,
            functions={"model": model, **names},
            # `overwrite_later_files` replaces the method.
            ignored={name: ["file_exists", _PROCESS_TIME] for name in names},
            ignored_objects=[trainer, model, *parts, *trainer.loggers],
        )

    def note_objects(self) -> None:
        """Record the objects that the callbacks created before training."""
        self._attributes.note_objects()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this worker."""
        return {
            "attributes": self._attributes.capture(),
            "metrics": dict(self._trainer.callback_metrics),
            "results": {
                key: {"value": result.value, "count": getattr(result, "cumulated_batch_size", None)}
                for key, result in self._trainer.fit_loop.epoch_loop._results.items()
                if result.is_tensor and result.meta.on_epoch and not result.has_reset
            },
        }

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restore a result of `state_dict`."""
        self._attributes.restore(states["attributes"])
        self._trainer._logger_connector._callback_metrics.update(states["metrics"])
        self._results = dict(states["results"])

    def read_live(self) -> dict[str, Any]:
        """Return the trainer's progress, its metrics, and the state of callbacks by name."""
        trainer, codec = self._trainer, TorchCodec()
        metrics = dict(trainer._logger_connector._callback_metrics)
        values = self._attributes.read_live("callback ")
        for name in ("current_epoch", "global_step", "should_stop", "accumulate_grad_batches"):
            values[f"trainer.{name}"] = getattr(trainer, name)
        values |= read_values(metrics, "trainer.callback_metrics", codec=codec)
        for name, callback in name_callbacks(self._others):
            values |= read_own_state(callback.state_dict, f"callback {name}", codec=codec)
        return values

    def merge_results(self) -> None:
        """Add the partial sums of a checkpoint to the metrics that the first batch logs, once."""
        results = self._trainer.fit_loop.epoch_loop._results
        for key in [key for key in self._results if key in results]:
            part, result = self._results.pop(key), results[key]
            value = part["value"].to(result.value.device)
            if result.meta.is_max_reduction or result.meta.is_min_reduction:
                result.value = result.meta.reduce_fx(value, result.value)
            else:
                result.value = value + result.value
            if part["count"] is not None:
                result.cumulated_batch_size = part["count"] + result.cumulated_batch_size
            result._computed = None


def resume_averaging(trainer: Trainer) -> None:
    """Make ``StochasticWeightAveraging`` create its scheduler, if the checkpoint has its state.

    Lightning does so only at the start of an epoch, so a run that resumes in the middle of an epoch
    would lose the scheduler.
    """
    for callback in trainer.callbacks:
        if not _is_averaging(callback) or callback._scheduler_state is None:
            continue
        latest_epoch, callback._latest_update_epoch = callback._latest_update_epoch, math.inf
        try:
            started = _StartedEpoch(trainer, callback.swa_start)
            callback.on_train_epoch_start(started, trainer.lightning_module)
        finally:
            callback._latest_update_epoch = latest_epoch


def find_averaging_schedulers(trainer: Trainer) -> list[Any]:
    """Return the schedulers that ``StochasticWeightAveraging`` has created."""
    schedulers = [
        callback._swa_scheduler for callback in trainer.callbacks if _is_averaging(callback)
    ]
    return [scheduler for scheduler in schedulers if scheduler is not None]


def needs_statistics_epoch(trainer: Trainer) -> bool:
    """Whether another epoch follows training, for the batch statistics of averaged weights."""
    return any(
        _is_averaging(callback)
        and callback._model_contains_batch_norm
        and callback._max_epochs == trainer.current_epoch
        for callback in trainer.callbacks
    )


def _is_averaging(callback: Callback) -> bool:
    return any(kind.__name__ == "StochasticWeightAveraging" for kind in type(callback).__mro__)


class _StartedEpoch:
    """A trainer that reports another current epoch."""

    def __init__(self, trainer: Trainer, epoch: int) -> None:
        self._trainer = trainer
        self.current_epoch = epoch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


def list_files(trainer: Trainer) -> dict[str, list[str]]:
    """Return the files in the directories of ``ModelCheckpoint``, by directory."""
    folders = {_find_folder(callback) for callback in trainer.checkpoint_callbacks}
    return {folder: sorted(os.listdir(folder)) for folder in folders if folder}


def read_first_files(trainer: Trainer, context: core.Context) -> dict[str, list[str]]:
    """Return the result of `list_files` at the first start of the trial.

    A process that is killed before its first checkpoint also leaves files of ``ModelCheckpoint``.
    """
    files: dict[str, list[str]] = {}
    if context.distributed.rank == 0 and context.info is not None:
        path = Path(context.info.trial_dir) / "lightning-files.json"
        if not path.exists():
            temporary = path.with_suffix(".tmp")
            temporary.write_text(json.dumps(list_files(trainer)))
            temporary.replace(path)
        files = json.loads(path.read_text())
    return dict(context.distributed.broadcast(files))


def overwrite_later_files(trainer: Trainer, files: Mapping[str, list[str]]) -> None:
    """Let each ``ModelCheckpoint`` overwrite files that a killed process wrote later.

    Otherwise it would add version numbers to file names, unlike an uninterrupted run.

    Args:
        trainer: The trainer.
        files: The result of `list_files` when the checkpoint was saved.
    """
    for callback in trainer.checkpoint_callbacks:
        folder = _find_folder(callback)
        if folder is not None:
            names = set(os.listdir(folder)).difference(files.get(folder, []))
            later = {os.path.join(folder, name) for name in names}
            callback.file_exists = _without_later(callback.file_exists, later)


def _without_later(file_exists: Callable[..., bool], later: set[str]) -> Callable[..., bool]:
    def exists(path: str | Path, trainer: Trainer) -> bool:
        is_present = file_exists(path, trainer)  # by all workers
        if os.fspath(path) in later:
            later.remove(os.fspath(path))  # it is overwritten now
            return False
        return is_present

    return exists


def _find_folder(callback: Callback) -> str | None:
    folder = getattr(callback, "dirpath", None)
    return folder if folder is not None and os.path.isdir(folder) else None
