"""Describe a plugin before it is imported."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pluggy import HookCaller

__all__ = [
    "BUILT_IN",
    "ApiRange",
    "Observer",
    "PluginEntry",
    "PluginState",
    "format_version",
    "is_reserved",
]

BUILT_IN = "core"
"""Name of the plugin that ships with detcore; it can be neither replaced nor switched off."""
_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class ApiRange:
    """The versions of the hooks that a plugin supports.

    Attributes:
        minimum: The lowest version, inclusive.
        maximum: The highest version, inclusive; None for every later version with the same first
            number.
    """

    minimum: tuple[int, int]
    maximum: tuple[int, int] | None = None

    @classmethod
    def parse(cls, text: str) -> ApiRange:
        """Parse ``"1.0"`` (from 1.0, below 2.0) or ``"1.0:1.4"`` (both inclusive).

        Raises:
            ValueError: If `text` is neither, or the range is empty.
        """
        low, colon, high = text.partition(":")
        minimum = _parse_version(low)
        maximum = _parse_version(high) if colon else None
        if maximum is not None and maximum < minimum:
            raise ValueError(f"the range ends ({high.strip()}) before it starts ({low.strip()})")
        return cls(minimum, maximum)

    def is_too_old_for(self, version: tuple[int, int]) -> bool:
        """Whether every version in the range is lower than `version`."""
        if self.maximum is not None:
            return self.maximum < version
        return self.minimum[0] < version[0]

    def is_too_new_for(self, version: tuple[int, int]) -> bool:
        """Whether every version in the range is higher than `version`."""
        return self.minimum > version

    def __str__(self) -> str:
        low = format_version(self.minimum)
        return low if self.maximum is None else f"{low}:{format_version(self.maximum)}"


def format_version(version: tuple[int, int]) -> str:
    """Return the version as text, such as ``"1.0"``."""
    return f"{version[0]}.{version[1]}"


def _parse_version(text: str) -> tuple[int, int]:
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text.strip()!r} is not a version such as 1.0")
    return int(match[1]), int(match[2])


class PluginState(str, enum.Enum):
    """State of a plugin."""

    READY = "ready"
    LOADED = "loaded"
    DISABLED = "switched off"
    NOT_ALLOWED = "not in the allow-list"
    INCOMPATIBLE = "incompatible"
    CONFLICT = "name conflict"
    BROKEN = "broken"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PluginEntry:
    """An installed plugin.

    Attributes:
        name: The plugin's name, from its entry point.
        value: The module, or ``"module:object"``, that implements the hooks.
        distribution: Name of its distribution.
        version: Version of the distribution.
        folder: The folder of the distribution's metadata.
        source: Arguments for pip to reinstall the distribution.
        api: Supported versions of the hooks; None if not declared, or not readable.
        state: Its state.
        commands: Names of the commands that its distribution declares for it.
    """

    name: str
    value: str
    distribution: str
    version: str
    folder: str
    source: tuple[str, ...]
    api: ApiRange | None
    state: PluginState
    commands: tuple[str, ...] = ()

    @property
    def is_built_in(self) -> bool:
        """Whether it ships with detcore."""
        return self.name == BUILT_IN and self.distribution == "detcore"

    @property
    def label(self) -> str:
        """The plugin and its distribution, for messages."""
        return f"{self.name} ({self.distribution} {self.version})"


def is_reserved(name: str, entry: PluginEntry, reserved: Mapping[str, Sequence[str]]) -> bool:
    """Whether a plugin may not register a command: it is built in, or another distribution's."""
    return name in reserved and entry.distribution not in reserved[name]


class Observer:
    """A plugin with observer hooks.

    Made by `PluginManager.observers`; from then on, any single thread may use it.

    Attributes:
        entry: The plugin.
        hooks: Names of its observer hooks.
    """

    def __init__(self, entry: PluginEntry, callers: Mapping[str, HookCaller]) -> None:
        self.entry = entry
        self._callers = dict(callers)
        self.hooks = frozenset(callers)

    def tell(self, hook: str, arguments: Mapping[str, object]) -> None:
        """Call one of its hooks.

        Raises:
            BaseException: The exception of the hook. `detcore.errors.UnavailableError` requests the
                same call again later.
        """
        self._callers[hook](**arguments)
