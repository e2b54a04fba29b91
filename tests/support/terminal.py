"""Run commands on a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["on_a_terminal", "without_colour"]


def on_a_terminal(
    command: Sequence[str],
    *,
    variables: Mapping[str, str],
    folder: Path,
    width: int = 100,
    stdout_too: bool = True,
) -> tuple[int, str, str]:
    """Run a command with standard error on a terminal.

    Args:
        command: Program and arguments.
        variables: Additional environment variables.
        folder: Working directory.
        width: Columns of the terminal.
        stdout_too: Whether standard output is also the terminal. Otherwise it is a pipe.

    Returns:
        Exit code, output to the terminal, and output to the pipe.
    """
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    environment = {**os.environ, "TERM": "xterm", **variables}
    environment.pop("COLUMNS", None)
    process = subprocess.Popen(
        command,
        stdout=follower if stdout_too else subprocess.PIPE,
        stderr=follower,
        env=environment,
        cwd=folder,
    )
    os.close(follower)
    output = b""
    while True:
        try:
            some = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not some:
            break
        output += some
    os.close(leader)
    piped, _ = process.communicate(timeout=60)
    return process.returncode, output.decode(), (piped or b"").decode()


def without_colour(text: str) -> str:
    """Remove escape sequences from a text."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
