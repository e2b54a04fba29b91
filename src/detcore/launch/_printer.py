"""Print the lines of several workers on one terminal or in one log."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from typing import BinaryIO

from detcore.contract.launch import Line

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CLEAR = b"\r\x1b[K"
_LOG_INTERVAL_S = 10.0


class Printer:
    """Writes each line whole, with its rank in front.

    For a line that a rank keeps rewriting (a progress bar), a log gets the last state and some
    earlier ones; a terminal shows the states of the lowest such rank below all other lines.

    Args:
        stdout: Where lines from ``"stdout"`` go.
        stderr: Where lines from ``"stderr"`` go.
        log_interval_s: How often a log gets a state of a progress bar, in seconds.
    """

    def __init__(
        self, stdout: BinaryIO, stderr: BinaryIO, *, log_interval_s: float = _LOG_INTERVAL_S
    ) -> None:
        self._log_interval_s = log_interval_s
        self._streams = {"stdout": stdout, "stderr": stderr}
        self._terminals = {name for name, to in self._streams.items() if to.isatty()}
        self._bars: dict[tuple[int, str], bytes] = {}
        self._logged_at: dict[tuple[int, str], float] = {}
        self._status = b""
        self.is_broken = False

    def __call__(self, rank: int, stream: str, line: Line) -> None:
        """Write a line; see `detcore.launch._workers.Sink`."""
        place = (rank, stream)
        text = b"[rank=%d] %s" % (rank, line.text)
        if line.is_final:
            self._bars.pop(place, None)
            self._logged_at.pop(place, None)
            self._write(stream, text + b"\n")
        elif stream in self._terminals:
            self._bars[place] = text
            self._write(stream, b"")
        elif self._is_due(place):
            self._write(stream, text + b"\n")

    def _is_due(self, place: tuple[int, str]) -> bool:
        now = time.monotonic()
        if now - self._logged_at.setdefault(place, now) < self._log_interval_s:
            return False
        self._logged_at[place] = now
        return True

    def _write(self, stream: str, text: bytes) -> None:
        if stream in self._terminals:
            clear = _CLEAR if self._status else b""
            bar = self._bars[min(self._bars)] if self._bars else b""
            self._status = _fit(bar)
            text = clear + text + self._status
        if self.is_broken or not text:
            return
        try:
            self._streams[stream].write(text)
            self._streams[stream].flush()
        except BrokenPipeError:
            # The reader has ended, such as `| head`. Workers must not block on full pipes.
            self.is_broken = True

    def close(self) -> None:
        """Take the status line away."""
        if self._status and not self.is_broken:
            self._bars.clear()
            with contextlib.suppress(BrokenPipeError):
                self._write(min(self._terminals), b"")


def _fit(bar: bytes) -> bytes:
    """Return the part that fits on one terminal line, without colours, which cannot be cut."""
    columns = shutil.get_terminal_size().columns
    return _COLOUR.sub("", bar.decode("utf-8", "replace"))[: columns - 1].encode()
