"""Tools for launchers that start the workers of one trial on several machines.

The launcher decides on which machine each rank runs, and carries a few values between the machines.
This module does the rest: it numbers the workers (`place_ranks`), computes their environment
variables (`rank_variables`), starts one of them on its machine (`start_rank`), runs the
services of plugins by which libraries such as Horovod find the other workers (`find_services`),
handles the failure of one of them (`Workers`), and brings the trial's log to the runner from a
machine that does not share its folders (`LogSource` there, `LogCopy` here).
A service that can start any command on several machines is a `SupportsHosts`.
Tests that start workers without a runner create the log themselves (`create_log`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from detcore._log import open_log, read_spool, spool_path
from detcore.contract.errors import WorkerError
from detcore.contract.launch import (
    HostsJob,
    HostsRequest,
    Line,
    OutputSink,
    RankPlace,
    Rendezvous,
    RendezvousService,
    RendezvousStore,
    SupportsHosts,
)
from detcore.contract.values import TrialInfo
from detcore.launch._group import LocalWorkerGroup, Wake
from detcore.launch._hosts import interface_with
from detcore.launch._job import rank_variables
from detcore.launch._lines import LineCutter
from detcore.launch._local import LineSink, find_services
from detcore.launch._places import place_ranks, without_outer_job
from detcore.launch._workers import RemoteProcess, Workers

__all__ = [
    "HostsJob",
    "HostsRequest",
    "Line",
    "LineCutter",
    "LogCopy",
    "LogSource",
    "RankPlace",
    "RemoteProcess",
    "Rendezvous",
    "RendezvousService",
    "RendezvousStore",
    "SupportsHosts",
    "Workers",
    "create_log",
    "find_services",
    "interface_with",
    "log_header",
    "place_ranks",
    "rank_variables",
    "start_rank",
    "without_outer_job",
]

_MAX_HEADER_BYTES = 4096


def start_rank(
    info: TrialInfo,
    environment: Mapping[str, str],
    *,
    rank: int,
    home: Path,
    on_output: OutputSink,
    disabled_plugins: frozenset[str] = frozenset(),
    allowed_plugins: frozenset[str] | None = None,
) -> LocalWorkerGroup:
    """Start one worker of a trial on this machine; it ends when this process does.

    Args:
        info: Which trial it runs, with folders of this machine.
        environment: All of its variables, except those that the other arguments determine.
        rank: Which worker it is.
        home: The folder of records and default checkpoints.
        on_output: Called from threads, one at a time, with `rank`, the stream and the line.
        disabled_plugins: Plugins that are switched off in it.
        allowed_plugins: The only plugins that are on, or None for all.

    Returns:
        A group of this worker alone.

    Raises:
        WorkerError: If it cannot be started.
    """
    from detcore.hooks.delivery import write_run

    try:
        path = write_run(info)
    except OSError as error:
        raise WorkerError(
            f"rank {rank} did not start: nothing can be written below {info.trial_dir} on this "
            f"machine: {error.strerror}.\nDETCORE_HOME ({home}) is to be a folder that every "
            "machine of the trial may make or has in common."
        ) from error
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        channel, there = socket.socketpair()
        ours.callback(channel.close)
        theirs.callback(there.close)
        told = {
            **environment,
            "DETCORE_HOME": str(home),
            "DETCORE_TRIAL_INFO": str(path),
            "DETCORE_DISABLE_PLUGINS": ",".join(sorted(disabled_plugins)),
            "DETCORE_CHANNEL_FD": str(there.fileno()),
        }
        if allowed_plugins is not None:
            told["DETCORE_PLUGINS"] = ",".join(sorted(allowed_plugins))
        wake = Wake()
        ours.callback(wake.close)
        sink = LineSink(lambda _, stream, line: on_output(rank, stream, line))
        workers = Workers(sink, on_end=wake.set)
        with _all_signals():
            workers.start(
                [sys.executable, "-m", "detcore.launch.worker"],
                told,
                cwd=info.model_dir,
                keep_open=(there.fileno(),),
            )
        ours.pop_all()
    return LocalWorkerGroup(workers, None, channels=[channel], wake=wake)


@contextlib.contextmanager
def _all_signals() -> Iterator[None]:
    """Block no signals in a block: a process that is started there would block them too."""
    before = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def create_log(info: TrialInfo) -> None:
    """Create the log of a run, as the runner does before it starts the workers.

    For tests of launchers, which start workers without a runner.

    Raises:
        StorageFullError: If there is no room for its first line.
    """
    open_log(info).close()


def log_header(info: TrialInfo) -> bytes:
    """Return the first line of the log that the runner created for a run.

    Raises:
        WorkerError: If the runner has not created it.
    """
    path = spool_path(Path(info.trial_dir), info.run_id)
    try:
        with path.open("rb") as file:
            line = file.readline(_MAX_HEADER_BYTES)
    except FileNotFoundError:
        line = b""
    if not line.endswith(b"\n"):
        raise WorkerError(f"the log of trial {info.trial_id} is not there: {path}")
    return line


class LogSource:
    """Reads a log on the machine of rank 0, unless the runner sees the very same file.

    Made before the worker starts: on a machine without the runner's file it begins the log.

    Args:
        info: The trial, with folders of this machine.
        header: The result of the runner's `log_header`.

    Raises:
        OSError: If the log cannot be begun.
    """

    def __init__(self, info: TrialInfo, header: bytes) -> None:
        self._path = spool_path(Path(info.trial_dir), info.run_id)
        self._offset = len(header)
        self.is_shared = self._first_line() == header
        if not self.is_shared:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_bytes(header)

    def read(self, *, is_over: bool = False) -> tuple[int, bytes]:
        """Return lines that were not returned before, perhaps none, and where they begin.

        Args:
            is_over: Whether the worker has ended.
        """
        if self.is_shared:
            return self._offset, b""
        part = read_spool(self._path, self._offset, is_over=is_over)
        self._offset = part.end
        return part.start, part.lines

    def _first_line(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                return file.readline(_MAX_HEADER_BYTES)
        except FileNotFoundError:
            return b""


class LogCopy:
    """The runner's copy of a log that is written on another machine.

    Until it is closed, it holds the lock that marks the log as being written.

    Args:
        info: The trial; the runner has created the log.
    """

    def __init__(self, info: TrialInfo) -> None:
        path = spool_path(Path(info.trial_dir), info.run_id)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def append(self, start: int, lines: bytes) -> None:
        """Append lines that begin at a byte of the log; known ones are skipped.

        Raises:
            WorkerError: If lines before them are missing.
            OSError: If there is no room.
        """
        size = os.fstat(self._fd).st_size
        if start > size:
            raise WorkerError(f"the log of a trial has {size} bytes here, and continues at {start}")
        rest = lines[size - start :]
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def close(self) -> None:
        """Release it."""
        os.close(self._fd)
