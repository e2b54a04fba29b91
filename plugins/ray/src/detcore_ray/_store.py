"""The values of a rendezvous service, which rank 0's actor keeps, for the other nodes."""

from __future__ import annotations

from typing import Any

from detcore_ray._ray import ray


class AskStore:
    """Reaches the values over Ray's own connections, so that no port is opened for them.

    Args:
        chief: Handle of rank 0's actor.
        service: Name of the service.
    """

    def __init__(self, chief: Any, service: str) -> None:
        self._chief = chief
        self._service = service

    def get(self, scope: str, key: str) -> bytes | None:
        """Return a value, or None if it is not set yet."""
        found: bytes | None = ray.get(self._chief.store_get.remote(self._service, scope, key))
        return found

    def put(self, scope: str, key: str, value: bytes) -> bool:
        """Keep a value; return whether there was room for it."""
        return bool(ray.get(self._chief.store_put.remote(self._service, scope, key, value)))

    def delete(self, scope: str, key: str) -> None:
        """Record that a rank has left a scope."""
        ray.get(self._chief.store_delete.remote(self._service, scope, key))
