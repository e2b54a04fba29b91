"""Measure the time that a runner adds to trials that do almost nothing, against starting a process.

Each round runs one search of each kind in turn. `cold` starts a process for each trial. `warm`
forks it from a process that has imported everything, like `detcore run`. A trial of the toy
framework of the tests trains two batches, validates, and saves a checkpoint of 3 kB, which is
synced to the disk. The table gives the time from the start of a trial to the start of the following
trial, with one trial at a time. Trials that start before the warm process is ready are not counted.
The reference is a process that imports the same modules and ends. For forked trials the table also
gives the CPU time of the runner and of the workers, which other work on the machine changes less.

The peak memory is that of a runner in a separate process. The growth is from the tenth trial to the
last trial.

Python's bytecode cache has to be writable, so this module unsets PYTHONDONTWRITEBYTECODE.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _report import parse_options, print_table

ROOT = Path(__file__).parents[1]
TOY_PLUGIN = ROOT / "tests" / "toy_plugin"
MODEL = """
import numpy as np
from detcore_toy import ToyTrial


class Nothing(ToyTrial):
    def __init__(self, context):
        pass

    def build_data(self):
        x = np.random.default_rng(3).normal(size=(16, 3))
        return x, x @ np.array([1.0, -2.0, 0.5])
"""
EXPERIMENT = """
name: nothing
entrypoint: model_def:Nothing
hyperparameters:
  global_batch_size: 8
  learning_rate: {{type: double, minval: 0.01, maxval: 0.1}}
searcher: {{name: random, metric: val_loss, max_trials: {trials}, max_length: {{batches: 2}}}}
scheduling_unit: 2
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--starts", type=int, default=10, help="starts of a bare process before each search"
    )
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--search", metavar="WAY", help=argparse.SUPPRESS)
    options = parse_options(parser, trials=3, rounds=1, starts=1)
    if options.search is not None:
        _search(options.folder, options.search)
        return
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPATH"] = str(TOY_PLUGIN)
    with tempfile.TemporaryDirectory(prefix="runner-", dir=options.folder) as name:
        _tell(_measure(Path(name).absolute(), options), options)


def _measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    (folder / "model_def.py").write_text(MODEL)
    (folder / "experiment.yaml").write_text(EXPERIMENT.format(trials=options.trials))
    times: dict[str, Any] = {"process": [], "cold": [], "warm": [], "memory": []}
    _start_process()  # fills the bytecode cache
    for number in range(options.rounds):
        for way in ("cold", "warm"):
            home = folder / f"{way}-{number}"
            times["process"] += [_start_process() for _ in range(options.starts)]
            output = subprocess.run(
                [sys.executable, __file__, "--search", way, "--folder", str(folder)],
                env={**os.environ, "DETCORE_HOME": str(home)},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            lines = [line.split() for line in output.splitlines() if line.startswith("measured")]
            times[way] += [float(words[2]) for words in lines if words[1] == way]
            for kind in ("runner", "workers"):
                seconds = [float(words[2]) for words in lines if words[1] == kind]
                times.setdefault(kind, []).extend(seconds)
            times["memory"] += [float(words[2]) for words in lines if words[1] == "memory"]
            times.setdefault("growth", []).extend(
                float(words[2]) for words in lines if words[1] == "growth"
            )
    return times


def _start_process() -> float:
    """Start a worker process without a trial, and return its duration in seconds."""
    from detcore.launch.fork_server import WORKER_MODULES

    modules = {name.partition(":")[0] for name in WORKER_MODULES}
    lazily = [name.replace(":", ".") for name in WORKER_MODULES if ":" in name]
    code = f"import {', '.join(sorted(modules))}, runpy; {'; '.join(lazily)}"
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def _search(folder: Path, way: str) -> None:
    """Run a search in this process, and print the durations of its trials."""
    from detcore.config import load_config
    from detcore.environment import read_environment
    from detcore.launch import LocalLauncher
    from detcore.plugins import PluginManager
    from detcore.run import RunSettings, named_parts, start_experiment

    if way == "cold":
        vars(named_parts)["choose_launcher"] = lambda *_, **__: LocalLauncher()
    environment = read_environment()
    listener = Listener(way)
    settings = RunSettings(
        environment=environment, plugins=PluginManager(environment), listener=listener
    )
    result = start_experiment(load_config(folder / "experiment.yaml"), folder, settings)
    assert result.state.value == "COMPLETED", result
    listener.tell()


class Listener:
    """Records when trials start, and whether they are forked."""

    def __init__(self, way: str) -> None:
        self._way = way
        self._starts: list[tuple[float, bool]] = []
        self._memory: list[int] = []
        self._cpu: list[tuple[float, float]] = []

    def trial_started(self, _info: Any, *, pid: int) -> None:
        status = Path(f"/proc/{pid}/status").read_text()
        parent = next(line for line in status.splitlines() if line.startswith("PPid:"))
        self._starts.append((time.perf_counter(), int(parent.split()[1]) != os.getpid()))
        self._memory.append(_memory_kb("VmRSS"))
        self._cpu.append((time.process_time(), _cpu_of_ended(int(parent.split()[1]))))

    def tell(self) -> None:
        """Print the records."""
        for (began, is_warm), (end, _) in zip(self._starts, self._starts[1:], strict=False):
            if is_warm is (self._way == "warm"):
                print("measured", self._way, end - began)
        forked = [place for place, (_, is_warm) in enumerate(self._starts) if is_warm]
        if self._way == "warm" and len(forked) > 2:
            first, last = forked[1], forked[-1]
            for place, kind in enumerate(("runner", "workers")):
                used = self._cpu[last][place] - self._cpu[first][place]
                print("measured", kind, used / (last - first))
        print("measured", "memory", _memory_kb("VmHWM") / 1024)
        print("measured", "growth", (self._memory[-1] - self._memory[:11][-1]) / 1024)

    def __getattr__(self, _name: str) -> Any:
        return lambda *_, **__: None


def _cpu_of_ended(pid: int) -> float:
    """Return the CPU seconds of a process's children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def _memory_kb(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def _tell(times: dict[str, Any], options: argparse.Namespace) -> None:
    process = statistics.median(times["process"])
    print(f"{options.rounds} rounds of searches with {options.trials} trials\n")
    rows = []
    for name, description in (
        ("process", "start of a process with a worker's imports"),
        ("cold", "a trial, process started"),
        ("warm", "a trial, process forked"),
    ):
        if not times[name]:
            continue  # a short search may be over before the warm process is ready
        middle = statistics.median(times[name])
        beyond = "" if name == "process" else f"{(middle - process) * 1000:.0f}"
        spread = f"{min(times[name]) * 1000:.0f} to {max(times[name]) * 1000:.0f}"
        rows.append((description, f"{middle * 1000:.0f}", spread, beyond))
    for kind in ("runner", "workers"):
        if times.get(kind):
            middle = f"{statistics.median(times[kind]) * 1000:.0f}"
            rows.append((f"a trial, process forked: CPU of the {kind}", middle, "", ""))
    print_table(("what", "median, ms", "range, ms", "beyond process start, ms"), rows)
    print(f"\nrunner: peak of {max(times['memory']):.0f} MiB, growth over {options.trials} trials "
          f"{max(times['growth']):.1f} MiB")  # fmt: skip


if __name__ == "__main__":
    main()
