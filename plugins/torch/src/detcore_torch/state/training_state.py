"""Save, copy and restore the whole training state of a trial or script."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.errors import InvalidExperimentError
from detcore_torch.process_group import share_buffers
from detcore_torch.state.shared_state import SavedObjects, capture_shared, restore_shared
from detcore_torch.state.state_digests import name_state, read_live_state
from detcore_torch.state.state_files import StateFiles
from detcore_torch.state.worker_state import StatefulCallbacks, capture_worker

if TYPE_CHECKING:
    import numpy as np

    from detcore.types import TensorInfo


@dataclasses.dataclass(slots=True, kw_only=True)
class TrainingState(SavedObjects):
    """The training state on this worker; a `detcore.trial.SavesState` with snapshots.

    Attributes:
        rank: Rank of this worker. Workers other than the chief save only their own state.
        callbacks: The callbacks, which have a state on each worker, or None.
        extra: Adds the framework's files on the chief, or None.
        has_updated: Whether the optimizers have applied the gradients of their parameters.
            Gradients of other parameters are saved: a script may clip by the norm of all gradients.
        batches: Batches completed, of a trial.
        trial_attributes: Returns the attributes that a trial has changed.
        read_others: Reads other values that are compared after a resume, by name.
    """

    rank: int = 0
    callbacks: StatefulCallbacks | None = None
    extra: Callable[[StateFiles], None] | None = None
    has_updated: bool = True
    batches: int = 0
    trial_attributes: Callable[[], Mapping[str, Any]] = dict
    read_others: Callable[[], Mapping[str, Any]] = dict
    _tensors: Sequence[TensorInfo] = ()

    def save(self, directory: Path) -> None:
        """Write all files."""
        self._capture().write(directory)

    def snapshot(self, directory: Path) -> Callable[[], None]:
        """Copy the state; return a function that writes the copy."""
        return functools.partial(self._capture().copy_tensors().write, directory)

    def tensors(self) -> Sequence[TensorInfo]:
        """Return the tensors in the last checkpoint."""
        return self._tensors

    def state_tensors(self) -> Mapping[str, np.ndarray]:
        """Return generators, gradients, models, optimizers and schedulers as arrays by name."""
        return name_state(self)

    def live_state(self) -> Mapping[str, Any]:
        """Return flags, attributes, scalers, callbacks and the other values by name."""
        callbacks = {} if self.callbacks is None else self.callbacks.read_live()
        return {**read_live_state(self), **self.read_others(), **callbacks}

    def restore(self, checkpoint: Path) -> None:
        """Restore everything but the random generators and the callbacks.

        Raises:
            InvalidCheckpointError: If the checkpoint does not fit.
        """
        restore_shared(self, checkpoint)

    def check_objects(self, created: Sequence[str]) -> None:
        """Check that the next start of the script can restore the state.

        Args:
            created: The result of `list_objects` when training started.

        Raises:
            InvalidExperimentError: If it cannot.
        """
        objects = self.list_objects()
        if objects != created:
            raise InvalidExperimentError(
                f"training started with {', '.join(created) or 'nothing'}, and the script has "
                f"{', '.join(objects) or 'nothing'} now.\n"
                "A checkpoint could not be restored: the next start of the script restores it into "
                "the objects from before training.\n"
                "Create all optimizers and schedulers before training, and change an optimizer's "
                "parameter groups instead of the optimizer."
            )

    def list_objects(self) -> list[str]:
        """Return the classes of all optimizers, schedulers and scalers."""
        objects = (*self.optimizers, *self.schedulers, *self.scalers)
        return [type(instance).__name__ for instance in objects]

    def _capture(self) -> StateFiles:
        share_buffers(self.models)
        files = StateFiles()
        if self.rank == 0:
            capture_shared(self, files)
            if self.extra is not None:
                self.extra(files)
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        trained = {id(parameter) for group in groups for parameter in group["params"]}
        capture_worker(
            files,
            models=self.models,
            callbacks=self.callbacks,
            batches=self.batches,
            attributes=self.trial_attributes(),
            applied=trained if self.has_updated else (),
        )
        self._tensors = files.list_tensors()
        return files
