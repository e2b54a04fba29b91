"""Count the modules and functions of detcore that run on four paths of data.

Run it with the Python of ``.nox/tensorflow``: ``python tools/walks.py`` prints a line for each
path. ``--list`` also prints the functions. ``docs/architecture.md`` shows the paths.

Every process of a path appends the functions that it enters to a separate file, so that a path can
end with ``kill -9``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (str(ROOT / "src"), str(ROOT / "plugins"))
TIMEOUT_S = 300.0
SITE = """
import sys
sys.path.insert(0, {tools!r})
import walks
walks.recorder = walks.Recorder({folder!r}, {first!r}, {last!r})
"""
SCRIPT = """
import os, sqlite3, time
from pathlib import Path
import walks
from detcore import core
with core.init() as context:
    database = sqlite3.connect(next(Path(os.environ["DETCORE_HOME"]).glob("*.db")))
    walks.recorder.is_on = True
    context.train.report_validation_metrics(1, {"loss": 0.5})
    while not database.execute("select count(*) from metrics").fetchone()[0]:
        time.sleep(0.01)
    walks.recorder.is_on = False
"""
MODEL = """
import time
from pathlib import Path
import keras
import numpy as np
from detcore_keras import TFKerasTrial
BATCHES = Path(__file__).with_name("batches")
class Waits(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == int(BATCHES.read_text()):
            BATCHES.with_name("reached").touch()
            time.sleep(600)
class Trial(TFKerasTrial):
    def __init__(self, context):
        self.context = context
    def build_model(self):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model = self.context.wrap_model(model)
        optimizer = self.context.wrap_optimizer(keras.optimizers.Adam())
        model.compile(optimizer=optimizer, loss="mse")
        return model
    def keras_callbacks(self):
        return [Waits()]
    def build_training_data_loader(self):
        return np.ones((64, 4), "float32"), np.ones((64, 1), "float32")
    build_validation_data_loader = build_training_data_loader
"""
EXPERIMENT = """
name: walk
entrypoint: model_def:Trial
hyperparameters: {global_batch_size: 8}
searcher: {name: single, metric: val_loss, max_length: {batches: 8}}
scheduling_unit: 2
min_checkpoint_period: {batches: 2}
reproducibility: {experiment_seed: 1}
"""
CLOCK = ("detcore.trial.clock", "ScheduledPollingClock.save")
MANIFEST = ("detcore.checkpoint.commit", "commit")


class Recorder:
    """Appends the functions of detcore that this process enters to a file.

    Args:
        folder: Gets the file.
        first: Module and name of the function whose call starts the recording; None records from
            the beginning; an empty name leaves the start to the program.
        last: The function whose return ends it; None records to the end of the process.
    """

    def __init__(
        self, folder: str, first: tuple[str, str] | None, last: tuple[str, str] | None
    ) -> None:
        self.is_on = first is None
        self._first, self._last = first, last
        self._seen: set[CodeType] = set()
        self._path = Path(folder) / f"{os.getpid()}.txt"
        threading.setprofile(self._observe)
        sys.setprofile(self._observe)

    def _observe(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(SOURCES) or code.co_name.startswith("<"):
            return
        function = (frame.f_globals["__name__"], code.co_qualname)
        if event == "call" and function == self._first:
            self.is_on = True
        if event == "call" and self.is_on and code not in self._seen:
            self._seen.add(code)
            with self._path.open("a") as file:
                print(*function, file=file)
        if event == "return" and function == self._last:
            self.is_on = False


class Walk:
    """Runs the programs of a path in a directory, and returns the functions that they enter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {
            **os.environ,
            "DETCORE_HOME": str(folder / "home"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        (folder / "model_def.py").write_text(MODEL)
        (folder / "const.yaml").write_text(EXPERIMENT)
        (folder / "script.py").write_text(SCRIPT)

    def metric(self) -> set[tuple[str, str]]:
        """Follow a metric from ``report_validation_metrics`` to its row."""
        return self._record(["script.py"], first=("", ""))

    def checkpoint(self) -> set[tuple[str, str]]:
        """Follow a checkpoint of a Keras trial from the clock to the manifest."""
        return self._record(self._run("const.yaml", "."), first=CLOCK, last=MANIFEST, batch=4)

    def start(self) -> set[tuple[str, str]]:
        """Follow ``detcore run`` to the first batch of a Keras trial."""
        return self._record(self._run("const.yaml", "."), batch=0)

    def resume(self) -> set[tuple[str, str]]:
        """Follow a resume after ``kill -9`` to the first batch."""
        self._record(self._run("const.yaml", "."), batch=5)
        return self._record(self._run("--resume", "1"), batch=4)

    def _run(self, *arguments: str) -> list[str]:
        return ["-m", "detcore", "run", *arguments]

    def _record(
        self,
        command: list[str],
        *,
        first: tuple[str, str] | None = None,
        last: tuple[str, str] | None = None,
        batch: int | None = None,
    ) -> set[tuple[str, str]]:
        """Run a program to its end, or kill it when its trial reaches a batch."""
        reached = self._folder / "reached"
        reached.unlink(missing_ok=True)
        (self._folder / "batches").write_text(str(batch))
        with tempfile.TemporaryDirectory() as records, tempfile.TemporaryDirectory() as site:
            text = SITE.format(tools=str(ROOT / "tools"), folder=records, first=first, last=last)
            (Path(site) / "sitecustomize.py").write_text(text)
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=self._folder,
                env={**self._environment, "PYTHONPATH": site},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            deadline = time.monotonic() + TIMEOUT_S
            while process.poll() is None and not reached.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            has_reached = reached.exists() if batch is not None else process.poll() == 0
            process.kill()
            _, errors = process.communicate()
            if not has_reached:
                raise SystemExit(errors.decode(errors="replace"))
            return set(_read(Path(records)))


def _read(folder: Path) -> Iterator[tuple[str, str]]:
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            module, name = line.split()
            yield module, name


def main() -> None:
    """Print the number of modules and functions of each path."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("walks", nargs="*", default=["metric", "checkpoint", "start", "resume"])
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    for name in arguments.walks:
        with tempfile.TemporaryDirectory() as folder:
            functions = getattr(Walk(Path(folder)), name)()
        modules = {module for module, _ in functions}
        print(f"{name:12} {len(modules):4} modules {len(functions):5} functions")
        if arguments.list:
            print(*(f"    {module} {name}" for module, name in sorted(functions)), sep="\n")


if __name__ == "__main__":
    main()
