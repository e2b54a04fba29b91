"""Measure the time that a report takes in the training thread, alone and with a runner.

    python benchmarks/reporting.py [--rounds 4] [--reports 400] [--pause-ms 2] [--quick]

One process per case and round, in turns. Each process reports two training metrics, sleeps for a
moment like a process that waits for its accelerator, and reports again. The columns
are percentiles of the duration of `report_training_metrics` over the reports of all rounds, as wall
time and as CPU time of this thread, and the median duration of closing the context. Cases:

- `script`: a standalone script, which is a worker and its runner in one process.
- `runner`: the same script as the trial of `detcore run`.
- `runner stopped`: the runner receives SIGSTOP, and does not read its channel and the log.
- `database locked`: another process holds the write lock of the SQLite database.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from _report import parse_options, percentiles, print_table

CASES = ("script", "runner", "runner stopped", "database locked")

SCRIPT = """
import json, pathlib, sys, time
from detcore import core

folder, reports, pause_s = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
walls, cpus = [], []
with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    (folder / "started").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    for step in range(1, reports + 1):
        metrics = {"loss": 1 / step, "accuracy": 0.5}
        wall, cpu = time.perf_counter(), time.thread_time()
        context.train.report_training_metrics(step, metrics)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.thread_time() - cpu)
        time.sleep(pause_s)
    (folder / "reported").touch()
    began = time.perf_counter()
(folder / "result").write_text(json.dumps([walls, cpus, time.perf_counter() - began]))
"""
CONFIG = """
name: reporting
entrypoint: {python} {script} {folder} {reports} {pause_s}
searcher: {{name: single, metric: loss, max_length: {{batches: 1}}}}
max_restarts: 0
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--reports", type=int, default=400)
    parser.add_argument("--pause-ms", type=float, default=2.0)
    options = parse_options(parser, rounds=1, reports=5, pause_ms=0.0)
    runs: dict[str, list[tuple[list[float], list[float], float]]] = {case: [] for case in CASES}
    for number in range(options.rounds):
        for case in CASES[number % len(CASES) :] + CASES[: number % len(CASES)]:
            with tempfile.TemporaryDirectory(prefix="reporting-") as folder:
                runs[case].append(run(Path(folder), case, options))
    show(runs)


def run(
    folder: Path, case: str, options: argparse.Namespace
) -> tuple[list[float], list[float], float]:
    """Run one worker, and return the durations of its reports and of its end in seconds."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    pause_s = options.pause_ms / 1000
    command = [sys.executable, str(script), str(folder), str(options.reports), str(pause_s)]
    if case in ("runner", "runner stopped"):
        config = folder / "const.yaml"
        config.write_text(
            CONFIG.format(
                python=sys.executable, script=script, folder=folder, reports=options.reports,
                pause_s=pause_s,
            )
        )  # fmt: skip
        command = [sys.executable, "-m", "detcore", "run", str(config), str(folder)]
    with subprocess.Popen(
        command, env={**os.environ, "DETCORE_HOME": str(folder / "home")},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        wait_for(folder / "started", process)
        with disturbed(folder, case, process):
            (folder / "go").touch()
            wait_for(folder / "reported", process)
    walls, cpus, end_s = json.loads((folder / "result").read_text())
    return walls, cpus, end_s


@contextlib.contextmanager
def disturbed(folder: Path, case: str, process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Stop the runner, or lock the database, during the block."""
    if case == "runner stopped":
        process.send_signal(signal.SIGSTOP)
        yield
        process.send_signal(signal.SIGCONT)
    elif case == "database locked":
        with contextlib.closing(
            sqlite3.connect(folder / "home" / "detcore.db", timeout=30, isolation_level=None)
        ) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")
    else:
        yield


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until the worker has created a file."""
    while not path.exists():
        if process.poll() is not None:
            raise RuntimeError(f"the worker ended with {process.returncode} before {path.name}")
        time.sleep(0.01)


def show(durations: dict[str, list[tuple[list[float], list[float], float]]]) -> None:
    """Print percentiles in microseconds, and seconds."""
    titles = (
        "records", "reports", "wall p50", "wall p99", "wall p99.9", "cpu p50", "cpu p99", "end (s)"
    )  # fmt: skip
    rows = []
    for case, runs in durations.items():
        walls = [wall for wall_times, _, _ in runs for wall in wall_times]
        cpus = [cpu for _, cpu_times, _ in runs for cpu in cpu_times]
        figures = (*percentiles(walls, 50, 99, 99.9), *percentiles(cpus, 50, 99))
        end_s = statistics.median(end for _, _, end in runs)
        cells = (f"{1e6 * figure:.0f}" for figure in figures)
        rows.append((case, str(len(walls)), *cells, f"{end_s:.2f}"))
    print_table(titles, rows)


if __name__ == "__main__":
    main()
