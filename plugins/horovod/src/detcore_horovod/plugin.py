"""Register ``detcore launch`` and Horovod's rendezvous, without importing Horovod."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore import hookimpl
from detcore.hooks import RendezvousType

if TYPE_CHECKING:
    import click

__all__ = ["detcore_register_commands", "detcore_register_rendezvous"]


@hookimpl
def detcore_register_commands() -> click.Command:
    """Register ``detcore launch``."""
    from detcore_horovod._command import launch

    return launch


@hookimpl
def detcore_register_rendezvous() -> RendezvousType:
    """Register the service over which ``hvd.init()`` finds the other workers."""
    return RendezvousType(name="horovod", service="detcore_horovod._service:HorovodService")
