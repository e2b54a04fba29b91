"""Many reporters in one process, each with a real spool that it sends to a server."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from running_server import quick_hash

from detcore._log import Spool, read_spool
from detcore_server._database import ServerDatabase

__all__ = ["Answer", "Reporter", "make_reporters"]

_AGAIN_S = 0.05
# Reports while the server is away; each is a request when it is there.
_MOST_WAITING = 5


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a server said."""

    status: int
    headers: dict[str, str]
    body: bytes


class Reporter:
    """Reports for one run, and sends each report by itself while the server answers.

    Attributes:
        appended: Reports that were made.
        acknowledged: Byte of the spool up to which the server said that it is taken in.
        arrived: Reports that it said so of.
        statuses: How often each status was answered.
    """

    def __init__(self, path: Path, *, trial_id: int, run_id: int, token: str) -> None:
        self.trial_id, self.run_id, self.token = trial_id, run_id, token
        self.spool = Spool(path, trial_id=trial_id, run_id=run_id)
        self.first = path.stat().st_size
        self.appended = 0
        self.arrived = 0
        self.acknowledged = self.first
        self.statuses = collections.Counter[int]()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def report_of(self, number: int) -> tuple[str, dict[str, Any]]:
        """Return kind and payload of a report, which tell whose and which one it is."""
        kind = "validation" if number % 50 == 0 else "training"
        return kind, {"steps_completed": number, "metrics": {"loss": self.trial_id + 1 / number}}

    def append(self) -> None:
        """Report once."""
        self.appended += 1
        self.spool.append(*self.report_of(self.appended))

    async def report(self, url: str, over: asyncio.Event, pause_s: float) -> None:
        """Report until it is over, and then send what is left."""
        is_left = True
        while is_left or not over.is_set():
            if not over.is_set() and self.appended - self.arrived < _MOST_WAITING:
                self.append()
            is_left = not await self.send_once(url)
            await asyncio.sleep(pause_s)
        await self.hang_up()

    async def send_once(self, url: str) -> bool:
        """Send what is there; return whether the server has everything now."""
        data = read_spool(self.spool.path, self.acknowledged).lines
        if not data:
            return True
        try:
            answer = await self.ask(url, self.acknowledged, data)
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            await self.hang_up()
            await asyncio.sleep(_AGAIN_S)
            return False
        self.statuses[answer.status] += 1
        if answer.status == 200:
            told = json.loads(answer.body)
            self.acknowledged, self.arrived = told["offset"], told["last_seq"]
        else:
            await asyncio.sleep(_AGAIN_S)
        return False

    async def ask(self, url: str, offset: int, data: bytes) -> Answer:
        """Send a part of a spool."""
        if self._streams is None:
            host, _, port = url.removeprefix("http://").rpartition(":")
            self._streams = await asyncio.open_connection(host, int(port))
        reader, writer = self._streams
        path = f"/api/detcore/v1/trials/{self.trial_id}/runs/{self.run_id}/spool"
        head = (
            f"POST {path}?offset={offset}&first={self.first} HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {self.token}\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        writer.write(head.encode() + data)
        return await asyncio.wait_for(_read(reader), 60)

    def close(self) -> None:
        """Close its files."""
        self.spool.close()

    async def hang_up(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            writer, self._streams = self._streams[1], None
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> Answer:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    pairs = (line.split(": ", 1) for line in lines if line)
    headers = {name.lower(): value for name, value in pairs}
    body = await reader.readexactly(int(headers["content-length"]))
    return Answer(int(first.split()[1]), headers, body)


@contextlib.contextmanager
def make_reporters(
    database: ServerDatabase, folder: Path, count: int
) -> Iterator[Sequence[Reporter]]:
    """Yield reporters, each with a trial, a run and a token of its own."""
    user = database.create_user(f"user-{secrets.token_hex(4)}", password_hash=quick_hash("x"))
    experiment = database.create_experiment(
        config={"name": "load"}, config_text=None, model_dir="/code", name="load"
    )
    reporters = []
    for number in range(count):
        trial = database.create_trial(experiment_id=experiment, hparams={}, seed=number)
        run = database.start_run(trial)
        token = secrets.token_urlsafe(16)
        digest = hashlib.sha256(token.encode()).hexdigest()
        until = time.time() + 3600
        database.add_token(digest, user_id=user.id, expires_at=until, trial_id=trial)
        path = folder / f"spool-{os.getpid()}-{trial}"
        reporters.append(Reporter(path, trial_id=trial, run_id=run, token=token))
    try:
        yield reporters
    finally:
        for reporter in reporters:
            reporter.close()
