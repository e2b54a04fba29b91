"""Look up the current name of a dotted name of Determined."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from detcore_determined.migrate.names import GONE, MODULES, MOVED, NOTES, ROOTS, SAME, STAND_FOR

Path: TypeAlias = "tuple[str, ...]"


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """Replacement for a name.

    Attributes:
        module: The module to import.
        name: The name to import from it; empty for the module itself. A name that contains a call
            is an expression.
        used: Number of parts of the old name that are replaced; attributes follow.
        note: Advice to check something; may be empty.
    """

    module: str
    name: str
    used: int
    note: str = ""

    @property
    def text(self) -> str:
        """The full dotted name."""
        return f"{self.module}.{self.name}" if self.name else self.module

    @property
    def is_expression(self) -> bool:
        """Whether the name cannot be imported, but only written in place of each use."""
        return "(" in self.name

    @property
    def head(self) -> str:
        """The name to import. For an expression, it is the part before the call."""
        return self.name.partition("(")[0]


@dataclasses.dataclass(frozen=True, slots=True)
class Unknown:
    """A name without a counterpart.

    Attributes:
        name: The shortest prefix of the name that does not exist.
        reason: Why, in a few words.
        advice: How to replace it.
    """

    name: str
    reason: str
    advice: str


def is_root(name: str) -> bool:
    """Whether a top-level package belongs to Determined."""
    return name in ROOTS


def look_up(path: Path) -> Target | Unknown:
    """Return the replacement for a dotted name.

    Args:
        path: Its parts, starting with a package in `ROOTS`; attributes of the object may follow.
    """
    public_path, dropped = _find_published(path)
    if public_path[:2] == ("determined", "experimental") and public_path[2:3] != ("client",):
        of_client = (*public_path[:2], "client", *public_path[2:])
        if (
            len(public_path) > 2
            and public_path[2][:1].isupper()
            and _is_listed(".".join(of_client[:4]))
        ):
            public_path, dropped = of_client, dropped - 1
    for length in range(len(public_path), 0, -1):
        name = ".".join(public_path[:length])
        target = target_of(name)
        if target is not None and (target.name or length == len(public_path)):
            return dataclasses.replace(target, used=length + dropped)
        if name in GONE:
            return Unknown(name, "detcore has no such name", GONE[name])
    prefix = max(
        (
            length
            for length in range(1, len(public_path))
            if ".".join(public_path[:length]) in MODULES
        ),
        default=0,
    )
    name = ".".join(public_path[: prefix + 1])
    home = MODULES.get(".".join(public_path[:prefix]), "detcore")
    is_private = public_path[prefix].startswith("_")
    advice = "it was private; remove it" if is_private else "see docs/migrating.md"
    return Unknown(name, f"{home} has no {public_path[prefix]!r}", advice)


def target_of(name: str) -> Target | None:
    """Return the target of a name in the tables, or None; `used` is not filled in."""
    note = NOTES.get(name, "")
    if name in MODULES:
        return Target(MODULES[name], "", 0, note)
    if name in MOVED:
        module, _, attribute = MOVED[name].partition(":")
        return Target(module, attribute, 0, note)
    module, _, last = name.rpartition(".")
    if last in SAME.get(module, ()):
        return Target(MODULES[module], last, 0, note)
    return None


def _find_published(path: Path) -> tuple[Path, int]:
    """Return the published name of a path, and the number of removed parts.

    Determined's documentation shows ``determined.estimator._reducer.MetricReducer``, and users
    import it from there.
    """
    dotted = ".".join(path)
    for old, new in STAND_FOR.items():
        if dotted == old or dotted.startswith(f"{old}."):
            attributes = path[old.count(".") + 1 :]
            modules = 0
            if new == "determined.experimental":
                while modules + 1 < len(attributes) and attributes[modules].islower():
                    modules += 1
            public_path = (*new.split("."), *attributes[modules:])
            return public_path, len(path) - len(public_path)
    public = 0
    public_path = path[:1]
    for index, part in enumerate(path[1:], start=1):
        is_module = part.startswith("_") and not part.startswith("__") and part.islower()
        if is_module and index + 1 < len(path) and ".".join(public_path) in MODULES:
            public += 1
            continue
        public_path = (*public_path, part)
    return (public_path, public) if public and _is_known(public_path) else (path, 0)


def _is_known(path: Path) -> bool:
    names = (".".join(path[:length]) for length in range(2, len(path) + 1))
    return any(_is_listed(name) for name in names)


def _is_listed(name: str) -> bool:
    return name in MODULES or target_of(name) is not None or name in GONE
