"""From what a caller or the environment says to the store that answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.environment import read_environment
from detcore.errors import MasterNotSupportedError

if TYPE_CHECKING:
    from detcore.experimental._transport import Transport

__all__ = ["connect"]

_VARIABLES = "DETCORE_MASTER, DET_MASTER or DET_MASTER_ADDR"


def connect(master: str | None) -> Transport:
    """Return what answers for a master; nothing is opened yet.

    Args:
        master: Its address; None or "": the environment's, and where that names none, the records
            of this machine (``DETCORE_DB``, or SQLite in ``DETCORE_HOME``).

    Raises:
        MasterNotSupportedError: If a master is named, which this release cannot talk to.
    """
    environment = read_environment()
    address = master or environment.master
    if address:
        said = "as argument" if master else f"by a variable: {_VARIABLES}"
        leave_out = "leave master= out" if master else "unset the variable"
        raise MasterNotSupportedError(
            f"the master {address!r} is given ({said}), but this release does not talk HTTP to a "
            "master; a later one will.\n"
            "It reads and writes the records itself, with no server to start: "
            f"{leave_out}, and set DETCORE_HOME to the folder of records, or DETCORE_DB to the "
            "URL of the database that several machines share."
        )
    from detcore.experimental._embedded import EmbeddedTransport

    return EmbeddedTransport(environment)
