"""The state of a `Trainer` besides its model and optimizer: callbacks and the best model."""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import Trainer
from transformers.trainer_callback import ExportableState

from detcore.trial import read_values
from detcore_torch.libraries import torch
from detcore_torch.state.state_files import read_tensors
from detcore_torch.state.user_attributes import (
    FUNCTIONS,
    TRAINER,
    TorchCodec,
    UserAttributes,
    name_callbacks,
)

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from detcore_torch.state.state_files import StateFiles


_logger = logging.getLogger("detcore.torch")
_BEST = "best.safetensors"
_PROGRESS = ("global_step", "epoch", "best_metric")
# Trainer objects that a callback may hold, and whose state is saved elsewhere.
_SHARED_OBJECTS = (
    "accelerator", "args", "callback_handler", "control", "data_collator", "eval_dataset", "model",
    "processing_class", "train_dataset",
)  # fmt: skip


class CallbackStates:
    """The states of the trainer's callbacks, restored into the script's objects.

    The trainer saves the state of each `ExportableState`. It restores the state only into a new
    object at the end of its callbacks, and only if an argument requests it. Attributes that the
    script's callbacks change are saved, too, and those that its subclass of the trainer adds.

    Args:
        trainer: The trainer, with all of the script's callbacks, before it trains.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._callbacks = dict(name_callbacks(trainer.callback_handler.callbacks))
        owners = {TRAINER: trainer, **self._callbacks}
        is_plain = type(trainer).__module__.startswith("transformers.")
        self._attributes = UserAttributes(
            {
                name: owner
                for name, owner in owners.items()
                if not type(owner).__module__.startswith("transformers.")
            },
            ignored={TRAINER: () if is_plain else list_library_attributes()},
            functions={"trainer": trainer, "model": trainer.model, **self._callbacks},
            ignored_objects=[trainer, *(getattr(trainer, name) for name in _SHARED_OBJECTS)],
        )

    def note_objects(self) -> None:
        """Record the objects that exist when training starts."""
        trainer = self._trainer
        bars = [getattr(callback, "training_bar", None) for callback in self._callbacks.values()]
        self._attributes.note_objects(
            instance for instance in (trainer.optimizer, trainer.lr_scheduler, trainer.state, *bars)
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the callbacks' states by name; warn once about attributes that cannot be saved."""
        exported = {
            name: callback.state()
            for name, callback in self._callbacks.items()
            if isinstance(callback, ExportableState)
        }
        return {"exported": exported, "attributes": self._attributes.capture()}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restore the callbacks' states; warn about a state whose callback is missing."""
        missing = {*states["exported"], *states["attributes"]} - {
            *self._callbacks,
            FUNCTIONS,
            TRAINER,
        }
        if missing:
            _logger.warning(
                "the checkpoint has states of the callbacks %s, which the trainer does not have; "
                "they are not restored",
                ", ".join(sorted(missing)),
            )
        self._attributes.restore(states["attributes"])
        for name, callback in self._callbacks.items():
            if name in states["exported"] and isinstance(callback, ExportableState):
                _load_exported(name, callback, states["exported"][name])

    def read_live(self) -> dict[str, Any]:
        """Return the trainer's progress, and the changes that callbacks and others made."""
        state = self._trainer.state
        values = self._attributes.read_live("callback ")
        for name in _PROGRESS:  # numbers of any type, which become floats in a checkpoint
            number = getattr(state, name)
            values[f"trainer.state.{name}"] = str(number if number is None else float(number))
        for name, callback in self._callbacks.items():
            if isinstance(callback, ExportableState):
                for attribute in callback.state().get("attributes", {}):
                    path = f"callback {name}.{attribute}"
                    values |= read_values(getattr(callback, attribute), path, codec=TorchCodec())
        return values


def list_library_attributes() -> frozenset[str]:
    """Return the names of the attributes that the library's trainer has or assigns."""
    assigned = re.findall(r"self\.(\w+)(?=[^=(\n]*=(?!=))", inspect.getsource(Trainer))
    return frozenset([*dir(Trainer), *assigned])


def _load_exported(name: str, callback: TrainerCallback, exported: Mapping[str, Any]) -> None:
    for attribute, value in exported.get("attributes", {}).items():
        setattr(callback, attribute, value)
    present = callback.state().get("args", {})
    for argument, value in exported.get("args", {}).items():
        if present.get(argument) != value:
            _logger.warning(
                "the callback %s has %s=%r, and the checkpoint has %r; the script's value is used",
                name,
                argument,
                present.get(argument),
                value,
            )


class BestModel:
    """The best model so far, for `load_best_model_at_end`; part of each checkpoint.

    The trainer would read the model from its own checkpoints, which detcore does not write. Each
    worker has a copy on the CPU.

    Args:
        trainer: The trainer.
        save_every: Steps between the trainer's checkpoints. The trainer loads the best model among
            validations that a checkpoint followed. 0: among all validations.
    """

    def __init__(self, trainer: Trainer, *, save_every: int) -> None:
        self._trainer = trainer
        self._save_every = save_every
        self._step: int | None = None
        self._tensors: dict[str, Any] = {}

    def note_model(self) -> None:
        """Copy the current model, which has the best validation so far."""
        trainer = self._trainer
        state = trainer.state
        is_saved = not self._save_every or state.global_step % self._save_every == 0
        if not trainer.args.load_best_model_at_end or not (
            is_saved or state.global_step >= state.max_steps
        ):
            return
        self._step = state.global_step
        state.best_model_checkpoint = self._find_checkpoint_dir()
        self._tensors = _copy_tensors(self._unwrap_model())

    def add_to(self, files: StateFiles) -> int | None:
        """Add the model, unless it is the checkpoint's model; return its step."""
        if self._step not in (None, self._trainer.state.global_step):
            files.add_tensors(_BEST, self._tensors)
        return self._step

    def read_live(self) -> dict[str, Any]:
        """Return the best model and its step by name, for the comparison after a resume."""
        if not self._trainer.args.load_best_model_at_end:
            return {}
        return read_values(
            {"step": self._step, "tensors": self._tensors}, "best model", codec=TorchCodec()
        )

    def restore(self, checkpoint: Path, step: int | None) -> None:
        """Restore the best model from a checkpoint, after the trainer's model."""
        trainer = self._trainer
        self._step = step
        if step is None or not trainer.args.load_best_model_at_end:
            return
        trainer.state.best_model_checkpoint = self._find_checkpoint_dir()
        path = checkpoint / _BEST
        self._tensors = read_tensors(path) if path.exists() else _copy_tensors(self._unwrap_model())

    def load_model(self) -> None:
        """Load the best model into the trainer, and save it like the trainer's checkpoint."""
        self._unwrap_model().load_state_dict(self._tensors, strict=False)
        self._trainer.save_model(self._find_checkpoint_dir(), _internal_call=True)

    def _unwrap_model(self) -> Any:
        return self._trainer.accelerator.unwrap_model(self._trainer.model)

    def _find_checkpoint_dir(self) -> str:
        return os.path.join(self._trainer.args.output_dir, f"checkpoint-{self._step}")


def _copy_tensors(model: Any) -> dict[str, Any]:
    """Return copies of a model's tensors on the CPU; tied weights have one copy."""
    copies: dict[Any, Any] = {}
    tensors = {}
    for name, value in model.state_dict().items():
        if isinstance(value, torch.Tensor):
            key = (value.data_ptr(), value.shape, value.stride(), value.dtype)
            if key not in copies:
                copies[key] = value.detach().to("cpu", copy=True)
            tensors[name] = copies[key]
    return tensors
