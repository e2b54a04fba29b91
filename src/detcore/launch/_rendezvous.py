"""Services over which the workers of a library with its own connections find each other."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from detcore.environment import read_environment
from detcore.errors import PluginError

if TYPE_CHECKING:
    from detcore.hooks import PluginManager
    from detcore.launch._places import RankPlace

__all__ = ["Rendezvous", "RendezvousService", "RendezvousStore", "find_services", "make_services"]


class RendezvousStore(Protocol):
    """Scopes of keys and values; called from threads."""

    def get(self, scope: str, key: str) -> bytes | None:
        """Return a value, or None if it is not set yet."""

    def put(self, scope: str, key: str, value: bytes) -> bool:
        """Keep a value; return whether there was room for it."""

    def delete(self, scope: str, key: str) -> None:
        """Record that a rank has left a scope."""


class Rendezvous(Protocol):
    """A service that runs on one machine while the job's workers there do."""

    def variables(
        self, place: RankPlace, *, interface: str | None, config: Mapping[str, object]
    ) -> dict[str, str]:
        """Return the environment variables by which a worker finds the service.

        Args:
            place: The worker, which is on this machine.
            interface: The network interface through which it reaches the others, or None.
            config: The experiment's configuration; empty for a command that is no trial.
        """

    def close(self) -> None:
        """Release ports."""


class RendezvousService(Protocol):
    """The service of one library, for jobs of several workers."""

    def make_store(self, places: Sequence[RankPlace]) -> RendezvousStore:
        """Return the values of a job, which are kept with rank 0.

        Args:
            places: All workers, by rank.
        """

    def open(self, places: Sequence[RankPlace], store: RendezvousStore) -> Rendezvous:
        """Start the service on this machine.

        Args:
            places: All workers, by rank.
            store: The job's values, or an object that reaches them on another machine.
        """


def find_services(
    *,
    disabled_plugins: frozenset[str] = frozenset(),
    allowed_plugins: frozenset[str] | None = None,
) -> dict[str, RendezvousService]:
    """Return the services that plugins have registered, by name.

    Args:
        disabled_plugins: Plugins that are switched off.
        allowed_plugins: The only plugins that are on, or None for all.

    Raises:
        PluginError: If a service cannot be imported.
    """
    from detcore.hooks import PluginManager

    return make_services(
        PluginManager(read_environment(), disabled=disabled_plugins, allowed=allowed_plugins)
    )


def make_services(plugins: PluginManager) -> dict[str, RendezvousService]:
    """Return the services that plugins have registered, by name; see `find_services`."""
    return {name: _make(name, kind.service) for name, kind in plugins.rendezvous().items()}


def _make(name: str, service: str) -> RendezvousService:
    module, _, attribute = service.partition(":")
    try:
        made: RendezvousService = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"the rendezvous {name!r} ({service}) cannot be imported: {error}"
        ) from error
    return made
