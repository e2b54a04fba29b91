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
        """Whether it cannot be imported, only written in place of each use."""
        return "(" in self.name

    @property
    def head(self) -> str:
        """The name to import: of an expression, the part before the call."""
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
    wanted, dropped = _published(path)
    if wanted[:2] == ("determined", "experimental") and wanted[2:3] != ("client",):
        of_client = (*wanted[:2], "client", *wanted[2:])
        if len(wanted) > 2 and wanted[2][:1].isupper() and _is_listed(".".join(of_client[:4])):
            wanted, dropped = of_client, dropped - 1
    for length in range(len(wanted), 0, -1):
        name = ".".join(wanted[:length])
        target = target_of(name)
        if target is not None and (target.name or length == len(wanted)):
            return dataclasses.replace(target, used=length + dropped)
        if name in GONE:
            return Unknown(name, "detcore has nothing of that name", GONE[name])
    known = max(
        (length for length in range(1, len(wanted)) if ".".join(wanted[:length]) in MODULES),
        default=0,
    )
    name = ".".join(wanted[: known + 1])
    home = MODULES.get(".".join(wanted[:known]), "detcore")
    is_private = wanted[known].startswith("_")
    advice = "it was private; do without it" if is_private else "see docs/migrating.md"
    return Unknown(name, f"{home} has no {wanted[known]!r}", advice)


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


def _published(path: Path) -> tuple[Path, int]:
    """Return the published name of a path, and the number of parts that this saves.

    Determined's documentation shows ``determined.estimator._reducer.MetricReducer``, and users
    import it from there.
    """
    dotted = ".".join(path)
    for old, new in STAND_FOR.items():
        if dotted == old or dotted.startswith(f"{old}."):
            rest = path[old.count(".") + 1 :]
            modules = 0
            if new == "determined.experimental":
                while modules + 1 < len(rest) and rest[modules].islower():
                    modules += 1
            wanted = (*new.split("."), *rest[modules:])
            return wanted, len(path) - len(wanted)
    public = 0
    wanted = path[:1]
    for index, part in enumerate(path[1:], start=1):
        is_module = part.startswith("_") and not part.startswith("__") and part.islower()
        if is_module and index + 1 < len(path) and ".".join(wanted) in MODULES:
            public += 1
            continue
        wanted = (*wanted, part)
    return (wanted, public) if public and _is_known(wanted) else (path, 0)


def _is_known(path: Path) -> bool:
    names = (".".join(path[:length]) for length in range(2, len(path) + 1))
    return any(_is_listed(name) for name in names)


def _is_listed(name: str) -> bool:
    return name in MODULES or target_of(name) is not None or name in GONE
