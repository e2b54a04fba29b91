"""Measure the time that a report takes in the training thread, with and without observers.

    python benchmarks/observers.py [--rounds 5] [--reports 400] [--pause-ms 2] [--quick]

One process per case and round, in turns. Each process reports two training metrics, sleeps for a
moment like a process that waits for its accelerator, and reports again. The table gives percentiles
of the duration of `report_training_metrics` over the reports of all rounds, as wall time and as CPU
time of this thread. Cases:

- `none`: no plugin observes.
- `healthy`: a plugin that posts each event to a server on this machine.
- `refused`: the same with a closed port. The plugin reports that the server is unavailable.
- `black hole`: the same with a server that accepts connections and never answers. The plugin gives
  up after two seconds.
- `waiting for it`: for comparison, the training thread calls the hook of the healthy plugin.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from _report import parse_options, percentiles, print_table

CASES = ("none", "healthy", "refused", "black hole", "waiting for it")

PLUGIN = """
import json, os, urllib.request
from detcore import hookimpl
from detcore.errors import UnavailableError

@hookimpl
def detcore_training_metrics(trial, steps_completed, metrics):
    body = json.dumps({"trial": trial.trial_id, "step": steps_completed, **metrics}).encode()
    request = urllib.request.Request(os.environ["TRACKER"], data=body)
    try:
        urllib.request.urlopen(request, timeout=2).read()
    except OSError as error:
        raise UnavailableError(str(error)) from error
"""

SCRIPT = '''
import json, sys, time
from detcore import core

def tell(trial, step, metrics):
    """Do nothing. The delivery thread notifies the plugin."""

reports, pause_s, waits = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "wait"
if waits:
    from detcore_tracker.plugin import detcore_training_metrics as tell
walls, cpus = [], []
with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    time.sleep(0.5)  # until the threads have started
    for step in range(1, reports + 1):
        metrics = {"loss": 1 / step, "accuracy": 0.5}
        wall, cpu = time.perf_counter(), time.thread_time()
        context.train.report_training_metrics(step, metrics)
        tell(context.info, step, metrics)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.thread_time() - cpu)
        time.sleep(pause_s)
print(json.dumps([walls, cpus]))
'''


class _Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reports", type=int, default=400)
    parser.add_argument("--pause-ms", type=float, default=2.0)
    options = parse_options(parser, rounds=1, reports=5, pause_ms=0.0)
    times: dict[str, tuple[list[float], list[float]]] = {case: ([], []) for case in CASES}
    with tempfile.TemporaryDirectory(prefix="observers-") as name, trackers() as addresses:
        install(Path(name))
        for number in range(options.rounds):
            for case in CASES[number % len(CASES) :] + CASES[: number % len(CASES)]:
                walls, cpus = run(Path(name), case, addresses, options)
                times[case][0].extend(walls)
                times[case][1].extend(cpus)
    show(times)


@contextlib.contextmanager
def trackers() -> Iterator[dict[str, str]]:
    """Yield the address of the tracker of each case."""
    with contextlib.ExitStack() as stack:
        answering = stack.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server))
        threading.Thread(target=answering.serve_forever, daemon=True).start()
        stack.callback(answering.shutdown)
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            nobody = free.getsockname()[1]
        healthy = f"http://127.0.0.1:{answering.server_port}"
        yield {
            "none": healthy,
            "healthy": healthy,
            "waiting for it": healthy,
            "refused": f"http://127.0.0.1:{nobody}",
            "black hole": f"http://127.0.0.1:{silent.getsockname()[1]}",
        }


def install(folder: Path) -> None:
    """Write the plugin in the form of an installed distribution."""
    package, info = folder / "detcore_tracker", folder / "detcore_tracker-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").touch()
    (package / "plugin.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: detcore-tracker\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[detcore]\ntracker = detcore_tracker.plugin\n\n[detcore.api]\ntracker = 1.1\n"
    )
    (folder / "train.py").write_text(SCRIPT)


def run(
    folder: Path, case: str, addresses: dict[str, str], options: argparse.Namespace
) -> tuple[list[float], list[float]]:
    """Run one process of a case, and return the durations of its reports in seconds."""
    is_told = case in ("healthy", "refused", "black hole")
    with tempfile.TemporaryDirectory(dir=folder) as home:
        result = subprocess.run(
            [
                sys.executable, folder / "train.py", str(options.reports),
                str(options.pause_ms / 1000), "wait" if case == "waiting for it" else "go on",
            ],
            env={
                **os.environ,
                "PYTHONPATH": str(folder),
                "DETCORE_HOME": home,
                "DETCORE_DISABLE_PLUGINS": "" if is_told else "tracker",
                "DETCORE_DELIVERY_WAIT_S": "0.1",
                "TRACKER": addresses[case],
            },
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    walls, cpus = json.loads(result.stdout)
    return walls, cpus


def show(durations: dict[str, tuple[list[float], list[float]]]) -> None:
    """Print percentiles in microseconds."""
    titles = ("observer", "reports", "wall p50", "wall p99", "wall p99.9", "cpu p50", "cpu p99")
    rows = []
    for case, (walls, cpus) in durations.items():
        figures = (*percentiles(walls, 50, 99, 99.9), *percentiles(cpus, 50, 99))
        rows.append((case, str(len(walls)), *(f"{1e6 * figure:.0f}" for figure in figures)))
    print_table(titles, rows)


if __name__ == "__main__":
    main()
