"""How many reports a second a server takes from many reporters at once, beside MLflow's server.

    python benchmarks/server.py --mlflow-python PATH [--seconds 20] [--rounds 3] [--quick]

`detcore serve` and `mlflow server` (``python -m venv``, ``pip install mlflow``; PATH is the Python
there) run on the same machine, each as its documents start it, with its default SQLite file; none
is asked while the other one is measured. Each reporter has a trial (a run, in MLflow) and one
connection that is kept; it sends a report, waits for the answer, and sends the next one. All
clients are the same code, raw HTTP over asyncio, in processes of their own. Cases take turns:

- `detcore`: a report of four metrics, a line of its spool, to the route by which workers report.
- `mlflow log-batch`: the same report, ``runs/log-batch``.
- `detcore 1`, `mlflow log-metric`: a report of one metric; MLflow has a route for just that.

Told are medians over the rounds: requests that were answered with success a second, percentiles
of the time to the answer, the server's CPU time for each, how much of a core the clients took, and
how many times as many requests as MLflow's in the same round. At the end each database is asked
whether it holds what was acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import hashlib
import http.client
import json
import math
import os
import resource
import secrets
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _report import parse_options, percentiles, print_table

CASES = ("detcore", "mlflow log-batch", "detcore 1", "mlflow log-metric")
PEER = {"detcore": "mlflow log-batch", "detcore 1": "mlflow log-metric"}
METRICS = {"detcore": 4, "mlflow log-batch": 4, "detcore 1": 1, "mlflow log-metric": 1}
TICKS = os.sysconf("SC_CLK_TCK")


# ---------------------------------------------------------------------------------------------
# The client: a process that is given its reporters as JSON, and tells what it saw as JSON.


class Reporter(asyncio.Protocol):
    """One connection that sends a report whenever the last one was answered."""

    def __init__(self, make: Callable[[bytes], bytes], seen: Seen) -> None:
        self.make = make  # the next request, given the last answer
        self.seen = seen
        self.buffer = b""
        self.sent_at = 0.0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.send(b"")

    def send(self, answer: bytes) -> None:
        self.sent_at = time.perf_counter()
        if self.sent_at < self.seen.until:
            self.transport.write(self.make(answer))
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, blank, rest = self.buffer.partition(b"\r\n\r\n")
        if not blank:
            return
        lower = head.lower()
        at = lower.find(b"content-length:")
        if at >= 0:
            length = int(lower[at + 15 :].split(b"\r\n", 1)[0])
            if len(rest) < length:
                return
        elif not rest.endswith(b"0\r\n\r\n"):  # chunks
            return
        self.buffer = b""
        self.seen.note(self.sent_at, head[9:12] == b"200")
        self.send(rest)

    def connection_lost(self, _: Exception | None) -> None:
        self.seen.left -= 1
        if not self.seen.left:
            self.seen.over.set_result(None)


class Seen:
    """What the reporters of a process saw."""

    def __init__(self, reporters: int, start: float, until: float) -> None:
        self.left = reporters
        self.start, self.until = start, until
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.acknowledged = 0
        self.in_time = 0
        self.times: list[float] = []
        self.errors = 0

    def note(self, sent_at: float, is_good: bool) -> None:
        now = time.perf_counter()
        self.acknowledged += is_good
        self.errors += not is_good
        if is_good and self.start <= now < self.until:
            self.in_time += 1
        if is_good and sent_at >= self.start:
            self.times.append(round(now - sent_at, 6))


def requests_of(kind: str, address: str, given: dict[str, Any]) -> Callable[[bytes], bytes]:
    """Return what makes a reporter's next request."""
    names = [f"metric_{number}" for number in range(METRICS[kind])]
    step = given["step"]
    if kind.startswith("detcore"):
        from detcore._log.lines import record_line

        first, offset = given["first"], given["offset"]
        path = f"/api/detcore/v1/trials/{given['trial']}/runs/{given['run']}/spool"

        def spool(answer: bytes) -> bytes:
            nonlocal step, offset
            if answer:
                offset = json.loads(answer)["offset"]
            step += 1
            report = {"steps_completed": step, "metrics": dict.fromkeys(names, 1 / step)}
            return post(
                f"{path}?offset={offset}&first={first}",
                address,
                record_line(step, "training", time.time(), report),
                f"Authorization: Bearer {given['token']}\r\n"
                "Content-Type: application/octet-stream\r\n",
            )

        return spool

    def batch(_: bytes) -> bytes:
        nonlocal step
        step += 1
        stamp = int(time.time() * 1000)
        found = [{"key": n, "value": 1 / step, "timestamp": stamp, "step": step} for n in names]
        run = {"run_id": given["run"]}
        body = {**run, "metrics": found} if kind == "mlflow log-batch" else {**run, **found[0]}
        path = f"/api/2.0/mlflow/runs/{kind.removeprefix('mlflow ')}"
        return post(path, address, json.dumps(body).encode(), "Content-Type: application/json\r\n")

    return batch


