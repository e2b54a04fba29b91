"""Lightning's part of a checkpoint: loops, callbacks, and what hooks add to it or change in it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from detcore_torch.libraries import torch
from detcore_torch.state.model_attributes import restore_buffers
from detcore_torch.state.shared_state import attributes_in, load_models
from detcore_torch.state.state_files import read_state
from detcore_torch.state.user_attributes import UserAttributes, name_callbacks

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer

    from detcore import core


FRAMEWORK = "lightning"
_PACKAGES = ("lightning", "pytorch_lightning", "detcore_torch")
# Arguments of constructors: the script makes those objects again.
_NOT_KEPT = (
    "hparams_name", "hyper_parameters", "hparams_type", "datamodule_hparams_name",
    "datamodule_hyper_parameters",
)  # fmt: skip
# Time of ``ModelCheckpoint(train_time_interval=...)`` on a clock that starts with the machine.
_PROCESS_TIME = "_last_time_checked"


class StateIO:
    """Hands the trainer's checkpoints to detcore, and reads them; others are the user's.

    Attributes:
        original: Saves the checkpoints of the user's own callbacks.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.original = trainer.strategy.checkpoint_io
        self._trainer = trainer
        self._captured: dict[str, Any] = {}
        self._without_folder = [
            each for each in trainer.checkpoint_callbacks if getattr(each, "dirpath", "") is None
        ]

    def __getattr__(self, name: str) -> object:
        return getattr(self.original, name)

    def capture(self) -> dict[str, Any]:
        """Return Lightning's part of the state; empty on workers other than the chief."""
        self._captured = {}
        self._trainer.save_checkpoint(FRAMEWORK, weights_only=False)
        return self._captured

    def save_checkpoint(
        self, checkpoint: Mapping[str, object], path: str | Path, *args: object, **kw: object
    ) -> None:
        """Keep a checkpoint for detcore, or save a user's."""
        if path == FRAMEWORK:
            kept = {key: value for key, value in checkpoint.items() if key not in _NOT_KEPT}
            self._captured = _without_copies(kept, self._list_saved_states())
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
        # Lightning copies the first of these into the model, and hooks may use the other ones.
        weights = {
            name: value.detach().clone() if isinstance(value, torch.Tensor) else value
            for name, value in model.state_dict().items()
        }
        states = {"state_dict": weights, "optimizer_states": [], "lr_schedulers": []}
        copies = {key: states[name] for key, name in document.pop("copies").items()}
        changed = document.get("state_dict", {})
        for callback in self._without_folder:
            # A logger may have another folder in each process. The best files are in the first.
            state = document.get("callbacks", {}).get(callback.state_key, {})
            callback.dirpath = state.get("dirpath", callback.dirpath)
        return {**states, **document, **copies, "state_dict": {**weights, **changed}}

    def _list_saved_states(self) -> dict[str, Any]:
        """Return the parts of Lightning's checkpoints that `TrainingState` saves."""
        trainer = self._trainer
        return {
            "state_dict": trainer.strategy.lightning_module_state_dict(),
            "optimizer_states": [
                trainer.strategy.optimizer_state(each) for each in trainer.optimizers
            ],
            "lr_schedulers": [
                config.scheduler.state_dict() for config in trainer.lr_scheduler_configs
            ],
        }


def _without_copies(checkpoint: dict[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Replace values that are saved elsewhere by their names; hooks may have moved them."""
    copies = {
        key: name
        for key, value in checkpoint.items()
        for name, state in saved.items()
        if value and _is_same(value, state)
    }
    kept = {key: value for key, value in checkpoint.items() if key not in copies}
    return {**kept, "copies": copies}


def _is_same(first: Any, second: Any) -> bool:
    """Whether two states are equal, and tensors in them are the same memory."""
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

    These are attributes of the script's own callbacks and of those that keep checkpoints, the
    metrics that callbacks monitor, and the parts of those that are logged over an epoch.

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
        parts = [each for each in vars(trainer).values() if hasattr(each, "__dict__")]
        named = dict(name_callbacks(callbacks))
        self._attributes = UserAttributes(
            named,
            functions={"model": model, **named},
            ignored_objects=[trainer, model, *parts, *trainer.loggers],
        )

    def note_objects(self) -> None:
        """Note the objects that the callbacks created before training."""
        self._attributes.note_objects()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this worker."""
        attributes = self._attributes.capture()
        for values in attributes.values():
            values.pop(_PROCESS_TIME, None)
        return {
            "attributes": attributes,
            "metrics": dict(self._trainer.callback_metrics),
            "results": {
                key: {"value": each.value, "count": getattr(each, "cumulated_batch_size", None)}
                for key, each in self._trainer.fit_loop.epoch_loop._results.items()
                if each.is_tensor and each.meta.on_epoch and not each.has_reset
            },
        }

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._attributes.restore(states["attributes"])
        self._trainer._logger_connector._callback_metrics.update(states["metrics"])
        self._results = dict(states["results"])

    def merge_results(self) -> None:
        """Add the parts from before a checkpoint to the metrics that a batch has logged, once."""
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
    """Have ``StochasticWeightAveraging`` make its scheduler, if the checkpoint has one.

    Lightning does so only when an epoch starts, and loses it where a run resumes within one.
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
    """Return the schedulers that ``StochasticWeightAveraging`` has made."""
    found = [each._swa_scheduler for each in trainer.callbacks if _is_averaging(each)]
    return [each for each in found if each is not None]


def needs_statistics_epoch(trainer: Trainer) -> bool:
    """Whether an epoch follows the training, for batch statistics of averaged weights."""
    return any(
        _is_averaging(callback)
        and callback._model_contains_batch_norm
        and callback._max_epochs == trainer.current_epoch
        for callback in trainer.callbacks
    )


def _is_averaging(callback: Callback) -> bool:
    return any(each.__name__ == "StochasticWeightAveraging" for each in type(callback).__mro__)


class _StartedEpoch:
    """A trainer that says that another epoch starts."""

    def __init__(self, trainer: Trainer, epoch: int) -> None:
        self._trainer = trainer
        self.current_epoch = epoch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


def list_files(trainer: Trainer) -> dict[str, list[str]]:
    """Return the files in the folders of ``ModelCheckpoint``, by folder."""
    folders = {_find_folder(callback) for callback in trainer.checkpoint_callbacks}
    return {folder: sorted(os.listdir(folder)) for folder in folders if folder}


def read_first_files(trainer: Trainer, context: core.Context) -> dict[str, list[str]]:
    """Return the result of `list_files` at the first start of the trial.

    A start that is killed before its first checkpoint leaves files of ``ModelCheckpoint``, too.
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
    """Have each ``ModelCheckpoint`` overwrite the files that a killed process wrote later.

    It would add versions to their names, and others than in a run that was not killed.

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
        found = file_exists(path, trainer)  # by all workers
        if os.fspath(path) in later:
            later.remove(os.fspath(path))  # it is overwritten now
            return False
        return found

    return exists


def _find_folder(callback: Callback) -> str | None:
    folder = getattr(callback, "dirpath", None)
    return folder if folder is not None and os.path.isdir(folder) else None
