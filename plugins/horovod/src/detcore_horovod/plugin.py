"""Register Horovod's rendezvous, without importing Horovod."""

from __future__ import annotations

from detcore import hookimpl
from detcore.plugins import RendezvousType

__all__ = ["detcore_register_rendezvous"]


@hookimpl
def detcore_register_rendezvous() -> RendezvousType:
    """Register the service through which ``hvd.init()`` finds the other workers."""
    return RendezvousType(
        name="horovod", service="detcore_horovod.rendezvous_service:HorovodService"
    )
