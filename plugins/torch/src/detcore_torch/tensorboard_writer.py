"""Write values, images and other summaries to a trial's TensorBoard event files."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detcore import core
from detcore.environment import read_environment
from detcore.errors import InvalidExperimentError

_METHODS = ("close", "flush", "get_logdir")
_FLUSH_S = 10


class _WithoutState:
    """Base class of objects of a trial that need not be part of checkpoints."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing."""


class EventWriter(_WithoutState):
    """A ``torch.utils.tensorboard.SummaryWriter`` that is created at its first use.

    It has the methods ``add_...``, ``flush``, ``close`` and ``get_logdir``.

    Args:
        find_directory: Returns the directory of the event files.
    """

    def __init__(self, find_directory: Callable[[], Path]) -> None:
        self._find_directory = find_directory
        self._writer: Any = None

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("add_") and name not in _METHODS:
            raise AttributeError(f"the TensorBoard writer has no attribute {name!r}")
        if self._writer is None:
            self._writer = self._open()
        return getattr(self._writer, name)

    def _open(self) -> Any:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InvalidExperimentError(
                "TensorBoard's writer is not installed.\nInstall it:  pip install tensorboard"
            ) from error
        writer = SummaryWriter(str(self._find_directory()), flush_secs=_FLUSH_S)
        weakref.finalize(self, writer.close)  # also when the process ends
        return writer


class TorchWriter(_WithoutState):
    """Writes to the event files of this process's trial.

    In a script without ``detcore run``, the files are in the directory ``tensorboard``.

    Attributes:
        writer: A ``torch.utils.tensorboard.SummaryWriter``, such as for images.
    """

    def __init__(self) -> None:
        self.writer: Any = EventWriter(_find_trial_directory)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Add a value.

        Args:
            name: Its name.
            value: A number.
            step: The batch.
        """
        self.writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Write all values to the file."""
        self.writer.flush()

    def reset(self) -> None:
        """Close the file; the next value opens another file."""
        self.writer.close()


def _find_trial_directory() -> Path:
    environment = read_environment()
    if environment.trial_info is None:
        return Path.cwd() / "tensorboard"
    return Path(core.read_trial_info(environment).trial_dir) / "tensorboard"
