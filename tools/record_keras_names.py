"""Record the public names of `tensorflow.keras`, against which `detcore migrate` checks imports.

Run it with the Python of both TensorFlow environments after a change of their lock files:

    .nox/tensorflow-2-15/bin/python tools/record_keras_names.py --write
    .nox/tensorflow/bin/python tools/record_keras_names.py --write
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import tensorflow

_FILE = (
    Path(__file__).parents[1] / "plugins/determined/src/detcore_determined/migrate/keras_names.json"
)


def list_names() -> dict[str, str]:
    """Return the names of each public module, by its dotted name below ``tensorflow.keras``."""
    recorded: dict[str, str] = {}
    pending: list[tuple[str, types.ModuleType]] = [("", tensorflow.keras)]
    while pending:
        path, module = pending.pop()
        names = []
        for name in dir(module):
            value = None if name.startswith("_") else getattr(module, name)
            if value is None or (isinstance(value, types.ModuleType) and not _is_package(value)):
                continue
            names.append(name)
            if isinstance(value, types.ModuleType):
                pending.append((f"{path}.{name}".lstrip("."), value))
        recorded[path] = " ".join(sorted(names))
    return dict(sorted(recorded.items()))


def _is_package(module: types.ModuleType) -> bool:
    """Whether a module belongs to the public tree, which consists of packages only."""
    return hasattr(module, "__path__")


def main(arguments: list[str]) -> int:
    """Compare the record with the installed TensorFlow, or write it with ``--write``."""
    release = "2.15" if tensorflow.__version__.startswith("2.15.") else "newest"
    record = json.loads(_FILE.read_text()) if _FILE.exists() else {}
    names = list_names()
    if "--write" in arguments:
        record = dict(sorted({**record, release: names}.items()))
        _FILE.write_text(json.dumps(record, indent=0) + "\n")
        return 0
    if record.get(release) == names:
        return 0
    print(f"{_FILE} does not match TensorFlow {tensorflow.__version__}; run with --write")
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
