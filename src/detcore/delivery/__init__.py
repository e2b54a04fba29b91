"""Delivery of trial events to observers: in order, once, and later if a service is away."""

from detcore._log import (
    SpoolDamagedError,
    SpoolHeader,
    is_spool_in_use,
    read_spool,
    spool_owner,
)
from detcore.delivery._courier import Stop
from detcore.delivery._events import recover_trial, tell_end_of_killed
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
    "recover_trial",
    "run_path",
    "spool_owner",
    "subscribe",
    "tell_end_of_killed",
    "write_run",
]
