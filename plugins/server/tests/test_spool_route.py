"""The route by which reports arrive: what was spooled is recorded, once, whatever is sent."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import http.client
import itertools
import json
import random
import socket
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reporters import make_reporters
from running_server import RunningServer
from sqlalchemy import select

from detcore._log.lines import header_line, record_line
from detcore.database import MetricRecord
from detcore.database._drain import Position, drain
from detcore.database._schema import events, metrics, spools
from detcore_remote import Session, send_spools
from detcore_server._database import ServerDatabase

ROOM_BYTES = 1 << 20


@dataclasses.dataclass
class Sender:
    """Asks one server, as one user, over one connection."""

    url: str
    token: str

    def __post_init__(self) -> None:
        self.link = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=60)

    def post(self, path: str, body: bytes, **query: object) -> tuple[int, Any]:
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        return self.ask("POST", f"{path}?{asked}", body)

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        self.link.request(method, path, body, headers)
        answer = self.link.getresponse()
        data = answer.read()
        if answer.will_close:
            self.link.close()
        return answer.status, json.loads(data) if data else None


@dataclasses.dataclass
class Place:
    """A server, its database, and a second one that nothing is sent to."""

    server: RunningServer
    database: ServerDatabase
    drained: ServerDatabase
    sender: Sender
    folder: Path

    def new_trial(self, database: ServerDatabase | None = None) -> tuple[int, int]:
        database = database or self.database
        experiment = database.create_experiment(
            config={"name": "one"}, config_text=None, model_dir="/code", name="one"
        )
        trial = database.create_trial(experiment_id=experiment, hparams={}, seed=0)
        return trial, database.start_run(trial)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("home")
    with (
        RunningServer(home) as server,
        ServerDatabase.open(server.database_url) as database,
        ServerDatabase.open(f"sqlite:///{home / 'drained.db'}") as drained,
    ):
        sender = Sender(server.url, server.token())
        yield Place(server, database, drained, sender, home)
        sender.link.close()


def _path(trial_id: object, run_id: object = 1) -> str:
    return f"/api/detcore/v1/trials/{trial_id}/runs/{run_id}/spool"


def _recorded(database: ServerDatabase, trial_id: int) -> dict[str, list[Any]]:
    """Return what is recorded of a trial, but for the numbers of rows and the time of damage."""
    found = {}
    with database._read() as connection:
        for table in (metrics, events, spools):
            rows = connection.execute(select(table).where(table.c.trial_id == trial_id))
            found[table.name] = [
                {
                    name: value
                    for name, value in row._mapping.items()
                    if name not in ("id", "trial_id")
                    and not (name == "reported_at" and row._mapping.get("kind") == "damaged")
                }
                for row in rows
            ]
    return found


def _spool_of(payloads: list[tuple[str, Any]]) -> tuple[bytes, list[bytes]]:
    """Return the header and the lines of a spool; bytes are a line as it is."""
    lines = []
    for number, (kind, payload) in enumerate(payloads, 1):
        line = payload if isinstance(payload, bytes) else record_line(number, kind, 1e9, payload)
        lines.append(line)
    return header_line(1, 1), lines


REPORTS = st.builds(
    lambda kind, step, value: (kind, {"steps_completed": step, "metrics": {"loss": value}}),
    st.sampled_from(["training", "validation"]),
    st.integers(0, 2**63 - 1),
    st.floats(),
)
OTHERS = st.tuples(st.sampled_from(["heartbeat", "training", "damaged"]), st.text(max_size=5))
DAMAGE = st.tuples(
    st.just("damage"), st.binary(max_size=30).map(lambda data: data.replace(b"\n", b"") + b"\n")
)
LINES = st.lists(st.one_of(REPORTS, REPORTS, OTHERS, DAMAGE), min_size=1, max_size=12)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(lines=LINES, data=st.data())
def test_whatever_is_sent_what_was_spooled_arrives_once(
    place: Place, lines: list[tuple[str, Any]], data: st.DataObject
) -> None:
    header, texts = _spool_of(lines)
    texts.append(record_line(len(texts) + 1, "heartbeat", 1e9, "the end"))
    ends = list(itertools.accumulate(map(len, texts), initial=len(header)))
    trial_id, _ = place.new_trial()
    # Senders that begin anywhere, send any number of lines, and again what was sent before.
    indices = st.integers(0, len(texts))
    position = 0
    for start, stop in data.draw(st.lists(st.tuples(indices, indices), max_size=8)):
        query = {"offset": ends[start], "first": ends[0]}
        if data.draw(st.booleans()):  # by the route, and not past it
            query = dict(reversed(query.items()))
        status, told = place.sender.post(_path(trial_id), b"".join(texts[start:stop]), **query)
        if start == position and stop > start:
            position = stop
        assert (status, told["offset"]) == (200, ends[position])
    # One that goes on from where the server says, as a worker does.
    start = position
    while position < len(texts):
        stop = data.draw(st.integers(position + 1, len(texts)))
        status, told = place.sender.post(
            _path(trial_id), b"".join(texts[position:stop]), offset=ends[position], first=ends[0]
        )
        position = stop
        assert (status, told["offset"]) == (200, ends[position])
    assert place.sender.ask("GET", _path(trial_id)) == (200, told)
    # The same file, drained.
    other_trial, _ = place.new_trial(place.drained)
    file = place.folder / "spool"
    own_header = header_line(other_trial, 1)
    file.write_bytes(own_header + b"".join(texts))
    drain(place.drained, file, Position())
    expected = _recorded(place.drained, other_trial)
    shift = len(own_header) - len(header)
    for row in expected["spools"]:
        row["byte_offset"] -= shift
    for row in expected["events"]:
        if row["kind"] == "damaged" and row["seq"] is None:
            payload = json.loads(row["payload"])
            row["payload"] = json.dumps(
                {**payload, "offset": payload["offset"] - shift}, separators=(",", ":")
            )
    assert _recorded(place.database, trial_id) == expected


def test_two_senders_of_one_spool_at_once(place: Place) -> None:
    trial_id, _ = place.new_trial()
    reports = [("training", {"steps_completed": n, "metrics": {"x": n}}) for n in range(1, 401)]
    header, texts = _spool_of(reports)
    spool, first = header + b"".join(texts), len(header)
    token, failures = place.sender.token, []

    def send(seed: int) -> None:
        rng, sender, offset = random.Random(seed), Sender(place.server.url, token), first
        while offset < len(spool):
            end = min(len(spool), offset + rng.randrange(1, 2000))
            body = spool[offset:end]
            body = body[: body.rfind(b"\n") + 1]
            status, told = sender.post(_path(trial_id), body, offset=offset, first=first)
            if status != 200:
                failures.append((status, told))
                break
            offset = told["offset"]
        sender.link.close()

    threads = [threading.Thread(target=send, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [row["seq"] for row in _recorded(place.database, trial_id)["metrics"]] == [
        *range(1, 401)
    ]


def test_a_position_that_went_back_is_followed(place: Place) -> None:
    """A server that was restored from a backup is sent again what it no longer has."""
    trial_id, _ = place.new_trial()
    assert place.sender.ask("GET", _path(trial_id)) == (200, {"offset": 0, "last_seq": 0})
    header, texts = _spool_of([("heartbeat", number) for number in range(6)])
    ends = list(itertools.accumulate(map(len, texts), initial=len(header)))
    place.sender.post(_path(trial_id), b"".join(texts[:2]), offset=ends[0], first=ends[0])
    status, told = place.sender.post(_path(trial_id), texts[5], offset=ends[5], first=ends[0])
    assert (status, told) == (200, {"offset": ends[2], "last_seq": 2})


def test_a_long_body_and_a_long_record(place: Place) -> None:
    trial_id, _ = place.new_trial()
    long = {"steps_completed": 1, "metrics": {}, "batch_metrics": [{"x": 0.5}] * 60_000}
    reports = [("training", {"steps_completed": n, "metrics": {}}) for n in range(2, 6000)]
    header, texts = _spool_of([("training", long), *reports])
    body = b"".join(texts)
    assert len(texts[0]) > 500_000
    sent = place.sender.post(_path(trial_id), body, offset=len(header), first=len(header))
    assert sent == (200, {"offset": len(header) + len(body), "last_seq": 5999})
    assert len(_recorded(place.database, trial_id)["metrics"]) == 5999


@pytest.mark.parametrize(
    ("query", "body", "status"),
    [
        ("offset=50&first=50", b"no newline", 400),
        ("offset=40&first=50", b"\n", 400),
        ("offset=-1&first=-1", b"\n", 422),
        ("offset=9223372036854775808&first=50", b"\n", 422),
        ("offset=50&first=99999999999999999999999999", b"\n", 422),
        ("offset=%D9%A5%D9%A0&first=50", b"\n", 422),
        ("offset=1e2&first=50", b"\n", 422),
        ("offset=50", b"\n", 422),
        ("offset=&first=", b"\n", 422),
        ("", b"\n", 422),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    place: Place, query: str, body: bytes, status: int
) -> None:
    trial_id, _ = place.new_trial()
    answered, told = place.sender.ask("POST", f"{_path(trial_id)}?{query}", body)
    assert answered == status
    assert told["error"]["message"]
    assert _recorded(place.database, trial_id) == {"metrics": [], "events": [], "spools": []}


@pytest.mark.parametrize("length", ["Content-Length: 9000001", "Transfer-Encoding: chunked"])
def test_a_body_that_is_too_long_is_refused(place: Place, length: str) -> None:
    trial_id, _ = place.new_trial()
    host, _, port = place.server.url.removeprefix("http://").rpartition(":")
    head = (
        f"POST {_path(trial_id)}?offset=50&first=50 HTTP/1.1\r\nHost: x\r\n{length}\r\n"
        f"Authorization: Bearer {place.sender.token}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), 60) as link:
        link.sendall(head.encode())
        chunk = b"x" * 2**20
        with contextlib.suppress(OSError):  # it does not listen to the end
            for _ in range(9):
                size = b"%x\r\n" % len(chunk) if "chunked" in length else b""
                link.sendall(size + chunk + (b"\r\n" if size else b""))
        assert link.recv(100).split()[1] == b"413"


@pytest.mark.parametrize(
    ("trial", "run", "status"),
    [
        (10**6, 1, 404),
        (None, 2, 404),
        (0, 1, 422),
        (2**31, 1, 422),
        (2**63, 1, 422),
        ("x", 1, 422),
        (None, -1, 422),
        (None, 2**70, 422),
    ],
)
def test_a_run_that_was_never_started_is_refused(
    place: Place, trial: object, run: object, status: int
) -> None:
    trial_id, _ = place.new_trial()
    _, [text] = _spool_of([("heartbeat", 1)])
    path = _path(trial_id if trial is None else trial, run)
    assert place.sender.post(path, text, offset=50, first=50)[0] == status
    assert place.sender.ask("GET", path)[0] == status
    assert _recorded(place.database, trial_id) == {"metrics": [], "events": [], "spools": []}


_DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000


def _sealed(text: str) -> bytes:
    """Return a line whose checksum is right, whatever it holds."""

    body = text.encode("utf-8", "surrogatepass")
    return b'{"crc":"%08x",%s\n' % (zlib.crc32(body), body)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "}",
        '"seq":1}',
        '"seq":"1","kind":"x","at":1,"payload":1}',
        '"seq":-1,"kind":"x","at":1,"payload":1}',
        '"seq":true,"kind":"x","at":1,"payload":1}',
        '"seq":9223372036854775808,"kind":"x","at":1,"payload":1}',
        '"seq":1,"kind":7,"at":1,"payload":1}',
        '"seq":1,"kind":"x","at":1e300,"payload":1}',
        '"seq":1,"kind":"x","at":NaN,"payload":1}',
        '"seq":1,"kind":"x","at":"then","payload":1}',
        '"seq":1,"kind":"x","at":1,"payload":' + _DEEP + "}",
        '"seq":1,"kind":"x","at":1,"payload":' + "9" * 5000 + "}",
        '"seq":1,"kind":"x","at":1,"payload":"\u00e4"}',
    ],
    ids=range(14),
)
def test_a_line_that_no_spool_writes_is_damaged(place: Place, text: str) -> None:
    trial_id, _ = place.new_trial()
    good = record_line(2, "heartbeat", 1e9, 1)
    body = _sealed(text) + good
    status, told = place.sender.post(_path(trial_id), body, offset=50, first=50)
    assert (status, told) == (200, {"offset": 50 + len(body), "last_seq": 2})
    rows = _recorded(place.database, trial_id)["events"]
    assert [row["kind"] for row in rows] == ["damaged", "heartbeat"]


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("training", {"steps_completed": 2**63, "metrics": {}}),
        ("training", {"steps_completed": 1, "metrics": {"x": 10**400}}),
        ("validation", {"steps_completed": 1, "metrics": {"x": 10**400, "y": "1", "z": [1]}}),
        ("validation", {"steps_completed": 1, "metrics": {"\ud800\0" * 300: 1, "": 2}}),
        ("validation", {"steps_completed": True, "metrics": {}, "n_records": 2**64}),
        ("training", [1]),
        ("\0\ud800" * 1000, None),
        ("damaged", {"offset": -1}),
    ],
    ids=range(8),
)
def test_hostile_values_are_recorded_as_they_are(place: Place, kind: str, payload: Any) -> None:
    trial_id, _ = place.new_trial()
    body = record_line(1, kind, 1e9, payload)
    status, told = place.sender.post(_path(trial_id), body, offset=50, first=50)
    assert (status, told) == (200, {"offset": 50 + len(body), "last_seq": 1})
    found = _recorded(place.database, trial_id)
    assert len(found["metrics"]) + len(found["events"]) == 1


def _trial_token(place: Place, trial_id: int) -> str:
    token = f"token-{trial_id}"
    user = place.database.list_users()[0]
    digest = hashlib.sha256(token.encode()).hexdigest()
    until = time.time() + 600
    place.database.add_token(digest, user_id=user.id, expires_at=until, trial_id=trial_id)
    return token


@pytest.mark.parametrize("names", [("offset", "first"), ("first", "offset")])
@pytest.mark.parametrize("is_warm", [False, True])
def test_a_token_of_another_trial_is_refused(
    place: Place, *, is_warm: bool, names: tuple[str, str]
) -> None:
    query = dict.fromkeys(names, 50)
    mine, other = place.new_trial()[0], place.new_trial()[0]
    text = record_line(1, "heartbeat", 1e9, 1)
    sender = Sender(place.server.url, _trial_token(place, mine))
    if is_warm:  # the server knows the token from a moment ago
        assert sender.post(_path(mine), text, **query)[0] == 200
    assert sender.post(_path(other), text, **query)[0] == 403
    assert sender.ask("GET", _path(other))[0] == 403
    assert sender.post(_path(mine), text, **query)[0] == 200
    sender.link.close()
    for token in ("", "another one"):
        nobody = Sender(place.server.url, token)
        assert nobody.post(_path(mine), text, **query)[0] == 401
        nobody.link.close()
    assert _recorded(place.database, other) == {"metrics": [], "events": [], "spools": []}


def test_what_contradicts_the_records_holds_up_nobody_else(place: Place) -> None:
    with make_reporters(place.database, place.folder, 6) as reporters:
        bad = reporters[3]
        row = MetricRecord(
            trial_id=bad.trial_id, run_id=1, seq=1, kind="training", steps_completed=1, metrics={}
        )
        place.database.add_metrics([row])
        for reporter in reporters:
            reporter.append()

        async def send_together() -> list[int]:
            texts = [reporter.spool.path.read_bytes()[reporter.first :] for reporter in reporters]
            # All wait for this transaction, so that most are written by the same one after it.
            with place.database._write():
                asked = [
                    asyncio.ensure_future(reporter.ask(place.server.url, reporter.first, text))
                    for reporter, text in zip(reporters, texts, strict=True)
                ]
                await asyncio.wait(asked, timeout=0.5)
            answers = await asyncio.gather(*asked)
            for reporter in reporters:
                await reporter.hang_up()
            return [answer.status for answer in answers]

        assert asyncio.run(send_together()) == [200, 200, 200, 409, 200, 200]
        for reporter in reporters:
            assert len(_recorded(place.database, reporter.trial_id)["metrics"]) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own; needs root."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_told_and_later_all_arrives(small_disk: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    url = f"sqlite:///{small_disk / 'detcore.db'}"
    filler = small_disk / "filler"
    with (
        RunningServer(home, DETCORE_DB=url) as server,
        ServerDatabase.open(url) as database,
        make_reporters(database, tmp_path, 1) as [reporter],
    ):
        for _ in range(3000):
            reporter.append()

        async def send(until: int) -> None:
            while not reporter.statuses[until]:
                assert not await reporter.send_once(server.url)

        async def fill_and_send() -> None:
            await send(200)  # the server has opened its files
            with filler.open("wb", buffering=0) as file:
                for block in (65536, 4096, 512):
                    with contextlib.suppress(OSError):
                        while True:
                            file.write(bytes(block))
            await send(507)
            known = reporter.acknowledged
            filler.unlink()
            reporter.append()
            reporter.statuses.clear()
            await send(200)
            assert reporter.acknowledged >= known
            while not await reporter.send_once(server.url):
                pass
            await reporter.hang_up()

        asyncio.run(fill_and_send())
        found = _recorded(database, reporter.trial_id)["metrics"]
        assert sorted(row["seq"] for row in found) == [*range(1, 3002)]


def _line_of_first_release(server: str, trial_id: int) -> bytes:
    """Return the first line of a spool that a worker of the first release kept for a server."""
    header = {"spool": 1, "trial_id": trial_id, "run_id": 1, "server": server}
    body = json.dumps(header, separators=(",", ":"))[1:].encode()
    return b'{"crc":"%08x",%s\n' % (zlib.crc32(body), body)


def test_spools_that_the_first_release_kept_for_a_server_are_sent_once(
    place: Place, tmp_path: Path
) -> None:
    lines = [
        record_line(number, "training", 1e9, {"steps_completed": number, "metrics": {"loss": 1.0}})
        for number in range(1, 4)
    ]
    trials = {}
    for server in (place.server.url, "http://elsewhere:1", None):
        trial_id, _ = place.new_trial()
        path = tmp_path / f"experiments/1/trials/{trial_id}/spool-1.jsonl"
        path.parent.mkdir(parents=True)
        first = _line_of_first_release(server, trial_id) if server else header_line(trial_id, 1)
        path.write_bytes(first + b"".join(lines))
        trials[server] = trial_id
    with contextlib.closing(Session(place.server.url, place.sender.token)) as session:
        (found,) = send_spools(session, tmp_path, dry_run=True)
        assert (found.sent_bytes, found.left_bytes) == (0, len(b"".join(lines)))
        (found,) = send_spools(session, tmp_path)
        assert (found.sent_bytes, found.left_bytes) == (len(b"".join(lines)), 0)
        assert list(send_spools(session, tmp_path)) == []
    counts = {
        server: len(place.database.metrics(trial_id, "training"))
        for server, trial_id in trials.items()
    }
    assert counts == {place.server.url: 3, "http://elsewhere:1": 0, None: 0}
