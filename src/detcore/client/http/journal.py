"""The journal of a runner, which other processes and machines read to follow the runner."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.launch import WorkerEvent
from detcore.record_descriptions import visible_config
from detcore.records import LineFile
from detcore.run import RunListener, TrialStatus
from detcore.types import TrialInfo, TrialSettings, TrialState

__all__ = ["JournalListener", "JournalReplayer", "journal_path", "read_journal"]

if TYPE_CHECKING:
    from detcore.config import ExperimentConfig

_NAME = "journal.jsonl"
# Listener methods with JSON arguments.
_FORWARDED = ("search_progress", "notice")
# Longer lines are truncated. The trial's log contains the complete line.
_MAX_CHARACTERS = 1 << 14


def journal_path(folder: Path) -> Path:
    """Return the path of the journal in an experiment's directory."""
    return folder / _NAME


class JournalListener(RunListener):
    """A listener that appends all events to a file, with one JSON object per line.

    Each line is written immediately, so it survives the death of this process. If the disk is full,
    lines are lost, but the run continues. Secrets of the configuration are masked.

    Args:
        path: The file. Runners that resume the experiment append to it.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._file: LineFile | None = LineFile(path)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def search_started(self, config: ExperimentConfig) -> None:
        """Write the start of a runner."""
        sections = config.model_dump(mode="json", include={"searcher", "hyperparameters"})
        self._write_line("search_started", config=visible_config(sections))

    def trial_changed(self, status: TrialStatus) -> None:
        """Write the status of a trial."""
        fields = {name: getattr(status, name) for name in status.__slots__}
        self._write_line("trial_changed", **{**fields, "state": status.state.value})

    def search_progress(self, progress: float, planned_length: int = 0) -> None:
        """Write the progress of the search."""
        self._write_line("search_progress", progress=progress, planned_length=planned_length)

    def trial_started(self, info: TrialInfo, *, pid: int) -> None:
        """Write the start of a trial's workers."""
        self._write_line(
            "trial_started",
            info={
                "experiment_id": info.experiment_id,
                "trial_id": info.trial_id,
                "run_id": info.run_id,
                "hparams": info.hparams,
                "latest_checkpoint": info.latest_checkpoint,
                "steps_completed": info.steps_completed,
                "slots_per_trial": info.settings.slots_per_trial,
            },
            pid=pid,
        )

    def event(self, info: TrialInfo, event: WorkerEvent) -> None:
        """Write an event of a worker."""
        self._write_line("event", trial_id=info.trial_id, event=event.type, fields=event.fields)

    def output(self, info: TrialInfo, stream: str, line: str, *, rank: int) -> None:
        """Write an output line of a worker."""
        if len(line) > _MAX_CHARACTERS:
            line = f"{line[:_MAX_CHARACTERS]} ... ({len(line)} characters)"
        self._write_line("output", trial_id=info.trial_id, stream=stream, line=line, rank=rank)

    def notice(self, text: str) -> None:
        """Write a message."""
        self._write_line("notice", text=text)

    def _write_line(self, type: str, **fields: Any) -> None:
        line = json.dumps({"type": type, **fields}, default=str).encode()
        with self._lock, contextlib.suppress(OSError):
            if self._file is not None:
                self._file.append(line)


def read_journal(path: Path, position: int, *, most_bytes: int) -> tuple[list[str], int]:
    """Return complete lines of a journal from a position on, and the position after them.

    Args:
        path: The file. A missing file has no lines.
        position: Start in bytes: 0, or the position that an earlier call returned.
        most_bytes: Approximate number of bytes to read. At least one complete line is returned.
    """
    try:
        with path.open("rb") as file:
            file.seek(position)
            data = file.read(most_bytes)
            if b"\n" not in data:
                data += file.readline()
    except FileNotFoundError:
        return [], position
    data = data[: data.rfind(b"\n") + 1]
    return data.decode("utf-8", "replace").splitlines(), position + len(data)


class JournalReplayer:
    """Passes the events of a journal to a listener. Call it with each line in order."""

    def __init__(self, listener: RunListener) -> None:
        self._listener = listener
        self._infos: dict[int, TrialInfo] = {}

    def __call__(self, line: str) -> None:
        """Call the listener method for a line."""
        try:
            fields = json.loads(line)
            kind = fields.pop("type")
        except (ValueError, KeyError, AttributeError, TypeError):
            return  # truncated by a machine crash
        if kind in _FORWARDED:
            getattr(self._listener, kind)(**fields)
        else:
            getattr(self, f"_{kind}")(**fields)

    def _search_started(self, config: dict[str, Any]) -> None:
        from detcore.config import ExperimentConfig
        from detcore.config.experiment_config import SearcherSection

        # Not validated, because masked hyperparameters with secret names may be invalid ranges.
        self._listener.search_started(
            ExperimentConfig.model_construct(
                searcher=SearcherSection.model_validate(config["searcher"]),
                hyperparameters=config["hyperparameters"],
            )
        )

    def _trial_changed(self, **fields: Any) -> None:
        self._listener.trial_changed(
            TrialStatus(**{**fields, "state": TrialState(fields["state"])})
        )

    def _trial_started(self, info: dict[str, Any], pid: int) -> None:
        slots = info.pop("slots_per_trial")
        trial_info = TrialInfo(
            **info,
            trial_seed=0,
            config={},
            model_dir="",
            trial_dir="",
            settings=TrialSettings(slots_per_trial=slots),
        )
        self._infos[trial_info.trial_id] = trial_info
        self._listener.trial_started(trial_info, pid=pid)

    def _event(self, trial_id: int, event: str, fields: dict[str, Any]) -> None:
        info = self._infos.get(trial_id)
        if info is not None:
            self._listener.event(info, WorkerEvent(event, fields))

    def _output(self, trial_id: int, stream: str, line: str, rank: int) -> None:
        info = self._infos.get(trial_id)
        if info is not None:
            self._listener.output(info, stream, line, rank=rank)
