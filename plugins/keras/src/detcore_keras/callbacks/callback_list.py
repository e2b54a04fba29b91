"""Call the user's callbacks, and save their state by name."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from detcore.errors import InvalidCheckpointError
from detcore.trial import AttributeTracker, FunctionTracker, read_own_state
from detcore_keras.callbacks.callback_base import Callback
from detcore_keras.callbacks.callback_checks import (
    check_epoch_hooks,
    has_own_state,
    index_by_name,
    overrides_hook,
    wants_train_batches,
)
from detcore_keras.callbacks.callback_state import (
    KerasCodec,
    decode_state,
    encode_state,
    keep_rows,
    measure_rows,
    restore_rows,
)
from detcore_keras.callbacks.model_attributes import track_compiled
from detcore_keras.callbacks.tensorboard import TensorBoard
from detcore_keras.frameworks import backend, keras
from detcore_keras.state.array_files import encode_array, read_arrays, read_json, write_json
from detcore_keras.state.variables import step_functions

_logger = logging.getLogger("detcore.keras")

_STATE_FILE = "callbacks.json"
_ARRAYS_FILE = "callbacks.npz"
_VERSION = 1
_ENDLESS = 1 << 62  # batches of an epoch of unknown length
# Attributes that Keras sets; `min_delta` changes its sign when Keras 3 sets `monitor_op`.
_OF_KERAS = ("model", "_model", "params", "validation_data")
_OF_MONITORS = (*_OF_KERAS, "monitor_op", "min_delta")
_OF_TENSORBOARD = (*_OF_KERAS, "_is_tracing", "_profiler_started", "_writers")
# Names of states saved beside callbacks: the trial, and variables of the user's functions.
_TRIAL, _FUNCTIONS = "$trial", "$functions"
SavedCallbacks: TypeAlias = tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]


class CallbackMultiplexer:
    """Forwards the events of training to the user's callbacks.

    The call order is `train_begin`, `load_state` if the run is resumed, then any number of
    workloads, validations (`test_begin`, `test_end`), `checkpoint_end` and `capture_state`, and
    finally `train_end`. A workload is `workload_begin`, then `batch_begin` and `batch_end` for each
    batch (or `batches_done` for many batches), then `workload_end`.

    Epochs follow `batches_per_epoch`. ``on_epoch_begin`` comes before the first batch of an epoch.
    ``on_epoch_end`` comes after the validation at the last batch of the epoch, with its metrics.
    Without such a validation, ``on_epoch_end`` comes before the next batch.

    Args:
        callbacks: The user's callbacks, in order.
        model: The compiled model.
        params: For ``set_params``: ``{"epochs": 5, "verbose": 1}``.
        batches_per_epoch: 0 if unknown. Epoch hooks are then never called.
        first_epoch: Number of the first epoch.
        is_chief: Whether this is the worker with rank 0.
        tensorboard_path: Directory of event files, or None for the callbacks' own directories.
        saved_elsewhere: Layers and optimizers, whose state is saved with the model.
        trial: The trial, whose changed attributes are saved like those of callbacks, or None.
        model_trackers: Trackers of other attributes, by names that begin with ``$``.

    Attributes:
        callbacks: The callbacks that are called on this worker.
        terminates_on_nan: Whether a callback ends training at the first loss that is not finite.
        reads_checkpoints: Whether a callback receives the directory of a checkpoint, and may read
            its files.

    Raises:
        InvalidExperimentError: If two callbacks have the same ``state_name``, or a detcore callback
            has epoch hooks and the length of an epoch is unknown.
    """

    def __init__(
        self,
        callbacks: Iterable[Any],
        *,
        model: Any,
        params: Mapping[str, Any],
        batches_per_epoch: int,
        first_epoch: int = 0,
        is_chief: bool,
        tensorboard_path: Path | None = None,
        saved_elsewhere: Collection[Any] = (),
        trial: object = None,
        model_trackers: Mapping[str, AttributeTracker] = MappingProxyType({}),
    ) -> None:
        used_callbacks = [callback for callback in callbacks if not _is_replaced(callback)]
        active = [
            callback
            for callback in used_callbacks
            if is_chief
            or not (getattr(callback, "_chief_worker_only", None) or isinstance(callback, _WRITERS))
        ]
        self.callbacks: list[Any] = active
        self._model = model
        self._params = {"steps": batches_per_epoch or None, **params}
        self._epoch_batches = batches_per_epoch
        self._first_epoch = first_epoch
        self._is_chief = is_chief
        self._tensorboard_path = tensorboard_path
        # Callbacks are named before any is left out, so all workers use the same names.
        callbacks_by_name = index_by_name(used_callbacks)
        self._names = frozenset({*callbacks_by_name, *model_trackers, _TRIAL, _FUNCTIONS})
        active_by_name = {
            name: c for name, c in callbacks_by_name.items() if any(c is other for other in active)
        }
        self._stateful = {name: c for name, c in active_by_name.items() if has_own_state(c)}
        self._tracked = {name: c for name, c in active_by_name.items() if not has_own_state(c)}
        self._saved_elsewhere = [model, trial, *used_callbacks, *saved_elsewhere]
        self._trial = trial
        self._trackers = dict(model_trackers)
        self._compiled: Mapping[str, AttributeTracker] = {}
        self._batch_begin = _find_batch_hooks(active, "on_train_batch_begin", "on_batch_begin")
        self._batch_end = _find_batch_hooks(active, "on_train_batch_end", "on_batch_end")
        self._checkpoint_hooks: list[Callable[[str], Any]] = [
            callback.on_checkpoint_end
            for callback in active
            if is_chief
            and (
                "on_checkpoint_end" in vars(callback)
                or getattr(type(callback), "on_checkpoint_end", None)
                not in (None, Callback.on_checkpoint_end)
            )
        ]
        self.reads_checkpoints = bool(self._checkpoint_hooks)
        self.terminates_on_nan = any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in active)
        self._until: int | None = None
        self._has_begun_epoch = False
        self._ended: tuple[int, dict[str, Any]] | None = None
        if not batches_per_epoch:
            check_epoch_hooks(active)

    # -- training ---------------------------------------------------------------------------------

    def train_begin(self, *, is_resumed: bool = False) -> None:
        """Pass the model to the callbacks and start training. Call it once per process."""
        if is_resumed:
            keep_rows(self.callbacks)
        for callback in self.callbacks:
            if isinstance(callback, TensorBoard) and self._tensorboard_path is not None:
                callback.use_log_dir(self._tensorboard_path)
            callback.set_params(dict(self._params))
            callback.set_model(self._model)
        self._call_hooks("on_train_begin", {})
        self._track_attributes()

    def _track_attributes(self) -> None:
        """Track changes to attributes, starting from the values that ``on_train_begin`` set."""
        ignored = self._saved_elsewhere
        self._trackers |= {
            name: self._track_callback(name, callback) for name, callback in self._tracked.items()
        }
        functions = {**self._tracked, **self._stateful}
        if self._trial is not None:
            functions[_TRIAL] = self._trial
            self._trackers[_TRIAL] = AttributeTracker(
                self._trial, prefix="trial.", ignored_objects=ignored, codec=KerasCodec()
            )
        steps = step_functions(self._model)
        if backend.compiles_steps(self._model):
            self._compiled = track_compiled(self._model, ignored)
        else:
            functions |= steps
        self._trackers[_FUNCTIONS] = FunctionTracker(
            functions, prefix="", ignored_objects=ignored, codec=KerasCodec()
        )

    def train_end(self, *, is_final: bool = True) -> None:
        """End training without an error.

        Args:
            is_final: Whether the trial has ended rather than been interrupted. The best weights of
                an ``EarlyStopping(restore_best_weights=True)`` are then restored, as in Keras 3,
                even if the callback did not stop training.
        """
        self.close_epoch()
        self._call_hooks("on_train_end", {})
        for callback in self.callbacks if is_final else ():
            if isinstance(callback, keras.callbacks.EarlyStopping):
                weights = callback.best_weights if callback.restore_best_weights else None
                if weights is not None:
                    self._model.set_weights(weights)

    def workload_begin(self, total_batches: int, requested: int | None) -> None:
        """Continue from batch `total_batches`, for `requested` batches if that is known."""
        self._until = None if requested is None else total_batches + requested
        self._open_epoch(total_batches)
        for callback in self.callbacks:
            if hasattr(callback, "on_train_workload_begin"):
                callback.on_train_workload_begin(total_batches, requested, {})

    def workload_end(self, total_batches: int, logs: Mapping[str, Any]) -> None:
        """End a workload at batch `total_batches`, with its metrics `logs`."""
        if self._ended is not None:
            self._ended[1].update(_convert_logs(logs))
        for callback in self.callbacks:
            if hasattr(callback, "on_train_workload_end"):
                callback.on_train_workload_end(total_batches, _convert_logs(logs))

    def batch_begin(self, total_batches: int) -> None:
        """Begin a batch. `total_batches` batches precede it."""
        if self._epoch_batches and not self._has_begun_epoch:
            self._open_epoch(total_batches)
        if self._batch_begin:
            index = total_batches % (self._epoch_batches or _ENDLESS)
            for hook in self._batch_begin:
                hook(index, {})

    def batch_end(self, total_batches: int, logs: Mapping[str, Any]) -> None:
        """End a batch. `total_batches` includes it."""
        if self._batch_end:
            index = (total_batches - 1) % (self._epoch_batches or _ENDLESS)
            numbers: dict[str, Any] | None = None
            for hook, takes_tensors in self._batch_end:
                if not takes_tensors and numbers is None:
                    numbers = _convert_logs(logs)
                hook(index, dict(logs if takes_tensors or numbers is None else numbers))
        if self._epoch_batches and total_batches % self._epoch_batches == 0:
            self._end_epoch(total_batches)

    def batches_done(self, from_total: int, to_total: int) -> None:
        """Count batches that were trained together, without batch-level hooks.

        If an epoch ends in this range, it should end at `to_total`. Changes that callbacks make at
        the end of the epoch then apply from the next batch.
        """
        if not self._epoch_batches:
            return
        end = (from_total // self._epoch_batches + 1) * self._epoch_batches
        while end <= to_total:
            self._open_epoch(end - 1)
            self._end_epoch(end)
            if end < to_total or self._until is None or end < self._until:
                self._open_epoch(end)
            end += self._epoch_batches

    # -- validation, checkpoints ------------------------------------------------------------------

    def test_begin(self) -> None:
        """Begin a validation."""
        self._call_hooks("on_test_begin", {})

    def test_end(self, logs: Mapping[str, Any]) -> None:
        """End a validation. Names in `logs` begin with ``val_``."""
        numbers = _convert_logs(logs)
        self._call_hooks("on_test_end", numbers)
        self.close_epoch(numbers)

    def checkpoint_end(self, directory: Path) -> None:
        """Pass the written files of a checkpoint to the callbacks."""
        for hook in self._checkpoint_hooks:
            hook(str(directory))

    def digest_states(self) -> dict[str, bytes]:
        """Return a digest of each callback's state, by name. Equal states have equal digests."""
        digests = {}
        for name in (*self._stateful, *self._trackers):
            arrays: dict[str, npt.NDArray[Any]] = {}
            digest = hashlib.blake2b(digest_size=16)
            digest.update(json.dumps(self._saved_state(name, arrays), sort_keys=True).encode())
            for key, array in sorted(arrays.items()):
                digest.update(f"{key} {array.dtype} {array.shape} ".encode() + array.tobytes())
            digests[name] = digest.digest()
        return digests

    def capture_state(
        self, directory: Path, *, leave_out: Collection[str] = ()
    ) -> dict[str, dict[str, npt.NDArray[Any]]]:
        """Write the state to ``callbacks.json``, and return the arrays that it refers to.

        Args:
            directory: Directory to write into.
            leave_out: Names of callbacks whose state is the same in the chief's checkpoint.

        Returns:
            Copies of the arrays, by file and key.

        Raises:
            InvalidExperimentError: If a callback's state cannot be saved. The message names the
                callback and the attribute.
        """
        self._warn_of_compiled_values()
        state, arrays = self.state_dict(leave_out)
        write_json(directory / _STATE_FILE, state)
        plain: dict[str, npt.NDArray[Any]] = {}
        for key, array in arrays.items():
            plain.update(encode_array(key, array))
        return {_ARRAYS_FILE: plain}

    def state_dict(self, leave_out: Collection[str] = ()) -> SavedCallbacks:
        """Return the state as a JSON value, and the arrays that it refers to."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        states, attributes = (
            {name: self._saved_state(name, arrays) for name in names if name not in leave_out}
            for names in (self._stateful, self._trackers)
        )
        ended = None
        if self._ended is not None:
            epoch, logs = self._ended
            ended = {"epoch": epoch, "logs": encode_state(logs, arrays, "for epoch metrics")}
        state = {
            "version": _VERSION,
            "has_begun_epoch": self._has_begun_epoch,
            "ended_epoch": ended,
            "callbacks": states,
            "attributes": attributes,
            "rows": measure_rows(self._tracked),
        }
        return state, arrays

    def read_live(self) -> dict[str, Any]:
        """Return the states and changed attributes by name, for the comparison after a resume."""
        values: dict[str, Any] = {"epoch.has_begun": self._has_begun_epoch}
        for name, tracker in self._trackers.items():
            owner = f"{name[1:]}." if name.startswith("$") else f"callback {name}."
            values |= tracker.read_live("" if name == _FUNCTIONS else owner)
        for name, callback in self._stateful.items():
            values |= read_own_state(callback.get_state, f"callback {name}", codec=KerasCodec())
        return values

    def _saved_state(self, name: str, arrays: dict[str, npt.NDArray[Any]]) -> Any:
        if name in self._stateful:
            return encode_state(self._stateful[name].get_state(), arrays, f"of {name}")
        return encode_state(self._trackers[name].capture(), arrays, f"of {name}")

    def _track_callback(self, name: str, callback: Any) -> AttributeTracker:
        kinds = keras.callbacks
        ignored: Sequence[str] = _OF_KERAS
        monitors = (kinds.EarlyStopping, kinds.ReduceLROnPlateau, kinds.ModelCheckpoint)
        if isinstance(callback, monitors):
            ignored = _OF_MONITORS
        elif isinstance(callback, kinds.TensorBoard):
            ignored = _OF_TENSORBOARD
        return AttributeTracker(
            callback,
            prefix=None if type(callback).__module__.startswith("keras.") else f"{name}.",
            ignored=ignored,
            ignored_objects=self._saved_elsewhere,
            codec=KerasCodec(),
        )

    def _warn_of_compiled_values(self) -> None:
        """Warn once about values that training changed after the compiled step had read them."""
        names = [
            f"{owner}{name}"
            for owner, tracker in self._compiled.items()
            for name in tracker.capture()
        ]
        if names:
            _logger.warning(
                "the loss or the training step reads %s, which training has changed. Keras "
                "reads such values only when it compiles the step, so the change has no effect "
                "until a resumed run compiles the step again. Use a variable of the model, or "
                "compile the model with run_eagerly=True",
                ", ".join(names),
            )
            self._compiled = {}

    def load_state(self, saved: SavedCallbacks, chief: SavedCallbacks | None = None) -> None:
        """Restore a result of `state_dict` or `read_callbacks`. Call it after `train_begin`.

        Callbacks without a saved state start fresh. States without a callback are dropped. Both
        are logged.

        Args:
            saved: The state, and the arrays that it refers to.
            chief: The chief's state, for callbacks left out of this worker's state.
        """
        state, arrays = saved
        if state.get("version") != _VERSION:
            raise InvalidCheckpointError(
                f"the checkpoint's callbacks have version {state.get('version')!r}; this "
                f"detcore-keras reads version {_VERSION}.\n  pip install --upgrade detcore-keras"
            )
        self._has_begun_epoch = state["has_begun_epoch"]
        ended = state["ended_epoch"]
        if ended is not None:
            self._ended = (ended["epoch"], decode_state(ended["logs"], arrays))
        sources = [saved] if chief is None else [chief, saved]
        states, attributes = (
            {
                name: decode_state(value, its_arrays)
                for its_state, its_arrays in sources
                for name, value in its_state[kind].items()
            }
            for kind in ("callbacks", "attributes")
        )
        changed_names = {name for name, values in attributes.items() if values}
        for name in sorted((states.keys() | changed_names) - self._names):
            _logger.warning(
                "the checkpoint has state for a callback %r, which this trial does not have", name
            )
        for name, callback in self._stateful.items():
            if name not in states:
                _logger.warning(
                    "the checkpoint has no state for the callback %r, which starts fresh", name
                )
            elif states[name] is not None:
                callback.load_state(states[name])
        for name, tracker in self._trackers.items():
            tracker.restore(attributes.get(name, {}))
        restore_rows(self._tracked, state["rows"])

    # -- epochs -----------------------------------------------------------------------------------

    def _open_epoch(self, total_batches: int) -> None:
        """Begin the epoch of the batch after `total_batches`, if it has not begun."""
        self.close_epoch()
        if self._epoch_batches and not self._has_begun_epoch:
            self._has_begun_epoch = True
            epoch = self._first_epoch + total_batches // self._epoch_batches
            for callback in self.callbacks:
                callback.on_epoch_begin(epoch, {})

    def _end_epoch(self, total_batches: int) -> None:
        self._has_begun_epoch = False
        self._ended = (self._first_epoch + total_batches // self._epoch_batches - 1, {})

    def close_epoch(self, validation: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Call ``on_epoch_end`` if an epoch has ended, with the metrics of its validation."""
        if self._ended is not None:
            epoch, logs = self._ended
            self._ended = None
            logs.update(validation)
            for callback in self.callbacks:
                callback.on_epoch_end(epoch, logs)

    def _call_hooks(self, name: str, logs: Mapping[str, Any]) -> None:
        shared = dict(logs)
        for callback in self.callbacks:
            getattr(callback, name)(shared)


