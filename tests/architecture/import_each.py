"""Import each module named on stdin alone, in a process of its own, with warnings as errors.

The processes are forks of this one, which has imported the heavy third-party libraries but nothing
of ours: a fresh interpreter per module would take minutes. Prints one JSON object: module ->
what went wrong, for the modules with which something did.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
import warnings

HEAVY = (
    "alembic", "alembic.command", "click", "fsspec", "importlib.metadata", "numpy", "platformdirs",
    "pluggy", "pydantic", "rich.console", "rich.live", "sqlalchemy", "sqlalchemy.orm", "yaml",
)  # fmt: skip


def examine(name: str) -> str:
    """Import a module; return what is wrong with it or with its ``__all__``, or nothing."""
    try:
        module = importlib.import_module(name)
        names = getattr(module, "__all__", [])
        missing = [public for public in names if not hasattr(module, public)]
    except BaseException:  # noqa: BLE001  (whatever it is, it is the finding)
        return traceback.format_exc(limit=-1)
    if missing:
        return f"__all__ has what the module has not: {missing}"
    if len(set(names)) < len(names):
        return f"__all__ says something twice: {names}"
    return ""


def examine_in_fork(name: str) -> str:
    """Run `examine` in a child process."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        warnings.simplefilter("error")
        text = examine(name)
        with os.fdopen(write_end, "w", encoding="utf-8") as pipe:
            pipe.write(text)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, encoding="utf-8") as pipe:
        found = pipe.read()
    _, status = os.waitpid(child, 0)
    return found or (f"the process ended with status {status}" if status else "")


def main() -> None:
    """Examine what stdin names."""
    for library in HEAVY:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(library)
    found = {name: examine_in_fork(name) for name in sys.stdin.read().split()}
    print(json.dumps({name: text for name, text in found.items() if text}))


if __name__ == "__main__":
    main()