def post(path: str, address: str, body: bytes, headers: str) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {address}\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def report(options: argparse.Namespace, reporters: list[dict[str, Any]]) -> str:
    kind, address = options.client, options.address
    makes = [requests_of(kind, address, given) for given in reporters]
    start = time.perf_counter() + options.warm_up
    seen = Seen(len(reporters), start, start + options.seconds)
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    for make in makes:
        await loop.create_connection(lambda make=make: Reporter(make, seen), host, int(port))
    await seen.over
    used = resource.getrusage(resource.RUSAGE_SELF)
    return json.dumps(
        {
            "times": seen.times,
            "errors": seen.errors,
            "acknowledged": seen.acknowledged,
            "in_time": seen.in_time,
            "cpu": used.ru_utime + used.ru_stime,
        }
    )


# ---------------------------------------------------------------------------------------------
# The servers.


@dataclasses.dataclass
class Server:
    """A server, and what each of its reporters needs to know."""

    process: subprocess.Popen[str]
    address: str
    reporters: list[dict[str, Any]]
    stored: Callable[[], int]
    acknowledged: int = 0

    def cpu_s(self) -> float:
        """Return the CPU time of the server's session, also of processes that ended."""
        total = 0
        for place in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = place.read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.process.pid:
                    total += sum(map(int, fields[11:15]))
        return total / TICKS


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], log: Path, **variables: str) -> Iterator[subprocess.Popen[str]]:
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdout=file,
            stderr=file,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def ask(address: str, method: str, path: str, body: object = None) -> Any:
    text = None if body is None else json.dumps(body)
    with contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as link:
        link.request(method, path, text, {"Content-Type": "application/json"})
        answer = link.getresponse()
        data = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status} {data!r}")
    return json.loads(data) if data.startswith(b"{") else data


def wait_for(address: str, path: str) -> None:
    for _ in range(2400):
        with contextlib.suppress(OSError, RuntimeError):
            ask(address, "GET", path)
            return
        time.sleep(0.1)
    raise RuntimeError(f"{address} does not answer")


def count(file: Path) -> int:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        return int(connection.execute("SELECT count(*) FROM metrics").fetchone()[0])


@contextlib.contextmanager
def detcore_server(folder: Path, reporters: int) -> Iterator[Server]:
    from detcore._log import Spool
    from detcore_server._database import ServerDatabase

    file = folder / "detcore.db"
    known = []
    with ServerDatabase.open(f"sqlite:///{file}") as database:
        user = database.create_user("bench", password_hash=None)
        experiment = database.create_experiment(
            config={"name": "bench"}, config_text=None, model_dir="/", name="bench"
        )
        for number in range(reporters):
            trial = database.create_trial(experiment_id=experiment, hparams={}, seed=number)
            run, token = database.start_run(trial), secrets.token_urlsafe(32)
            digest = hashlib.sha256(token.encode()).hexdigest()
            until = time.time() + 24 * 3600
            database.add_token(digest, user_id=user.id, expires_at=until, trial_id=trial)
            spool = folder / "spools" / str(number)
            Spool(spool, trial_id=trial, run_id=run).close()
            first = spool.stat().st_size
            known.append({"trial": trial, "run": run, "token": token, "first": first, "step": 0})
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "detcore", "serve", "--port", address.rpartition(":")[2]]
    with running(command, folder / "log", DETCORE_HOME=str(folder)) as process:
        wait_for_port(address)
        yield Server(process, address, known, lambda: count(file))


def wait_for_port(address: str) -> None:
    host, _, port = address.rpartition(":")
    for _ in range(2400):
        with contextlib.suppress(OSError):
            socket.create_connection((host, int(port)), 1).close()
            return
        time.sleep(0.1)
    raise RuntimeError(f"nobody listens at {address}")


@contextlib.contextmanager
def mlflow_server(
    folder: Path, reporters: int, python: str, workers: int | None
) -> Iterator[Server]:
    address = f"127.0.0.1:{free_port()}"
    file = folder / "mlflow.db"
    port = ["--port", address.rpartition(":")[2]]
    store = ["--backend-store-uri", f"sqlite:///{file}"]
    files = ["--default-artifact-root", str(folder / "files")]
    command = [python, "-m", "mlflow", "server", "--host", "127.0.0.1", *port, *store, *files]
    if workers:
        command += ["--workers", str(workers)]
    with running(command, folder / "log", MLFLOW_DISABLE_TELEMETRY="true") as process:
        wait_for(address, "/health")
        api = "/api/2.0/mlflow"
        made = ask(address, "POST", f"{api}/experiments/create", {"name": "bench"})
        known = []
        for _ in range(reporters):
            wanted = {"experiment_id": made["experiment_id"]}
            run = ask(address, "POST", f"{api}/runs/create", wanted)
            known.append({"run": run["run"]["info"]["run_id"], "step": 0})
        yield Server(process, address, known, lambda: count(file))


# ---------------------------------------------------------------------------------------------
# The rounds.


