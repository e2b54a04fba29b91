"""The place up to which the events of one trial were delivered to one plugin.

In the trial's folder, ``observers/<plugin>/`` holds ``run-<n>`` for each run of the trial with
events that are yet to be delivered to the plugin, and ``cursor``: the place in that run's log.
The process that delivers to the plugin locks the cursor.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import urllib.parse
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore._files import replace_file
from detcore.contract.errors import RunError, StorageError
from detcore.contract.values import TrialInfo

if TYPE_CHECKING:
    from detcore.hooks._entry import Observer

_SLOT_BYTES = 96
_RUN = "run-"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A place among the events of a trial.

    Attributes:
        run_id: The run.
        offset: Byte of its event log behind the last delivered event.
        trying: Number of the event that is being delivered; 0 = none.
    """

    run_id: int = 0
    offset: int = 0
    trying: int = 0


class Mailbox:
    """The events of one trial for one plugin. Not thread-safe.

    Reading needs no lock. `acquire` takes it; `write` and `close_run` need it.
    """

    def __init__(self, trial_dir: Path, plugin: str) -> None:
        self.trial_dir = Path(trial_dir)
        self.plugin = plugin
        self.folder = self.trial_dir / "observers" / urllib.parse.quote(plugin, safe="")
        self._fd: int | None = None
        self._generation = 0

    def runs(self) -> list[int]:
        """Return the runs with events that are yet to be delivered, in order."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        found = (name.removeprefix(_RUN) for name in names if name.startswith(_RUN))
        return sorted(int(number) for number in found if number.isdigit())

    def observes(self, run_id: int) -> bool:
        """Whether the plugin gets the events of a run, which is the newest one."""
        return run_id in self.runs() or self.read().run_id == run_id

    def add_run(self, run_id: int) -> None:
        """Let the plugin get the events of a run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{_RUN}{run_id}").touch()

    def acquire(self) -> bool:
        """Take the lock; return whether it could be taken. Taking it again is fine."""
        if self._fd is not None:
            return True
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            descriptor = os.open(self.folder / "cursor", flags, 0o644)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._fd = descriptor
        return True

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._fd is not None:
            # Unlocked explicitly: a process that was forked meanwhile has the file open, too.
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = None

    def read(self) -> Cursor:
        """Return the cursor; one at the beginning if none was saved."""
        try:
            data = (self.folder / "cursor").read_bytes()
        except FileNotFoundError:
            data = b""
        slots = [_parse(data[start : start + _SLOT_BYTES]) for start in (0, _SLOT_BYTES)]
        generation, cursor = max(filter(None, slots), default=(0, Cursor()), key=lambda s: s[0])
        self._generation = generation
        return cursor

    def write(self, cursor: Cursor) -> None:
        """Move the cursor. The one before stays until this one is written."""
        assert self._fd is not None  # callers hold the lock
        self._generation += 1
        place = _SLOT_BYTES * (self._generation % 2)
        os.pwrite(self._fd, _format(self._generation, cursor), place)

    def close_run(self, run_id: int) -> None:
        """Record that all events of a run were delivered."""
        (self.folder / f"{_RUN}{run_id}").unlink(missing_ok=True)

    def forget(self) -> bool:
        """Drop the undelivered events; return whether the lock could be taken for it."""
        if not self.runs():
            return True
        if not self.acquire():
            return False
        try:
            for run_id in self.runs():
                self.close_run(run_id)
        finally:
            self.release()
        return True


def subscribe(info: TrialInfo, observers: Sequence[Observer]) -> None:
    """Let plugins receive the events of a run that is about to start.

    Raises:
        StorageError: If that cannot be written in the trial's folder.
    """
    if not observers:
        return
    names = [observer.entry.name for observer in observers]
    try:
        write_run(info)
        for name in names:
            Mailbox(Path(info.trial_dir), name).add_run(info.run_id)
    except OSError as error:
        raise StorageError(
            f"it cannot be noted in {info.trial_dir} that {', '.join(names)} observe this trial: "
            f"{error}.\nMake room there, or switch them off: DETCORE_DISABLE_PLUGINS."
        ) from error


def mailboxes_of(trial_dir: Path) -> list[Mailbox]:
    """Return the mailboxes of a trial, also those in which nothing waits."""
    folders = sorted(Path(trial_dir).glob("observers/*"))
    return [Mailbox(trial_dir, urllib.parse.unquote(folder.name)) for folder in folders]


def find_mailboxes(home: Path, *, experiment_id: int | None = None) -> Iterator[Mailbox]:
    """Yield the mailboxes under a home in which something may wait, by experiment and trial.

    Args:
        home: `Environment.home`.
        experiment_id: Only those of this experiment.
    """
    experiment = "*" if experiment_id is None else experiment_id
    found = Path(home).glob(f"experiments/{experiment}/trials/*/observers/*/{_RUN}*")
    folders = {path.parent for path in found}
    for folder in sorted(folders, key=_place):
        yield Mailbox(folder.parents[1], urllib.parse.unquote(folder.name))


def _place(folder: Path) -> tuple[int, int, str]:
    numbers = (folder.parents[3].name, folder.parents[1].name)
    experiment, trial = (int(text) if text.isdigit() else 0 for text in numbers)
    return experiment, trial, folder.name


def _format(generation: int, cursor: Cursor) -> bytes:
    body = b"%d %d %d %d" % (generation, cursor.run_id, cursor.offset, cursor.trying)
    return (b"%08x %s" % (zlib.crc32(body), body)).ljust(_SLOT_BYTES - 1) + b"\n"


def _parse(slot: bytes) -> tuple[int, Cursor] | None:
    """Return the generation and cursor of a slot, or None if it was not written to its end."""
    digest, _, body = slot.rstrip(b" \n").partition(b" ")
    if not body or digest != b"%08x" % zlib.crc32(body):
        return None
    generation, run_id, offset, trying = map(int, body.split(b" "))
    return generation, Cursor(run_id=run_id, offset=offset, trying=trying)


def write_run(info: TrialInfo) -> Path:
    """Write the file that says which trial a run is of; return its path."""
    path = _path(Path(info.trial_dir), info.run_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The configuration may hold credentials: no other user may read it.
    text = json.dumps(info, indent=2, default=_plain)
    # At once: of several workers on this machine, one may read it already.
    replace_file(path, text.encode(), mode=0o600)
    return path


def read_run(trial_dir: Path, run_id: int) -> TrialInfo:
    """Read which trial a run was of; its folder may have been moved since.

    Raises:
        RunError: If the file is missing or cannot be used.
    """
    path = _path(trial_dir, run_id)
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known = {field.name for field in dataclasses.fields(TrialInfo)}
        # Observers do not need the fields that a later release added.
        told = {name: value for name, value in fields.items() if name in known}
        return TrialInfo(**{**told, "trial_dir": str(trial_dir)})
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{path} does not say which trial run {run_id} was of: {error}") from error


def _plain(value: object) -> Any:
    """Return a value that JSON has no form for as one that it has."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    to_list = getattr(value, "tolist", None)  # NumPy's
    if callable(to_list):
        return to_list()
    return dict(value) if isinstance(value, Mapping) else str(value)


def _path(trial_dir: Path, run_id: int) -> Path:
    return Path(trial_dir) / f"run-{run_id}.json"
