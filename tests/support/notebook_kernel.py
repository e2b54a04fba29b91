"""Run cells in a real Jupyter kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

__all__ = ["RunCell", "start_kernel"]

RunCell = Callable[[str], tuple[dict[str, Any], str]]


@contextlib.contextmanager
def start_kernel(folder: Path, variables: dict[str, str]) -> Iterator[RunCell]:
    """Start a kernel in a new directory, and yield a function that runs a cell.

    The result of a cell is the kernel's reply and the cell's output.
    """
    folder.mkdir()
    manager = KernelManager(kernel_name="python3")
    environment = {**variables, "IPYTHONDIR": str(folder.parent / "ipython")}
    manager.start_kernel(env=environment, cwd=str(folder))
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=120)

    def run(cell: str) -> tuple[dict[str, Any], str]:
        printed: list[str] = []

        def take(message: Any) -> None:
            printed.append(message["content"].get("text", ""))

        reply = client.execute_interactive(cell, timeout=120, output_hook=take, allow_stdin=False)
        return reply["content"], "".join(printed)

    yield run
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()
