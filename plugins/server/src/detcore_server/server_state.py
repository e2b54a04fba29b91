"""The state that the routes of one server share."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING

import anyio

from detcore.records import ingest_reports
from detcore_server.jobs.job_queue import Jobs
from detcore_server.pages.verification import Verifier
from detcore_server.served_transport import ServedTransport
from detcore_server.server_database import ServerDatabase
from detcore_server.users.throttle import Throttle

if TYPE_CHECKING:
    from detcore_server.server_settings import ServerSettings
    from detcore_server.users.one_time_link import Visit


# A hash of a password takes 64 MiB and all of a core.
_HASHES_AT_ONCE = 2
# Further submissions wait, and leave the threads that answer the other routes free.
_MAX_CONCURRENT_SUBMISSIONS = 4
# A request with the code in it may take hundreds of megabytes of memory while it is read.
_CODES_AT_ONCE = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """The state that the routes of one server share.

    Attributes:
        settings: Its settings.
        database: Its record store.
        transport: Answers the client's requests.
        jobs: Runs submitted experiments.
        throttle: Limits attempts to log in.
        hashing: Held while a password is hashed.
        submission_limiter: Held while an experiment is checked, and its code unpacked.
        reading_code: Held instead if the code is in the request.
        ending: Set when the server receives a signal to end: requests that follow a log stop then.
        verifier: Verifies checkpoints.
        visit: The link of the one person who is served (``detcore ui``); None: users log in.
    """

    settings: ServerSettings
    database: ServerDatabase
    transport: ServedTransport
    jobs: Jobs
    verifier: Verifier
    hashing: anyio.CapacityLimiter
    submission_limiter: anyio.CapacityLimiter
    reading_code: anyio.CapacityLimiter
    throttle: Throttle = dataclasses.field(default_factory=Throttle)
    ending: threading.Event = dataclasses.field(default_factory=threading.Event)
    visit: Visit | None = None

    @classmethod
    def open(cls, settings: ServerSettings, *, visit: Visit | None = None) -> ServerState:
        """Open the records; `close` closes them.

        Args:
            settings: The server's settings.
            visit: The link of the one person who is served; None: users log in.

        Raises:
            DatabaseError: If the database cannot be opened.
        """
        database = ServerDatabase.open(settings.environment.database_url)
        transport = ServedTransport(settings.environment)
        return cls(
            settings=settings,
            database=database,
            transport=transport,
            jobs=Jobs(settings, database, transport),
            verifier=Verifier(settings, database),
            hashing=anyio.CapacityLimiter(_HASHES_AT_ONCE),
            submission_limiter=anyio.CapacityLimiter(_MAX_CONCURRENT_SUBMISSIONS),
            reading_code=anyio.CapacityLimiter(_CODES_AT_ONCE),
            visit=visit,
        )

    def ingest_reports(self, experiment_id: int, trial_id: int | None = None) -> None:
        """Move reports into the records that workers could not move themselves."""
        home = self.settings.environment.home
        ingest_reports(self.database, home, experiment_id=experiment_id, trial_id=trial_id)

    def close(self) -> None:
        """Close the records."""
        self.transport.close()
        self.database.close()
