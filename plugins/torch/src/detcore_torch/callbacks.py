"""`PyTorchCallback`, and the class that calls the user's callbacks in order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from detcore.errors import InvalidDataTypeError, InvalidExperimentError, describe
from detcore.trial import read_own_state
from detcore_torch.libraries import torch
from detcore_torch.state.random_generators import preserved_generators
from detcore_torch.state.user_attributes import TorchCodec, UserAttributes

_ATTRIBUTES = "attributes of callbacks"
_ENTRIES = "entries of checkpoint hooks"
_FILE_HOOKS = ("on_checkpoint_end", "on_checkpoint_write_end")


class PyTorchCallback:
    """Base class of callbacks; detcore calls the methods while a trial trains, on every worker.

    The state of a callback, `state_dict`, is part of each checkpoint, and so are attributes that
    the callback changes: numbers, strings, arrays, tensors, random generators and containers of
    these. When a trial is resumed, they are restored after `on_training_start`.
    """

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Called once per process, before all other hooks but `on_checkpoint_load_start`.

        Args:
            first_batch_idx: Batches trained before this process started.
            checkpoint_uuid: The checkpoint from which the trial was restored, or None.
        """

    def on_trial_shutdown(self) -> None:
        """Called once per process, after all other hooks and also after an error."""

    def on_training_start(self) -> None:
        """Called once per process, before its first batch."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Called before the first batch of an epoch, but not after a resume within the epoch."""

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        """Called after the last batch of an epoch."""

    def on_training_workload_end(
        self, avg_metrics: Mapping[str, Any], batch_metrics: list[Mapping[str, Any]]
    ) -> None:
        """Called before training metrics are reported.

        Args:
            avg_metrics: This worker's means over its batches since the last report.
            batch_metrics: The metrics of each of these batches.
        """

    def on_before_optimizer_step(self, parameters: Iterable[Any]) -> None:
        """Called before an optimizer updates its parameters, after ``clip_grads``.

        Args:
            parameters: The optimizer's parameters, whose gradients are unscaled and combined over
                batches and workers.
        """

    def on_validation_start(self) -> None:
        """Called before a validation."""

    def on_validation_step_start(self) -> None:
        """Called right after `on_validation_start`; its name in early releases of Determined."""

    def on_validation_epoch_start(self) -> None:
        """Called before the first batch of a validation."""

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        """Called after the last batch of a validation.

        Args:
            outputs: The results of ``evaluate_batch`` for each batch of this worker, with arrays in
                place of tensors.
        """

    def on_validation_step_end(self, metrics: Mapping[str, Any]) -> None:
        """Called right before `on_validation_end`; its name in early releases of Determined."""

    def on_validation_end(self, metrics: Mapping[str, Any]) -> None:
        """Called after a validation, with its metrics over all workers."""

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """Called before the state is saved in a checkpoint.

        Args:
            checkpoint: Empty at first, and the same for all callbacks. Tensors, arrays and plain
                values that are added to it become part of the checkpoint.
        """

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        """Called before the state of a checkpoint is restored.

        Args:
            checkpoint: The entries that `on_checkpoint_save_start` added.
        """

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Called as `on_checkpoint_write_end`; its name in early releases of Determined."""

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        """Called when this worker's files of a checkpoint are written, before it is committed.

        If a callback overrides this, training waits until the files are written.

        Args:
            checkpoint_dir: The directory. Files added to it become part of the checkpoint.
        """

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """Called when a checkpoint was committed, on the chief only, between two batches.

        Args:
            uuid: The checkpoint. If the process is killed right after the commit, the method is not
                called for it.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in checkpoints: tensors, arrays and plain values."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""


class ClipGradsL2Norm(PyTorchCallback):
    """Clips the gradients of each optimizer by their norm.

    Args:
        clip_value: The maximum norm.
    """

    def __init__(self, clip_value: float) -> None:
        self._clip_value = clip_value

    def on_before_optimizer_step(self, parameters: Iterable[Any]) -> None:
        """Clip."""
        torch.nn.utils.clip_grad_norm_(parameters, self._clip_value)


class ClipGradsL2Value(PyTorchCallback):
    """Clips each element of the gradients of each optimizer.

    Args:
        clip_value: The maximum absolute value.
    """

    def __init__(self, clip_value: float) -> None:
        self._clip_value = clip_value

    def on_before_optimizer_step(self, parameters: Iterable[Any]) -> None:
        """Clip."""
        torch.nn.utils.clip_grad_value_(parameters, self._clip_value)


class CheckpointEntries(dict[str, Any]):
    """The entries of a checkpoint that callbacks added."""

    def __missing__(self, name: str) -> Any:
        raise KeyError(
            f"the checkpoint has no entry {name!r}. It holds what on_checkpoint_save_start added: "
            f"{', '.join(self) or 'nothing'}. Models and optimizers are saved and restored without "
            "hooks; read them from the context"
        )


