"""Find where the public Keras has a name, from a record of both supported TensorFlow releases.

The record, ``keras_names.json``, is written by ``tools/record_keras_names.py``, so that neither
TensorFlow has to be installed where code is migrated.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Iterator, Mapping

_OLD, _NEWEST = "2.15", "newest"
_WITHOUT_PUBLIC_NAME = {"datasets.cifar.load_batch": "src.datasets.cifar.load_batch"}
"""Functions that no public module has, with the place where both releases have them."""


def find_public_name(name: str) -> str | None:
    """Return the public form of a name in a private or former module of Keras, or None.

    A name keeps its module if that has it (``layers.Dense``). Otherwise the nearest enclosing
    module counts (``utils.data_utils.Sequence`` is ``utils.Sequence``), and then the only module
    that has it (``optimizer_v2.adam.Adam`` is ``optimizers.Adam``).

    Args:
        name: A dotted name below ``tensorflow.python.keras``; attributes of the object may follow.
    """
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        private = ".".join(parts[:length])
        public = _WITHOUT_PUBLIC_NAME.get(private) or _find_enclosing(private)
        if public is None and length == len(parts):
            homes = find_homes(parts[-1])
            public = homes[0] if len(homes) == 1 else None
        if public is not None and (length == len(parts) or not is_module(public)):
            return ".".join([public, *parts[length:]])
    return None


def find_homes(name: str) -> list[str]:
    """Return the full public names, below ``tensorflow.keras``, that end with a name."""
    homes = [
        f"{module}.{name}".lstrip(".")
        for module, names in _load()[_OLD].items()
        if name in names and not {"experimental", "legacy"} & set(module.split("."))
    ]
    return [home for home in homes if not find_missing(home, _NEWEST)] or homes


def find_missing(name: str, release: str = "") -> str:
    """Return the shortest prefix of a public name that a release does not have, or ``""``.

    Args:
        name: A dotted name below ``tensorflow.keras``; attributes of the object may follow. Empty
            for the package itself.
        release: ``2.15`` or ``newest``; empty for a prefix that neither has.
    """
    missing = [_find_missing(_load()[key], name) for key in ([release] if release else _load())]
    return max(missing, key=len) if all(missing) else ""


def is_module(name: str) -> bool:
    """Whether a name below ``tensorflow.keras`` is a module."""
    return any(name in modules for modules in _load().values())


def _find_enclosing(private: str) -> str | None:
    """Return the name in its own module, or in the nearest enclosing one that has it."""
    module, _, name = private.rpartition(".")
    for path in _enclosing(module):
        if name in _load()[_OLD].get(path, ()):
            return f"{path}.{name}".lstrip(".")
    return None


def _enclosing(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield path


def _find_missing(modules: Mapping[str, frozenset[str]], name: str) -> str:
    path = ""
    for part in name.split(".") if name else ():
        if path not in modules or part.startswith("_") or part in ("api", "src"):
            return ""
        names = modules[path]
        path = f"{path}.{part}".lstrip(".")
        if part not in names:
            return path
    return ""


@functools.cache
def _load() -> Mapping[str, Mapping[str, frozenset[str]]]:
    """Return the names of each module of each release."""
    source = importlib.resources.files("detcore_determined.migrate") / "keras_names.json"
    record: dict[str, dict[str, str]] = json.loads(source.read_text(encoding="utf-8"))
    return {
        release: {module: frozenset(names.split()) for module, names in modules.items()}
        for release, modules in record.items()
    }
