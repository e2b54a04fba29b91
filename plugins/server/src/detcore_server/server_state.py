"""State shared by the routes of a server."""

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


# Hashing a password requires 64 MiB of memory and one core.
_HASHES_AT_ONCE = 2
# Further submissions wait without blocking the threads of other routes.
_MAX_CONCURRENT_SUBMISSIONS = 4
# Reading a request that contains code may require hundreds of megabytes of memory.
_CODES_AT_ONCE = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """State shared by the routes of a server.

    Attributes:
        settings: Settings of the server.
        database: Record store.
        transport: Handles client requests.
        jobs: Queue of submitted experiments.
        throttle: Limits login attempts.
        hashing: Limiter held while a password is hashed.
        submission_limiter: Limiter held while an experiment is checked and its code unpacked.
        reading_code: Limiter held instead if the request contains the code.
        ending: Set when the server receives a signal to end. Requests that follow a log then stop.
        verifier: Verifies checkpoint files.
        visit: One-time link of ``detcore ui``. None: users log in.
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
        """Open the records. Close them with `close`.

        Args:
            settings: Settings of the server.
            visit: One-time link of ``detcore ui``. None: users log in.

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
        """Ingest reports that workers could not store in the records."""
        home = self.settings.environment.home
        ingest_reports(self.database, home, experiment_id=experiment_id, trial_id=trial_id)

    def close(self) -> None:
        """Close the records."""
        self.transport.close()
        self.database.close()
