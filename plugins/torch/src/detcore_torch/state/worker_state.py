"""The part of a checkpoint that each worker saves: generators, gradients and callbacks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from detcore.errors import InvalidCheckpointError
from detcore_torch.state.model_attributes import capture_metrics, restore_metrics
from detcore_torch.state.random_generators import capture_generators, restore_generators
from detcore_torch.state.state_files import StateFiles, read_state

if TYPE_CHECKING:
    from detcore_torch.callbacks import Callbacks

_NAME = "worker"


class StatefulCallbacks(Protocol):
    """The callbacks of a trial or a library, such as `Callbacks`."""

    def state_dict(self) -> dict[str, Any]:
        """Return the callbacks' states by name."""

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restore the callbacks' states."""

    def read_live(self) -> dict[str, Any]:
        """Return the states and changed attributes by name, for the comparison after a resume."""


def capture_worker(
    files: StateFiles,
    *,
    models: Sequence[Any],
    callbacks: StatefulCallbacks | None,
    batches: int,
    attributes: Mapping[str, Any],
    applied: Collection[int],
) -> None:
    """Add the state of this worker.

    Args:
        files: Receives the state.
        models: Models, which may contain metrics.
        callbacks: The user's callbacks, or None.
        batches: Batches completed.
        attributes: Attributes that the trial has changed.
        applied: Ids of the parameters whose gradients optimizers have applied; the gradients of
            other parameters are added.
    """
    random, generators = capture_generators()
    state: dict[str, Any] = {
        "batches": batches,
        "random": random,
        "generators": generators,
        "gradients": {
            name: parameter.grad
            for name, parameter in _name_parameters(models)
            if parameter.grad is not None and id(parameter) not in applied
        },
        "attributes": dict(attributes),
        "metrics": capture_metrics(models),
    }
    if callbacks is not None:
        state["callbacks"] = callbacks.state_dict()
    files.add_state(_NAME, state)


class WorkerState:
    """The state that `capture_worker` added to a checkpoint.

    Args:
        folder: The worker's directory in the checkpoint.

    Attributes:
        batches: Batches completed.
        attributes: Attributes that the trial had changed.

    Raises:
        InvalidCheckpointError: If the file is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{_NAME}.json"
        self._state = read_state(folder, _NAME)
        batches = self._state.get("batches")
        if type(batches) is not int or batches < 0:
            raise InvalidCheckpointError(
                f"{self._path} is damaged: batches={batches!r}.\n"
                "Restore an earlier checkpoint, or download it again."
            )
        self.batches: int = batches
        self.attributes: Mapping[str, Any] = self._state.get("attributes", {})

    def restore_generators(self) -> None:
        """Restore the random generators."""
        restore_generators(self._state.get("random", {}), self._state.get("generators", {}))

    def restore_metrics(self, models: Sequence[Any]) -> None:
        """Restore the states of metrics in models."""
        restore_metrics(models, self._state.get("metrics", {}))

    def start_restoring(self, callbacks: Callbacks) -> None:
        """Call the callbacks' hook that precedes the restoration."""
        callbacks.start_load(self._state.get("callbacks", {}))

    def restore_callbacks(self, callbacks: StatefulCallbacks) -> None:
        """Restore the callbacks' states."""
        callbacks.load_state_dict(self._state.get("callbacks", {}))

    def restore_gradients(self, models: Sequence[Any], others: Sequence[WorkerState] = ()) -> None:
        """Restore the gradients that were summed and not yet applied.

        Args:
            models: The models.
            others: The other workers' states, if this worker resumes with the mean.

        Raises:
            InvalidCheckpointError: If a gradient does not fit its parameter.
        """
        parts = [self, *others]
        for name, parameter in _name_parameters(models):
            saved_gradients = [part._state.get("gradients", {}).get(name) for part in parts]
            gradients = [gradient for gradient in saved_gradients if gradient is not None]
            if not gradients:
                parameter.grad = None
                continue
            if any(gradient.shape != parameter.shape for gradient in gradients):
                raise InvalidCheckpointError(
                    f"{self._path} does not fit: the gradient of {name} has the shape "
                    f"{tuple(gradients[0].shape)}, its parameter {tuple(parameter.shape)}.\n"
                    "Use the code of the checkpoint, or start a new trial."
                )
            total = sum(gradients[1:], gradients[0])
            mean = total if len(parts) == 1 else total / len(parts)
            parameter.grad = mean.to(parameter.device, parameter.dtype)


def _name_parameters(models: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for index, model in enumerate(models):
        for name, parameter in model.named_parameters():
            yield f"{index}.{name}", parameter
