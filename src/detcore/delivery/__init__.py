"""Delivery of trial events to observers: in order, once, and later if a service is away."""

from detcore._log import (
    SpoolDamagedError,
    SpoolHeader,
    is_spool_in_use,
    read_spool,
    spool_owner,
    spool_path,
)
from detcore.delivery._courier import Stop
from detcore.delivery._events import tell_end_of_killed, tell_recovered
from detcore.delivery._late import LateDelivery, Waiting, count_waiting, deliver_waiting
from detcore.delivery._mailbox import (
    Cursor,
    Mailbox,
    find_mailboxes,
    read_run,
    run_path,
    subscribe,
    write_run,
)

__all__ = [
    "Cursor",
    "LateDelivery",
    "Mailbox",
    "SpoolDamagedError",
    "SpoolHeader",
    "Stop",
    "Waiting",
    "count_waiting",
    "deliver_waiting",
    "find_mailboxes",
    "is_spool_in_use",
    "read_run",
    "read_spool",
    "run_path",
    "spool_owner",
    "spool_path",
    "subscribe",
    "tell_end_of_killed",
    "tell_recovered",
    "write_run",
]
