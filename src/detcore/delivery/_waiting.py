"""The undelivered events under a home, and their delivery to observers."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable

from detcore._log import read_records, spool_path
from detcore.delivery._courier import Courier, Failures, Stop
from detcore.delivery._events import hook_of
from detcore.delivery._mailbox import Mailbox
from detcore.delivery._runs import read_run
from detcore.errors import DatabaseError
from detcore.hooks import OBSERVER_HOOKS, Observer

__all__ = ["Waiting", "count_waiting", "deliver_waiting"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The undelivered events of one trial for one plugin.

    Attributes:
        num_events: How many events.
        since: When the oldest of them happened, in seconds since 1970; None without events.
    """

    num_events: int
    since: float | None


def count_waiting(mailbox: Mailbox, hooks: Iterable[str] = OBSERVER_HOOKS) -> Waiting:
    """Count the events that were not delivered to a plugin yet.

    Args:
        mailbox: Whose events.
        hooks: The plugin's observer hooks; all, where it is not installed.
    """
    wanted = frozenset(hooks)
    cursor = mailbox.read()
    count, since = 0, None
    for run_id in mailbox.runs():
        if run_id < cursor.run_id:
            continue
        offset = cursor.offset if run_id == cursor.run_id else 0
        with contextlib.suppress(DatabaseError, FileNotFoundError):  # reported at the delivery
            for record in read_records(spool_path(mailbox.trial_dir, run_id), offset):
                if hook_of(record.event) in wanted:
                    count += 1
                    since = record.time if since is None else since
    return Waiting(num_events=count, since=since)


def deliver_waiting(
    observer: Observer,
    mailboxes: Iterable[Mailbox],
    should_stop: Callable[[], bool] = lambda: False,
    *,
    failures: Failures | None = None,
) -> tuple[int, str | None]:
    """Deliver the undelivered events of some trials to one plugin.

    Trials whose events another process is delivering are left out. If the plugin's service is away,
    the rest is left for later.

    Args:
        observer: The plugin.
        mailboxes: Its mailboxes.
        should_stop: Called between two events.
        failures: Counts the failures of its hooks; None: they are logged for each trial.

    Returns:
        How many events were delivered, and why the rest was not, if its service is away.
    """
    told = 0
    for mailbox in mailboxes:
        if not mailbox.runs():
            continue
        courier = Courier(
            mailbox,
            observer,
            functools.partial(read_run, mailbox.trial_dir),
            is_quiet=True,
            failures=failures,
        )
        try:
            stop = courier.deliver(should_stop)
        finally:
            told += courier.num_told
            courier.close()
        if stop is Stop.UNAVAILABLE:
            return told, courier.problem
        if stop is Stop.ASKED:
            break
    return told, None
