"""Report the progress of transfers, and show a progress bar for long transfers on a terminal."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress

    from detcore.contract.storage import Progress


_DELAY_S = 1.0


class TransferObserver(Protocol):
    """Receives the progress of transfers. Most transfers are short."""

    def transfer(self, name: str, size_bytes: int) -> AbstractContextManager[Progress]:
        """Observe a transfer for the duration of the block.

        Args:
            name: Operation and checkpoint, such as ``"saving 6d1c0a3b"``.
            size_bytes: Number of bytes to move or read.

        Returns:
            A context manager that provides a function. Call it from any thread with the number of
            bytes moved since the last call. The sum may exceed `size_bytes` after retries.
        """


@contextlib.contextmanager
def track_transfer(
    observer: TransferObserver | None, name: str, size_bytes: int
) -> Iterator[Progress | None]:
    """Provide a function that reports bytes to the observer, or None without an observer."""
    if observer is None or not size_bytes:
        yield None
        return
    with observer.transfer(name, size_bytes) as progress:
        yield progress


def watch_transfers(stream: TextIO) -> TransferObserver | None:
    """Return an observer that shows transfers on a stream, or None if it is not a terminal."""
    if stream.isatty():
        console = _make_console(stream)
        if console.is_interactive:  # excludes terminals that cannot rewrite a line
            return TransferBars(console)
    return None


class TransferBars:
    """Shows a bar for each transfer that lasts longer than a second, until it ends.

    Args:
        console: The console to draw on.
        delay_s: Seconds before a transfer gets a bar.
    """

    def __init__(self, console: Console, *, delay_s: float = _DELAY_S) -> None:
        self._console = console
        self._delay_s = delay_s

    @contextlib.contextmanager
    def transfer(self, name: str, size_bytes: int) -> Iterator[Progress]:
        """Observe a transfer; see `TransferObserver.transfer`."""
        lock = threading.Lock()
        num_done = 0
        is_over = False
        bar: RichProgress | None = None

        def show_bar() -> None:
            nonlocal bar
            with lock:
                if not is_over:
                    bar = _make_bar(self._console)
                    bar.add_task(name, total=size_bytes, completed=num_done)
                    bar.start()

        def advance(num_bytes: int) -> None:  # on any thread
            nonlocal num_done
            with lock:
                num_done += num_bytes
                if bar is not None:
                    bar.update(bar.task_ids[0], completed=min(num_done, size_bytes))

        # A timer also shows transfers that are still waiting for a server.
        timer = threading.Timer(self._delay_s, show_bar)
        timer.daemon = True
        timer.start()
        try:
            yield advance
        finally:
            timer.cancel()
            with lock, contextlib.suppress(OSError):  # the terminal may have been closed
                is_over = True
                if bar is not None:
                    bar.stop()


def _make_console(stream: TextIO) -> Console:
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False, emoji=False)


def _make_bar(console: Console) -> RichProgress:
    from rich import progress

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=None),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
        expand=True,
        # sys.stdout and sys.stderr belong to the user's script.
        redirect_stdout=False,
        redirect_stderr=False,
    )
