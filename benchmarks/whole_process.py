"""Measure whole processes as a user starts them: a Keras script, and `detcore run`.

    python benchmarks/whole_process.py [--rounds 7] [--epochs 5,105] [--quick]

Requires detcore-keras and TensorFlow. Both train the same model (Dense(64)-Dense(10) with Adam, 45
batches of 32 per epoch) on the same arrays. The script calls ``model.fit`` with validation data and
a ``ModelCheckpoint``. The trial runs with the defaults of detcore, and also validates and saves
each epoch. The null control is the script against itself.

Each round runs every variant with every number of epochs, in a new random order. A run is timed
from the start of its process to its end. CPU includes all child processes. The line through the
smallest and the largest number of epochs gives the time of one epoch, and the time of start-up and
end. "first batch" is the time until the first epoch starts. "after the last checkpoint" is the time
from the last write of a checkpoint to the end of the process.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _report import fixed_variables, parse_options, print_table, with_quartiles

SCRIPT, NULL, DETCORE = "Keras script", "Keras script, null control", "detcore run"
# Code that the script and the trial share.
PARTS = """
import time

import keras
import numpy as np

rng = np.random.default_rng(0)
x, y = rng.random((1437, 64), dtype="float32"), rng.integers(0, 10, 1437)
validation = rng.random((360, 64), dtype="float32"), rng.integers(0, 10, 360)


class FirstBatch(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 0:
            with open("first-batch", "w") as file:
                file.write(str(time.time()))


def new_model():
    return keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10, "softmax")]
    )


def compile_model(model):
    optimizer = keras.optimizers.Adam(1e-3)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
"""
TRAIN = """
import keras
from parts import FirstBatch, compile_model, new_model, validation, x, y

model = new_model()
compile_model(model)
checkpoint = keras.callbacks.ModelCheckpoint("checkpoint.keras")
model.fit(
    x, y, batch_size=32, epochs={epochs}, validation_data=validation, verbose=2,
    callbacks=[checkpoint, FirstBatch()],
)
"""
MODEL_DEF = """
from detcore_keras import TFKerasTrial
from parts import FirstBatch, compile_model, new_model, validation, x, y


class Trial(TFKerasTrial):
    def __init__(self, context):
        self.context = context

    def build_model(self):
        model = self.context.wrap_model(new_model())
        compile_model(model)
        return model

    def build_training_data_loader(self):
        return x, y

    def build_validation_data_loader(self):
        return validation

    def keras_callbacks(self):
        return [FirstBatch()]
"""
EXPERIMENT = """
name: whole process
entrypoint: model_def:Trial
hyperparameters: {{global_batch_size: 32}}
searcher: {{name: single, metric: val_loss, max_length: {{epochs: {epochs}}}}}
scheduling_unit: 45
min_validation_period: {{epochs: 1}}
min_checkpoint_period: {{epochs: 1}}
"""
COMMANDS = {
    SCRIPT: ["train.py"],
    NULL: ["train.py"],
    DETCORE: ["-m", "detcore", "run", "experiment.yaml"],
}


@dataclasses.dataclass(frozen=True)
class Run:
    """Durations of one process, in seconds."""

    wall: float
    cpu: float
    first_batch: float
    after_checkpoint: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", default="5,105", help="epochs of a run: two or more numbers")
    options = parse_options(parser, rounds=1, epochs="1,2")
    sizes = [int(size) for size in options.epochs.split(",")]
    if len(set(sizes)) < 2:
        parser.error(f"--epochs {options.epochs}: a line needs two numbers of epochs")
    turns = [(variant, size) for variant in COMMANDS for size in sizes]
    runs: dict[tuple[str, int], list[Run]] = {turn: [] for turn in turns}
    for _ in range(options.rounds):
        for variant, size in random.sample(turns, len(turns)):
            runs[variant, size].append(run(variant, size, options))
            print(variant, size, runs[variant, size][-1], file=sys.stderr, flush=True)
    show(runs, min(sizes), max(sizes))


def run(variant: str, epochs: int, options: argparse.Namespace) -> Run:
    """Run a variant in a new directory, with a new DETCORE_HOME."""
    with tempfile.TemporaryDirectory(prefix="whole-process-") as name:
        folder = Path(name)
        for file, text in {
            "parts.py": PARTS,
            "train.py": TRAIN.format(epochs=epochs),
            "model_def.py": MODEL_DEF,
            "experiment.yaml": EXPERIMENT.format(epochs=epochs),
        }.items():
            (folder / file).write_text(text)
        variables = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
        environment = {**fixed_variables(options, **variables), "DETCORE_HOME": f"{name}/home"}
        began, used = time.time(), _children_cpu_s()
        result = subprocess.run(
            [sys.executable, *COMMANDS[variant]],
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        ended = time.time()
        if result.returncode:
            raise SystemExit(
                f"{variant} ended with {result.returncode}:\n{result.stdout}{result.stderr}"
            )
        # The manifest is the last file of a checkpoint.
        paths = [*folder.glob("checkpoint.keras"), *folder.glob("home/**/manifest.json")]
        return Run(
            wall=ended - began,
            cpu=_children_cpu_s() - used,
            first_batch=float(_first_batch(folder).read_text()) - began,
            after_checkpoint=ended - max(path.stat().st_mtime for path in paths),
        )


def _first_batch(folder: Path) -> Path:
    """Return the file that the callback wrote, in any directory."""
    return next(folder.rglob("first-batch"))


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def show(runs: dict[tuple[str, int], list[Run]], small: int, large: int) -> None:
    """Print the durations of runs, of start-up and of an epoch."""
    rows = []
    for (variant, size), processes in runs.items():
        pairs = list(zip(runs[SCRIPT, size], processes, strict=True))
        rows.append(
            (
                variant,
                str(size),
                with_quartiles([process.wall for process in processes], 2),
                with_quartiles([process.cpu for process in processes], 2),
                with_quartiles([script.wall / process.wall for script, process in pairs], 2),
                f"{statistics.median(process.first_batch for process in processes):.2f}",
                f"{statistics.median(process.after_checkpoint for process in processes):.2f}",
            )
        )
    heads = (
        "process", "epochs", "wall s [q1, q3]", "CPU s [q1, q3]", "times as fast [q1, q3]",
        "first batch s", "after the last checkpoint s",
    )  # fmt: skip
    print_table(heads, rows)
    print()
    lines = []
    for variant in COMMANDS:
        cells = []
        for part in ("wall", "cpu"):
            few = [getattr(one, part) for one in runs[variant, small]]
            many = [getattr(one, part) for one in runs[variant, large]]
            slopes = [(m - f) / (large - small) for f, m in zip(few, many, strict=True)]
            at_zero = [f - small * slope for f, slope in zip(few, slopes, strict=True)]
            cells += [
                with_quartiles(at_zero, 2),
                with_quartiles([slope * 1000 for slope in slopes], 1),
            ]
        lines.append((variant, *cells))
    heads = (
        "process", "start-up and end, wall s", "an epoch, wall ms", "start-up and end, CPU s",
        "an epoch, CPU ms",
    )  # fmt: skip
    print_table(heads, lines)


if __name__ == "__main__":
    main()
