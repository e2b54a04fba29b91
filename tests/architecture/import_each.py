"""Import the modules named on each line of stdin in a separate process, with warnings as errors.

The processes are forks of this one, which has imported the heavy third-party libraries but nothing
of ours: fresh interpreters would take minutes. Prints one JSON object: module -> what went wrong,
for the modules with which something did.
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
    "alembic", "alembic.command", "argon2", "asyncio", "click", "fastapi", "fastapi.responses",
    "fastapi.security", "fastapi.staticfiles", "fsspec", "hypothesis.stateful",
    "importlib.metadata", "jinja2", "numpy", "pathspec", "platformdirs", "pluggy", "pydantic",
    "pytest", "rich.console", "rich.live", "sqlalchemy", "sqlalchemy.orm", "urllib3", "uvicorn",
    "uvicorn.protocols.http.httptools_impl", "uvloop", "yaml",
)  # fmt: skip


def examine(name: str) -> str:
    """Import a module, and return the fault of the module or its ``__all__``, or nothing."""
    try:
        module = importlib.import_module(name)
        names = getattr(module, "__all__", [])
        missing = [public for public in names if not hasattr(module, public)]
    except BaseException:  # noqa: BLE001  (whatever it is, it is the finding)
        return traceback.format_exc(limit=-1)
    if missing:
        return f"__all__ lists undefined names: {missing}"
    if len(set(names)) < len(names):
        return f"__all__ says something twice: {names}"
    return ""


def examine_in_fork(names: list[str]) -> dict[str, str]:
    """Run `examine` in a child process, and return the faults by module."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        warnings.simplefilter("error")
        problem = {name: text for name in names if (text := examine(name))}
        with os.fdopen(write_end, "w", encoding="utf-8") as pipe:
            json.dump(problem, pipe)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, encoding="utf-8") as pipe:
        report = pipe.read()
    _, status = os.waitpid(child, 0)
    return dict(json.loads(report)) if report else {names[0]: f"it ended with status {status}"}


def main() -> None:
    """Examine the modules on each line of stdin."""
    for library in HEAVY:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(library)
    problem: dict[str, str] = {}
    for line in sys.stdin:
        problem |= examine_in_fork(line.split())
    print(json.dumps(problem))


if __name__ == "__main__":
    main()