class Callbacks:
    """The user's callbacks by name.

    Args:
        callbacks: The result of ``build_callbacks``.
        ignored_objects: Objects that are saved elsewhere, such as models.

    Raises:
        InvalidDataTypeError: If `callbacks` is not a mapping of `PyTorchCallback`.
        InvalidExperimentError: If a callback has a method ``on_...`` that detcore never calls, or
            only one of ``state_dict`` and ``load_state_dict``.
    """

    def __init__(self, callbacks: Any, ignored_objects: Iterable[object] = ()) -> None:
        if not isinstance(callbacks, Mapping):
            raise InvalidDataTypeError(
                f"build_callbacks returned {describe(callbacks)}.\n"
                "Return callbacks by name, such as {'early_stopping': EarlyStopping()}."
            )
        for name, callback in callbacks.items():
            if not isinstance(callback, PyTorchCallback):
                raise InvalidDataTypeError(
                    f"the callback {name!r} is {describe(callback)}.\n"
                    "It must be an instance of a subclass of detcore_torch.PyTorchCallback."
                )
            _check_hooks(name, callback)
        self._callbacks: dict[str, PyTorchCallback] = dict(callbacks)
        self._attributes = UserAttributes(self._callbacks, ignored_objects=ignored_objects)
        self._entries = CheckpointEntries()

    def call_hook(self, hook: str, *arguments: Any) -> None:
        """Call a hook of all callbacks, in order."""
        for callback in self._callbacks.values():
            method = getattr(callback, hook)
            if hook == "on_training_epoch_start":  # without an argument in early releases
                method = match_arguments(method, "epoch_idx")
            method(*arguments)

    def overrides(self, *hooks: str) -> bool:
        """Return whether a callback defines one of these hooks."""
        return any(
            getattr(type(callback), hook) is not getattr(PyTorchCallback, hook)
            for callback in self._callbacks.values()
            for hook in hooks
        )

    @property
    def reads_checkpoints(self) -> bool:
        """Whether a callback reads the files of checkpoints."""
        return self.overrides(*_FILE_HOOKS)

    def start_save(self) -> None:
        """Call ``on_checkpoint_save_start``, and keep the added entries for `state_dict`."""
        self._entries = CheckpointEntries()
        if self.overrides("on_checkpoint_save_start"):
            with preserved_generators():
                self.call_hook("on_checkpoint_save_start", self._entries)

    def finish_files(self, directory: str) -> None:
        """Call the hooks that read and add files of a checkpoint."""
        for hook in _FILE_HOOKS:
            self.call_hook(hook, directory)

    def start_load(self, states: Mapping[str, Any]) -> None:
        """Call ``on_checkpoint_load_start`` with the entries in a result of `state_dict`."""
        entries = CheckpointEntries(states.get(_ENTRIES, {}))
        self.call_hook("on_checkpoint_load_start", entries)

    def start_training(self) -> None:
        """Call ``on_training_start``, then restore the checkpoint's attributes again."""
        self.call_hook("on_training_start")
        self._attributes.restore_again()

    def state_dict(self) -> dict[str, Any]:
        """Return the callbacks' states by name, and the attributes that they have changed."""
        states = {name: callback.state_dict() for name, callback in self._callbacks.items()}
        attributes = self._attributes.capture()
        return states | {
            _ATTRIBUTES: {name: changes for name, changes in attributes.items() if changes},
            _ENTRIES: dict(self._entries),
        }

    def read_live(self) -> dict[str, Any]:
        """Return the callbacks' states and changed attributes, for the comparison after a resume.

        The attributes of a callback with methods of its own are not compared, and entries of its
        state that depend on the time are omitted.
        """
        own = {
            name: callback
            for name, callback in self._callbacks.items()
            if type(callback).state_dict is not PyTorchCallback.state_dict
        }
        values = self._attributes.read_live("callback ", omitted=own)
        for name, callback in own.items():
            values |= read_own_state(callback.state_dict, f"callback {name}", codec=TorchCodec())
        return values

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restore the callbacks' states; a new callback has no state."""
        self._attributes.restore(states.get(_ATTRIBUTES, {}))
        for name, callback in self._callbacks.items():
            if name in states:
                callback.load_state_dict(states[name])


def match_arguments(method: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """Return a function that calls a user's method with the arguments that it accepts.

    Determined passed arguments by name, so that a method may have them in another order, or only
    some of them. A method with other names gets them by position.

    Args:
        method: The bound method.
        names: The names of the arguments, in the order in which the function takes them.
    """
    parameters = inspect.signature(method).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return lambda *values: method(**dict(zip(names, values, strict=True)))
    accepted_names = {parameter.name for parameter in parameters}
    if names[0] in accepted_names:
        return lambda *values: method(
            **{name: v for name, v in zip(names, values, strict=True) if name in accepted_names}
        )
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return method
    count = len(parameters)
    return lambda *values: method(*values[:count])


def _check_hooks(name: str, callback: PyTorchCallback) -> None:
    hooks = [hook for hook in vars(PyTorchCallback) if hook.startswith("on_")]
    unknown = [
        attribute
        for attribute in dir(callback)
        if attribute.startswith("on_")
        and attribute not in hooks
        and callable(getattr(callback, attribute))
    ]
    if unknown:
        raise InvalidExperimentError(
            f"the callback {name!r} ({type(callback).__name__}) has {', '.join(unknown)}, which "
            f"detcore never calls.\nHooks are: {', '.join(hooks)}.\n"
            "Rename the method: the names of other methods must not start with on_."
        )
    _check_state_methods(name, callback)


def _check_state_methods(name: str, callback: PyTorchCallback) -> None:
    kind = type(callback)
    has_state = kind.state_dict is not PyTorchCallback.state_dict
    if has_state is (kind.load_state_dict is not PyTorchCallback.load_state_dict):
        return
    present, missing, line = "load_state_dict", "state_dict", "state_dict(self)"
    if has_state:
        present, missing, line = missing, present, "load_state_dict(self, state_dict)"
    raise InvalidExperimentError(
        f"the callback {name!r} ({kind.__name__}) has {present} but no {missing}: a resumed trial "
        f"would start without the callback's state.\nAdd the method:  def {line}: ..."
    )
