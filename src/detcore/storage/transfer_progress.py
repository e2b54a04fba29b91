"""Watch transfers, and show a bar for long ones on a terminal."""

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
    """Receives the progress of transfers; most of them are short."""

    def transfer(self, name: str, size_bytes: int) -> AbstractContextManager[Progress]:
        """Begin to watch a transfer, which lasts as long as the block.

        Args:
            name: Operation and checkpoint, such as ``"saving 6d1c0a3b"``.
            size_bytes: Number of bytes to move or read.

        Returns:
            A context manager that provides a function to call, from any thread, with the bytes
            moved since the last call. Their sum may exceed `size_bytes` after retries.
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
        """Watch a transfer; see `TransferObserver.transfer`."""
        lock = threading.Lock()
        done = 0
        is_over = False
        shown: RichProgress | None = None

        def show() -> None:
            nonlocal shown
            with lock:
                if not is_over:
                    shown = _make_bar(self._console)
                    shown.add_task(name, total=size_bytes, completed=done)
                    shown.start()

        def advance(num_bytes: int) -> None:  # on any thread
            nonlocal done
            with lock:
                done += num_bytes
                if shown is not None:
                    shown.update(shown.task_ids[0], completed=min(done, size_bytes))

        # A timer rather than the first bytes: a transfer that waits for a server shows, too.
        timer = threading.Timer(self._delay_s, show)
        timer.daemon = True
        timer.start()
        try:
            yield advance
        finally:
            timer.cancel()
            with lock, contextlib.suppress(OSError):  # a terminal that has gone away
                is_over = True
                if shown is not None:
                    shown.stop()


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
