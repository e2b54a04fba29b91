"""The thread that writes what many reporters send at once, on each database."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, func, select

from detcore._log.lines import record_line
from detcore.database import MetricRecord, Position, SpoolPart
from detcore.database._schema import metrics, spools
from detcore.environment import read_environment
from detcore.errors import NotFoundError
from detcore.hooks import PluginManager
from detcore.hooks.delivery import SpoolHeader
from detcore_server import ServerSettings, _writer, make_app
from detcore_server._database import ServerDatabase, new_token, token_digest
from detcore_server._writer import BusyError, RefusedError, Writer

FIRST = 50


def _trials(database: ServerDatabase, count: int) -> list[int]:
    experiment = database.create_experiment(
        config={"name": "one"}, config_text=None, model_dir="/code", name="one"
    )
    made = [
        database.create_trial(experiment_id=experiment, hparams={}, seed=0) for _ in range(count)
    ]
    for trial in made:
        database.start_run(trial)
    return made


def _line(number: int = 1) -> bytes:
    return record_line(number, "training", 1e9, {"steps_completed": number, "metrics": {"x": 0.5}})


def _lines(trial: int, run: int, *, start: int = FIRST, data: bytes | None = None) -> SpoolPart:
    header = SpoolHeader(trial, run, FIRST)
    return SpoolPart(header=header, start=start, lines=_line() if data is None else data)


def _count(database: ServerDatabase) -> int:
    with database._read() as connection:
        return int(connection.execute(select(func.count()).select_from(metrics)).scalar() or 0)


@contextlib.contextmanager
def _counted(database: ServerDatabase) -> Iterator[list[object]]:
    commits: list[object] = []

    def note(connection: object) -> None:
        commits.append(connection)

    event.listen(database._engine, "commit", note)
    yield commits
    event.remove(database._engine, "commit", note)


def _run(database: ServerDatabase, work: Callable[[Writer], Awaitable[None]]) -> None:
    async def run() -> None:
        writer = Writer(database)
        try:
            await asyncio.wait_for(work(writer), 60)
        finally:
            writer.close()

    asyncio.run(run())


def _send(writer: Writer, trial: int, data: bytes | None = None) -> asyncio.Future[Position]:
    return writer.add(_lines(trial, 1, data=data))


def test_what_waits_is_written_by_one_transaction(database: ServerDatabase) -> None:
    trials = _trials(database, 100)

    async def work(writer: Writer) -> None:
        with _counted(database) as commits:
            with database._write():  # all of them come while another one writes
                asked = [_send(writer, trial) for trial in trials]
            found = await asyncio.gather(*asked)
        assert {(each.offset, each.last_seq) for each in found} == {(FIRST + len(_line()), 1)}
        # The one above, the first report's or those that the thread took with it, and the rest.
        assert 2 <= len(commits) <= 3

    _run(database, work)
    assert _count(database) == 100


def test_it_is_answered_when_it_is_committed_and_not_before(database: ServerDatabase) -> None:
    [trial] = _trials(database, 1)

    async def work(writer: Writer) -> None:
        with database._write():
            asked = _send(writer, trial)
            assert not (await asyncio.wait([asked], timeout=0.3))[0]
        await asked
        assert _count(database) == 1

    _run(database, work)


def test_one_spool_in_one_transaction_several_times(database: ServerDatabase) -> None:
    """Two senders, one of them further: what begins where the last one ended is taken in."""
    [trial] = _trials(database, 1)
    length = len(_line())

    async def work(writer: Writer) -> None:
        with database._write():
            asked = [
                _send(writer, trial),
                _send(writer, trial),
                writer.add(_lines(trial, 1, start=FIRST + length, data=_line(2))),
                _send(writer, trial, _line() + _line(2) + _line(3)),
            ]
        found = await asyncio.gather(*asked)
        assert [each.last_seq for each in found] == [1, 1, 2, 2]
        assert found[-1].offset == FIRST + 2 * length

    _run(database, work)
    assert _count(database) == 2


def test_what_cannot_be_written_fails_alone(database: ServerDatabase) -> None:
    trials = _trials(database, 9)
    row = MetricRecord(
        trial_id=trials[4], run_id=1, seq=1, kind="training", steps_completed=1, metrics={}
    )
    database.add_metrics([row])

    async def work(writer: Writer) -> None:
        with database._write():
            asked = [_send(writer, trial) for trial in [*trials, trials[-1] + 1]]
            asked.append(writer.add(_lines(trials[0], 2)))
        found = await asyncio.gather(*asked, return_exceptions=True)
        kinds = [type(each) for each in found]
        expected: list[type] = [Position] * 9 + [NotFoundError] * 2
        expected[4] = RefusedError
        assert kinds == expected

    _run(database, work)
    assert _count(database) == 9
    with database._read() as connection:
        known = connection.execute(select(spools.c.trial_id)).scalars().all()
    assert sorted(known) == sorted(set(trials) - {trials[4]})


@pytest.mark.parametrize(("name", "most"), [("_WAITING_PARTS", 3), ("_WAITING_BYTES", 1000)])
def test_more_than_it_can_hold_is_refused(
    database: ServerDatabase, monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    [trial] = _trials(database, 1)
    monkeypatch.setattr(_writer, name, most)

    async def work(writer: Writer) -> None:
        with database._write():
            asked = [_send(writer, trial)]
            while writer._waiting:  # the thread has this one, and takes no more meanwhile
                await asyncio.sleep(0.01)
            with contextlib.suppress(BusyError):
                for _ in range(50):
                    asked.append(_send(writer, trial))
            assert 3 <= len(asked) < 50
            with pytest.raises(BusyError, match="waiting to be written"):
                _send(writer, trial)
        await asyncio.gather(*asked)
        await _send(writer, trial)  # there is room again

    _run(database, work)
    assert _count(database) == 1


def test_at_its_end_it_writes_what_waits(database: ServerDatabase) -> None:
    trials = _trials(database, 20)

    async def run() -> None:
        writer = Writer(database)
        asked = [_send(writer, trial) for trial in trials]
        await asyncio.to_thread(writer.close)
        with pytest.raises(BusyError):
            _send(writer, trials[0])
        await asyncio.gather(*asked)

    asyncio.run(run())
    assert _count(database) == 20


def test_a_request_that_finds_no_room_is_told_when_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = read_environment({"DETCORE_HOME": str(tmp_path)})
    with ServerDatabase.open(environment.database_url) as database:
        user, token = database.create_user("ada", password_hash=None), new_token()
        database.add_token(token_digest(token), user_id=user.id, expires_at=2**33)
        [trial] = _trials(database, 1)
    app = make_app(ServerSettings(environment=environment, plugins=PluginManager(environment)))

    async def ask(state: Any) -> tuple[int, dict[bytes, bytes], Any]:
        told: list[dict[str, Any]] = []
        scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": f"/api/detcore/v1/trials/{trial}/runs/1/spool", "root_path": "",
            "query_string": b"offset=50&first=50", "state": dict(state), "client": ("x", 1),
            "headers": [(b"authorization", b"Bearer " + token.encode()), (b"host", b"x")],
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": _line(), "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            told.append(message)

        await app(scope, receive, send)  # type: ignore[arg-type]  # mutable mappings
        return told[0]["status"], dict(told[0]["headers"]), json.loads(told[1]["body"])

    async def run() -> None:
        async with app.router.lifespan_context(app) as state:
            for _ in range(2):  # by the route, and past it
                with monkeypatch.context() as patched:
                    patched.setattr(_writer, "_WAITING_PARTS", 0)
                    status, headers, told = await ask(state)
                assert (status, headers[b"retry-after"]) == (503, b"1")
                assert told["error"]["type"] == "DatabaseError"
            assert (await ask(state))[0] == 200

    asyncio.run(run())
