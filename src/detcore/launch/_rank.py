"""One rank of a job, started on the machine that it runs on."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from detcore.errors import WorkerError
from detcore.launch._group import LocalWorkerGroup, OutputSink, Wake
from detcore.launch._local import LineSink
from detcore.launch._workers import Workers
from detcore.types import TrialInfo

__all__ = ["start_rank"]


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
    from detcore.delivery import write_run

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
