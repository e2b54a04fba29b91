"""Leftovers of runs in places that they must leave clean."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

from detcore_testing._command import DetcoreCommand

__all__ = ["PROCESSES", "Strays"]

PROCESSES = "processes"
# Python's own, wherever it imports from: TensorFlow does so from the folder for temporary files.
_COMPILED = "__pycache__"


class Strays:
    """Processes, and files outside of checkpoints.

    Args:
        detcore: Runs the commands.
        model_dir: Folder of the trials' code.
        temporary: Folder that the processes use for temporary files.
        storage: Folder of the checkpoints.
    """

    def __init__(
        self, detcore: DetcoreCommand, *, model_dir: Path, temporary: Path, storage: Path
    ) -> None:
        self._detcore = detcore
        self._model_dir = model_dir
        self._temporary = temporary
        self._storage = storage

    def look(self, *, patience_s: float = 0.0) -> dict[str, set[str]]:
        """Return the processes and files that exist now, by place.

        Args:
            patience_s: How long processes may take to end by themselves, in seconds.
        """
        processes = self._detcore.leftovers(patience_s)
        working = {name for name in _names(self._detcore.folder) if not name.startswith("config-")}
        return {
            PROCESSES: {f"{pid}: {line}" for pid, line in processes.items()},
            "the folder of the user's code": {
                path.relative_to(self._model_dir).as_posix()
                for path in self._model_dir.rglob("*")
                if _COMPILED not in path.parts
            },
            "the folder for temporary files": _names(self._temporary),
            "the working directory": working - {self._detcore.home.name},
            "the storage, beside checkpoints": {
                name for name in _names(self._storage) if not _is_of_storage(name)
            },
        }

    def since(self, before: Mapping[str, set[str]]) -> tuple[str, ...]:
        """Return the processes and files that are new since `before`, a line for each place.

        Args:
            before: An earlier result of `look`.
        """
        now = self.look()
        if now[PROCESSES] - before[PROCESSES]:
            now = self.look(patience_s=5.0)
        new = {place: sorted(names - before[place]) for place, names in now.items()}
        return tuple(f"{place}: {', '.join(names)}" for place, names in new.items() if names)


def _names(folder: Path) -> set[str]:
    if not folder.exists():
        return set()
    return {path.name for path in folder.iterdir()} - {_COMPILED}


def _is_of_storage(name: str) -> bool:
    """Whether it is called as a checkpoint is, or is the storage's own."""
    try:
        uuid.UUID(name)
    except ValueError:
        return name.startswith(".")
    return True
