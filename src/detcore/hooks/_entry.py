"""Describe a plugin before it is imported."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from detcore.hooks._api import ApiRange

__all__ = ["BUILT_IN", "PluginEntry", "PluginState", "is_reserved"]

BUILT_IN = "core"
"""Name of the plugin that ships with detcore; it can be neither replaced nor switched off."""


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


def is_reserved(name: str, entry: PluginEntry, reserved: Mapping[str, str | None]) -> bool:
    """Whether a plugin may not register a command: it is built in, or another distribution's."""
    return name in reserved and reserved[name] != entry.distribution
