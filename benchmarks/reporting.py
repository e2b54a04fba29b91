"""What a report costs the thread that trains, where records are behind a server, or it is away.

    python benchmarks/reporting.py [--rounds 4] [--reports 400] [--pause-ms 2] [--quick]

One process per case and round, taking turns. Each is a worker that reports two training metrics,
trains for a moment (sleeps, as a process does that waits for its accelerator), reports again, and
ends. Told are percentiles of the time inside `report_training_metrics`, over the reports of all
rounds: of the wall clock, and of this thread's CPU time, which other work on the machine does not
change; and how long the end of the trial took (median). Cases:

- `database`: the worker uses the record store itself (SQLite).
- `server`: it reports to `detcore serve` on this machine.
- `refused`: nobody listens at the server's port.
- `black hole`: connections are accepted, and nothing is ever answered.
- `killed`: the server is killed with SIGKILL and started again all the time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from _report import parse_options, percentiles, print_table

from detcore.database import Database, new_token, token_digest

CASES = ("database", "server", "refused", "black hole", "killed")

SCRIPT = """
import json, sys, time
from detcore import core

reports, pause_s = int(sys.argv[1]), float(sys.argv[2])
walls, cpus = [], []
with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    time.sleep(0.5)  # until the threads are there
    for step in range(1, reports + 1):
        metrics = {"loss": 1 / step, "accuracy": 0.5}
        wall, cpu = time.perf_counter(), time.thread_time()
        context.train.report_training_metrics(step, metrics)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.thread_time() - cpu)
        time.sleep(pause_s)
    began = time.perf_counter()
print(json.dumps([walls, cpus, time.perf_counter() - began]))
"""


class Server:
    """``detcore serve`` on the records of a folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.url = ""
        self._port = "0"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "detcore", "serve", "--port", self._port],
            env={**os.environ, "DETCORE_HOME": str(self.home)},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().split()[-1]
        self._port = self.url.rpartition(":")[2]

    def end(self, number: int) -> None:
        """End it with a signal."""
        assert self._process is not None
        with self._process as process:
            process.send_signal(number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--reports", type=int, default=400)
    parser.add_argument("--pause-ms", type=float, default=2.0)
    parser.add_argument("--kill-after", type=float, default=1.0, help="seconds of a server's life")
    options = parse_options(parser, rounds=1, reports=5, pause_ms=0.0, kill_after=4.0)
    found: dict[str, list[tuple[list[float], list[float], float]]] = {case: [] for case in CASES}
    with (
        tempfile.TemporaryDirectory(prefix="reporting-") as name,
        addresses(Path(name), options.kill_after) as urls,
    ):
        (Path(name) / "train.py").write_text(SCRIPT)
        for number in range(options.rounds):
            for case in CASES[number % len(CASES) :] + CASES[: number % len(CASES)]:
                found[case].append(run(Path(name), case, urls, options))
    show(found)


@contextlib.contextmanager
def addresses(folder: Path, kill_after_s: float) -> Iterator[dict[str, str]]:
    """Yield what each case's trial reports to."""
    with contextlib.ExitStack() as stack:
        urls = {"database": f"sqlite:///{folder / 'detcore.db'}"}
        servers = {case: Server(folder) for case in ("server", "killed")}
        for case, server in servers.items():
            server.start()
            urls[case] = server.url
        stack.callback(lambda: servers["server"].end(signal.SIGTERM))
        over = threading.Event()
        restless = threading.Thread(target=restart, args=(servers["killed"], over, kill_after_s))
        restless.start()
        stack.callback(restless.join)
        stack.callback(over.set)
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
        urls["black hole"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            urls["refused"] = f"http://127.0.0.1:{free.getsockname()[1]}"
        yield urls


def restart(server: Server, over: threading.Event, kill_after_s: float) -> None:
    """Kill a server and start it again until the end."""
    while not over.wait(kill_after_s):
        server.end(signal.SIGKILL)
        time.sleep(0.5)
        server.start()
    server.end(signal.SIGTERM)


def run(
    folder: Path, case: str, urls: dict[str, str], options: argparse.Namespace
) -> tuple[list[float], list[float], float]:
    """Run one worker; return the times of its reports, and of its end, in seconds."""
    token = new_token()
    with (
        tempfile.TemporaryDirectory(dir=folder) as home,
        Database.open(urls["database"]) as database,
    ):
        user = next(iter(database.list_users()), None)
        user = user or database.create_user("bench", password_hash=None)
        config = {"checkpoint_storage": home, "searcher": {"name": "single", "metric": "loss"}}
        experiment_id = database.create_experiment(
            config=config, config_text=None, model_dir=home, name="bench"
        )
        trial_id = database.create_trial(experiment_id=experiment_id, hparams={}, seed=0)
        info = {
            "experiment_id": experiment_id, "trial_id": trial_id, "trial_seed": 0, "hparams": {},
            "run_id": database.start_run(trial_id), "config": config, "model_dir": home,
            "trial_dir": f"{home}/trial", "database_url": urls[case],
        }  # fmt: skip
        (Path(home) / "info.json").write_text(json.dumps(info))
        database.add_token(
            token_digest(token), user_id=user.id, expires_at=time.time() + 600, trial_id=trial_id
        )
        done = subprocess.run(
            [sys.executable, folder / "train.py", str(options.reports),
             str(options.pause_ms / 1000)],
            env={
                **os.environ,
                "DETCORE_HOME": home,
                "DETCORE_TRIAL_INFO": f"{home}/info.json",
                "DETCORE_TOKEN": token,
                **({"DETCORE_DELIVERY_WAIT_S": "0.2"} if options.quick else {}),
            },
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
        )  # fmt: skip
    walls, cpus, end_s = json.loads(done.stdout.splitlines()[-1])
    return walls, cpus, end_s


def show(found: dict[str, list[tuple[list[float], list[float], float]]]) -> None:
    """Print percentiles in microseconds, and seconds."""
    titles = (
        "records", "reports", "wall p50", "wall p99", "wall p99.9", "cpu p50", "cpu p99", "end (s)"
    )  # fmt: skip
    rows = []
    for case, runs in found.items():
        walls = [wall for each, _, _ in runs for wall in each]
        cpus = [cpu for _, each, _ in runs for cpu in each]
        figures = (*percentiles(walls, 50, 99, 99.9), *percentiles(cpus, 50, 99))
        end_s = statistics.median(end for _, _, end in runs)
        cells = (f"{1e6 * figure:.0f}" for figure in figures)
        rows.append((case, str(len(walls)), *cells, f"{end_s:.2f}"))
    print_table(titles, rows)


if __name__ == "__main__":
    main()
