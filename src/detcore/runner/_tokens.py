"""Letting the workers of trials report to a server, and nothing else."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.database import new_token, token_digest
from detcore.errors import DetcoreError

if TYPE_CHECKING:
    from detcore.database import Database
    from detcore.runner._listener import RunListener

__all__ = ["ReportTo", "TrialTokens"]

# Workers end with their runner, which renews their tokens: what a killed one leaves is of no use
# the day after.
_LIFETIME_S = 24 * 3600.0
_RENEW_S = 3600.0
_RETRY_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReportTo:
    """The server that the workers of an experiment report to.

    Attributes:
        url: How workers reach it, such as ``https://host:8080``.
        user_id: Whose experiment it is.
        certificate: File of the authorities (PEM) that its certificate is checked against; None:
            the system's.
    """

    url: str
    user_id: int
    certificate: Path | None = None


class TrialTokens:
    """Tokens for the workers of trials that run: each is good for one trial.

    Only their digests are kept. Each start of a trial gets a new one; it is renewed as long as the
    trial runs, and taken back at its end.

    Args:
        report_to: The server.
        database: Its record store, where this process notes the tokens itself.
        listener: Told when one could not be renewed.
    """

    def __init__(self, report_to: ReportTo, database: Database, listener: RunListener) -> None:
        self.url = report_to.url.rstrip("/")
        self._report_to = report_to
        self._database = database
        self._listener = listener
        self._digests: dict[int, str] = {}
        self._renew_at = time.monotonic() + _RENEW_S
        self._has_failed = False

    @classmethod
    def made_for(
        cls, report_to: ReportTo | None, database: Database, listener: RunListener
    ) -> TrialTokens | None:
        """Return the tokens for a server; None without one."""
        return None if report_to is None else cls(report_to, database, listener)

    def variables(self, trial_id: int) -> dict[str, str]:
        """Return what the workers of a trial that starts find in their environment.

        Raises:
            DatabaseError: If the token cannot be noted.
        """
        self._database.remove_trial_tokens(trial_id)
        token = new_token()
        self._digests[trial_id] = token_digest(token)
        self._note(trial_id)
        found = {"DETCORE_TOKEN": token}
        if self._report_to.certificate is not None:
            found["DETCORE_MASTER_CERT"] = str(self._report_to.certificate)
        return found

    def renew(self) -> None:
        """Renew the tokens of the trials that run, when it is time to; called often."""
        if time.monotonic() < self._renew_at:
            return
        self._renew_at = time.monotonic() + _RENEW_S
        try:
            for trial_id, digest in self._digests.items():
                until = time.time() + _LIFETIME_S
                # Gone: its user got another password. The experiment goes on all the same.
                if not self._database.extend_token(digest, expires_at=until):
                    self._note(trial_id)
        except DetcoreError as error:
            # There are hours left to try again in.
            self._renew_at = time.monotonic() + _RETRY_S
            if not self._has_failed:
                self._listener.notice(f"tokens of trials are not renewed yet: {error}")
            self._has_failed = True
        else:
            self._has_failed = False

    def revoke(self, trial_id: int) -> None:
        """Take back the token of a trial whose workers are gone; one that cannot be expires."""
        if self._digests.pop(trial_id, None) is None:
            return
        try:
            self._database.remove_trial_tokens(trial_id)
        except DetcoreError as error:
            self._listener.notice(
                f"the token of trial {trial_id} could not be taken back, and expires in "
                f"{_LIFETIME_S / 3600:.0f} hours: {error}"
            )

    def _note(self, trial_id: int) -> None:
        self._database.add_token(
            self._digests[trial_id],
            user_id=self._report_to.user_id,
            expires_at=time.time() + _LIFETIME_S,
            trial_id=trial_id,
        )
