"""Many reporters at once, while the server is killed and started again."""

from __future__ import annotations

import asyncio
import collections
import json
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from postgresql_server import run_server
from reporters import Reporter, make_reporters
from running_server import RunningServer
from sqlalchemy import func, select

from detcore.database._schema import metrics, spools
from detcore_server._database import ServerDatabase

# Of each database: how many reporters, and how often the server is killed.
LOADS = {"sqlite": (200, 10), "postgresql": (50, 3)}
# The benchmark's figures are for a minute: DETCORE_LOAD_S=60.
SECONDS = float(os.environ.get("DETCORE_LOAD_S", "5"))
# Between two reports of one reporter, so that this measures no processor.
PAUSE_S = 0.1


@pytest.fixture
def moments() -> random.Random:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed of the moments: {seed}")
    return random.Random(seed)


@pytest.fixture
def postgresql_url() -> Iterator[str]:
    with run_server() as server:
        server.execute("CREATE DATABASE records")
        yield server.url("records")


@pytest.fixture(params=LOADS)
def load(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[RunningServer, ServerDatabase, int, int]]:
    """A server, its database, and its load."""
    variables = {}
    if request.param == "postgresql":
        variables["DETCORE_DB"] = request.getfixturevalue("postgresql_url")
    home = tmp_path / "home"
    home.mkdir()
    with (
        RunningServer(home, **variables) as server,
        ServerDatabase.open(server.database_url) as database,
    ):
        yield server, database, *LOADS[request.param]


def _check_at_kill(database: ServerDatabase, reporters: Sequence[Reporter]) -> int:
    """Compare a database whose server is dead with what was acknowledged; return the reports."""
    count = select(metrics.c.trial_id, func.count(), func.max(metrics.c.seq))
    with database._read() as connection:
        known = {row.trial_id: row for row in connection.execute(select(spools))}
        rows = connection.execute(count.group_by(metrics.c.trial_id))
        counted = {row[0]: (row[1], row[2]) for row in rows}
    for reporter in reporters:
        row = known.get(reporter.trial_id)
        offset, last_seq = (row.byte_offset, row.last_seq) if row else (reporter.first, 0)
        assert offset >= reporter.acknowledged
        assert reporter.arrived <= last_seq <= reporter.appended
        # Numbers of a run are unique, so these are all from 1 on, each once.
        assert counted.get(reporter.trial_id, (0, 0)) == (last_seq, last_seq)
    return sum(found[0] for found in counted.values())


def _check_at_end(database: ServerDatabase, reporters: Sequence[Reporter]) -> int:
    """Compare what is recorded with what was reported; return the number of reports."""
    recorded = collections.defaultdict(list)
    with database._read() as connection:
        for row in connection.execute(select(metrics).order_by(metrics.c.id)):
            recorded[row.trial_id, row.kind].append((row.seq, row.steps_completed, row.metrics))
    for reporter in reporters:
        expected: dict[str, list[tuple[int, int, str]]] = {"training": [], "validation": []}
        for number in range(1, reporter.appended + 1):
            kind, values = reporter.report_of(number)
            text = json.dumps(values["metrics"], separators=(",", ":"))
            expected[kind].append((number, number, text))
        for kind, rows in expected.items():
            assert recorded.pop((reporter.trial_id, kind), []) == rows
    assert not recorded
    return sum(reporter.appended for reporter in reporters)


async def _more_answers(reporters: Sequence[Reporter]) -> None:
    """Wait until the server has answered a few times more."""
    before = sum(reporter.statuses[200] for reporter in reporters)
    while sum(reporter.statuses[200] for reporter in reporters) < before + len(reporters):
        await asyncio.sleep(0.01)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_when_the_server_is_killed_again_and_again(
    load: tuple[RunningServer, ServerDatabase, int, int], tmp_path: Path, moments: random.Random
) -> None:
    server, database, count, kills = load
    at_kills = []

    async def kill_and_start(reporters: Sequence[Reporter], over: asyncio.Event) -> None:
        for number in range(kills):
            # Most while it is at work; some in its first moments, when all come back at once.
            if number % 3 != 1:
                await _more_answers(reporters)
            await asyncio.sleep(moments.uniform(0, 2 * SECONDS / kills))
            await asyncio.to_thread(server.kill)
            at_kills.append(_check_at_kill(database, reporters))
            await asyncio.to_thread(server.start)
        over.set()

    async def all_of_them(reporters: Sequence[Reporter]) -> None:
        over = asyncio.Event()
        await asyncio.gather(
            kill_and_start(reporters, over),
            *(reporter.report(server.url, over, PAUSE_S) for reporter in reporters),
        )

    with make_reporters(database, tmp_path, count) as reporters:
        asyncio.run(all_of_them(reporters))
        total = _check_at_end(database, reporters)
        answers = collections.Counter[int]()
        for reporter in reporters:
            answers.update(reporter.statuses)
    print(f"{total} reports, answers {dict(answers)}, in the database at the kills: {at_kills}")
    # It was at work when it was killed, and came back each time.
    assert at_kills == sorted(at_kills)
    assert len(set(at_kills)) >= kills // 2
    assert set(answers) <= {200, 503}