def read_callbacks(directory: Path) -> SavedCallbacks:
    """Read the state of the callbacks, for `CallbackMultiplexer.load_state`.

    Raises:
        InvalidCheckpointError: If a file is missing or damaged.
    """
    state = read_json(directory / _STATE_FILE, ", so the callbacks' state cannot be restored")
    return state, read_arrays(directory / _ARRAYS_FILE)


# Keras callbacks that write files. If every worker ran them, they would overwrite each other.
_WRITERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


def _is_replaced(callback: Any) -> bool:
    """Whether a callback is left out because it would restore its own copy of the model."""
    if not isinstance(callback, keras.callbacks.BackupAndRestore):
        return False
    _logger.info(
        "keras.callbacks.%s is not used: detcore saves and resumes the training itself, and a "
        "second copy of the model would overwrite the restored one",
        type(callback).__name__,
    )
    return True


def _find_batch_hooks(callbacks: Iterable[Any], name: str, older: str) -> list[Any]:
    """Return the callbacks' hooks for a batch, without those that do nothing.

    For hooks at the end of a batch, return pairs of the hook and whether it accepts tensors.
    """
    hooks: list[Any] = []
    for callback in callbacks:
        if not wants_train_batches(callback):
            continue
        if overrides_hook(callback, name) or overrides_hook(callback, older):
            hook: Callable[..., Any] = getattr(callback, name)
            takes_tensors = bool(getattr(callback, "_supports_tf_logs", False))
            hooks.append((hook, takes_tensors) if name.endswith("_end") else hook)
    return hooks


def _convert_logs(logs: Mapping[str, Any] | None) -> dict[str, Any]:
    numbers: dict[str, Any] = {}
    for name, value in (logs or {}).items():
        array = np.asarray(value)
        numbers[name] = array.item() if array.ndim == 0 else array
    return numbers