def measure(kind: str, server: Server, options: argparse.Namespace) -> dict[str, float]:
    for given in server.reporters if kind.startswith("detcore") else ():
        path = f"/api/detcore/v1/trials/{given['trial']}/runs/{given['run']}/spool"
        with contextlib.closing(http.client.HTTPConnection(server.address, timeout=60)) as link:
            link.request("GET", path, headers={"Authorization": f"Bearer {given['token']}"})
            position = json.loads(link.getresponse().read())
        given["offset"] = position["offset"] or given["first"]
        given["step"] = position["last_seq"]
    shares = [server.reporters[n :: options.clients] for n in range(options.clients)]
    before = server.cpu_s()
    with contextlib.ExitStack() as stack:
        clients = []
        for share in shares:
            command = [sys.executable, __file__, "--client", kind, server.address]
            said_to = stack.enter_context(tempfile.TemporaryFile("w+"))
            client = subprocess.Popen(
                [*command, "--seconds", str(options.seconds), "--warm-up", str(options.warm_up)],
                stdin=subprocess.PIPE,
                stdout=said_to,
                text=True,
            )
            clients.append((client, said_to))
            assert client.stdin is not None
            client.stdin.write(json.dumps(share) + "\n")
            client.stdin.close()
        said = []
        for client, said_to in clients:
            if client.wait():
                raise RuntimeError(f"a client of {kind} failed")
            said_to.seek(0)
            said.append(json.load(said_to))
    cpu_s = server.cpu_s() - before
    times = [each for one in said for each in one["times"]] or [math.inf]
    middle, slow = (each * 1000 for each in percentiles(times, 50, 99))
    acknowledged = sum(one["acknowledged"] for one in said)
    server.acknowledged += acknowledged * METRICS[kind] if "mlflow" in kind else acknowledged
    if kind.startswith("mlflow"):
        for given in server.reporters:
            given["step"] += acknowledged  # steps no reporter has had
    return {
        "rate": sum(one["in_time"] for one in said) / options.seconds,
        "p50": middle,
        "p99": slow,
        "errors": sum(one["errors"] for one in said),
        "cpu": cpu_s / max(1, acknowledged) * 1000,
        "client": sum(one["cpu"] for one in said) / (options.seconds + options.warm_up),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mlflow-python", help="a Python that has mlflow; none: detcore alone")
    parser.add_argument("--mlflow-workers", type=int, help="instead of MLflow's default, 4")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warm-up", type=float, default=2.0, help="seconds that do not count")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reporters", type=int, default=200)
    parser.add_argument("--clients", type=int, default=2, help="processes with the reporters")
    parser.add_argument("--only", action="append", choices=CASES)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("address", nargs="?", help=argparse.SUPPRESS)
    options = parse_options(parser, rounds=1, seconds=0.5, warm_up=0.1, reporters=4, clients=1)
    if options.client:
        run_client(options)
        return
    cases = [case for case in CASES if not options.only or case in options.only]
    if not options.mlflow_python:
        cases = [case for case in cases if not case.startswith("mlflow")]
    found: dict[str, list[dict[str, float]]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory(prefix="server-") as name, contextlib.ExitStack() as stack:
        servers = {}
        for kind in sorted({case.split()[0] for case in cases}):
            folder = Path(name) / kind
            folder.mkdir()
            made = (
                detcore_server(folder, options.reporters)
                if kind == "detcore"
                else mlflow_server(
                    folder, options.reporters, options.mlflow_python, options.mlflow_workers
                )
            )
            servers[kind] = stack.enter_context(made)
        for number in range(options.rounds):
            turn = number % len(cases)
            for case in cases[turn:] + cases[:turn]:
                found[case].append(measure(case, servers[case.split()[0]], options))
                print(number, case, found[case][-1], file=sys.stderr, flush=True)
        for kind, server in servers.items():
            print(f"{kind}: {server.stored()} rows of {server.acknowledged} acknowledged\n")
    show(found)


def run_client(options: argparse.Namespace) -> None:
    share = json.loads(sys.stdin.readline())
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    print(asyncio.run(report(options, share)))


def show(found: dict[str, list[dict[str, float]]]) -> None:
    heads = ("case", "requests/s", "p50 ms", "p99 ms", "errors", "server cpu ms", "client cores")
    rows = []
    for case, rounds in found.items():
        middle = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        peer = found.get(PEER.get(case, ""), [])
        # A round in which the peer answered nothing has no ratio.
        ratios = [a["rate"] / b["rate"] for a, b in zip(rounds, peer, strict=False) if b["rate"]]
        low_high = f"{min(ratios):.1f}, {max(ratios):.1f}" if ratios else ""
        rows.append(
            (
                case,
                f"{middle['rate']:.0f}",
                f"{middle['p50']:.1f}",
                f"{middle['p99']:.1f}",
                f"{sum(one['errors'] for one in rounds):.0f}",
                f"{middle['cpu']:.2f}",
                f"{middle['client']:.2f}",
                f"{statistics.median(ratios):.1f} [{low_high}]" if ratios else "",
            )
        )
    print_table((*heads, "times as many [min, max]"), rows)


if __name__ == "__main__":
    main()
