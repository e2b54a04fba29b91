"""Measure how long a save of 1 GB stops the training of a Keras trial.

    python benchmarks/async_save.py [--rounds 7] [--steps 8] [--batch 32] [--quick]

Requires detcore-keras and TensorFlow. A model of dense layers with Adam, 1 GB of state, trains in
one `model.fit`. Each round has stretches of `--steps` steps in a new random order: without a save,
with an asynchronous save at the first boundary, and with a synchronous save (`store_path`). The
cost of a save is the duration of its stretch minus the duration of the stretch without a save in
the same round. It contains the pause, and the slower steps while the files are written. The table
marks saves that last longer than their stretch.

The reference is a copy of the same arrays by one thread in each round, into new memory (`np.empty`
and `np.copyto`) and into memory that was used before. The rows "Core API" save the same arrays as a
dictionary, without training.

All files are on the local disk, in the directory `--folder` (default: the current directory).
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _report import parse_options, print_table
from _trial_setup import BenchmarkClock, make_setup

WIDTH = 2048
GIGABYTE = 1 << 30
WAYS = ("none", "asynchronous", "synchronous")
Times = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=8, help="training steps after each save")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=float, default=1.0, help="size of the state in GiB")
    parser.add_argument("--folder", type=Path, default=Path())
    options = parse_options(parser, rounds=1, steps=2, batch=4, size=0.05)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    with tempfile.TemporaryDirectory(prefix="async-save-", dir=options.folder) as name:
        os.environ["DETCORE_HOME"] = name
        times, size = _measure(Path(name).absolute(), options)
    _tell(times, size, options)


def _measure(folder: Path, options: argparse.Namespace) -> tuple[Times, int]:
    from detcore import core
    from detcore.trial import PrepareOptions
    from detcore_keras.keras_controller import KerasController
    from detcore_keras.worker_setup import prepare_worker

    prepare_worker(PrepareOptions(seed=1))
    trial_context = _trial_context(folder, options.batch)
    trial = _trial_class(options)(trial_context)
    controller = KerasController(trial, trial_context)
    with core.init(checkpoint_storage=str(folder / "checkpoints")) as context:
        clock = Clock(controller, context.checkpoint, options)
        controller.run(clock)  # type: ignore[arg-type]  # the members of a clock that a run uses
        times = clock.times
        _measure_core(context.checkpoint, clock.arrays(), times, options.rounds)
    controller.close()
    return times, clock.size_bytes


class Clock(BenchmarkClock):
    """A clock with a boundary after each step, which saves and measures.

    Args:
        controller: Controller whose state is saved.
        checkpoint: Checkpoint context of the trial.
        options: Options of the command line.
    """

    def __init__(self, controller: Any, checkpoint: Any, options: argparse.Namespace) -> None:
        super().__init__(every=1)
        self.times: Times = {}
        self.size_bytes = 0
        self._controller, self._checkpoint = controller, checkpoint
        self._steps, self._rounds = options.steps, options.rounds
        # The first save allocates memory that later saves use again. The table shows it separately.
        self._pending = ["none", "first save"]
        self._way: str | None = None
        self._step_in_stretch = 0
        self._began = self._last = 0.0

    def at_boundary(self, steps: int) -> bool:
        """Count a step, and save at the end of it if a save is due."""
        now = time.perf_counter()
        self._checkpoint.poll()
        if steps < 3:
            return True
        if self._way is not None:
            self._note(f"{self._way}: step", now - self._last)
            self._step_in_stretch += 1
            if self._step_in_stretch == self._steps:
                self._end_stretch(now)
        going = self._way is not None or self._begin_stretch()
        self._last = time.perf_counter()
        return going

    def _begin_stretch(self) -> bool:
        if not self._pending:
            if not self._rounds:
                return False
            self._rounds -= 1
            self._copies()
            self._pending = random.sample(WAYS, len(WAYS))
        self._way = self._pending.pop(0)
        self._step_in_stretch = 0
        self._began = time.perf_counter()
        metadata = {"steps_completed": self.steps_completed}
        if self._way == "synchronous":
            with self._checkpoint.store_path(metadata) as (path, _):
                self._controller.save(path)
        elif self._way != "none":
            self._checkpoint.save_async(
                self._controller.snapshot, metadata, tensors=self._controller.tensors
            )
        if self._way != "none":
            self._note(f"{self._way}: stall", time.perf_counter() - self._began)
        return True

    def _end_stretch(self, now: float) -> None:
        self._note(f"{self._way}: stretch", now - self._began)
        if self._way in {"asynchronous", "first save"}:
            self._note(
                f"{self._way}: outlasted", float(self._checkpoint.steps_being_saved is not None)
            )
            self._checkpoint.wait()
            told = self._checkpoint._last_save.times
            self._note(f"{self._way}: stall as reported", told.stalled_s)
            self._note(f"{self._way}: until committed", told.total_s)
            self.size_bytes = told.size_bytes
        _delete_all(self._checkpoint)
        self._way = None

    def arrays(self) -> dict[str, Any]:
        """Return a copy of the trial state as NumPy arrays."""
        import numpy as np

        folder = Path(tempfile.mkdtemp(dir=os.environ["DETCORE_HOME"]))
        files = self._controller._capture_state(folder)
        return {
            f"{file}-{key}": np.array(array)
            for file, arrays in files.items()
            for key, array in arrays.items()
        }

    def _copies(self) -> None:
        arrays = self.arrays()
        for name, seconds in _copy_times(arrays).items():
            self._note(name, seconds)

    def _note(self, name: str, seconds: float) -> None:
        self.times.setdefault(name, []).append(seconds)


def _copy_times(arrays: dict[str, Any]) -> dict[str, float]:
    import numpy as np

    began = time.perf_counter()
    targets = {name: np.empty_like(array) for name, array in arrays.items()}
    for name, array in arrays.items():
        np.copyto(targets[name], array)
    fresh = time.perf_counter() - began
    began = time.perf_counter()
    for name, array in arrays.items():
        np.copyto(targets[name], array)
    return {"copy, new memory": fresh, "copy, used memory": time.perf_counter() - began}


def _measure_core(checkpoint: Any, arrays: dict[str, Any], times: Times, rounds: int) -> None:
    import numpy as np

    buffers = {name: np.array(array) for name, array in arrays.items()}

    def write(path: Path, copies: dict[str, Any]) -> Callable[[], None]:
        def work() -> None:
            for name, copy in copies.items():
                np.save(path / f"{name}.npy", copy)

        return work

    def new_memory(path: Path) -> Callable[[], None]:
        return write(path, {name: array.copy() for name, array in arrays.items()})

    def used_memory(path: Path) -> Callable[[], None]:
        for name, array in arrays.items():
            np.copyto(buffers[name], array)
        return write(path, buffers)

    ways = {"Core API, new memory": new_memory, "Core API, used memory": used_memory}
    for _ in range(rounds):
        for name, snapshot in random.sample(list(ways.items()), len(ways)):
            checkpoint.save_async(snapshot, {"steps_completed": 1})
            checkpoint.wait()
            times.setdefault(f"{name}: stall as reported", []).append(
                checkpoint._last_save.times.stalled_s
            )
            _delete_all(checkpoint)
        for name, seconds in _copy_times(arrays).items():
            times.setdefault(f"Core API: {name}", []).append(seconds)


def _delete_all(checkpoint: Any) -> None:
    for manifest in Path(os.environ["DETCORE_HOME"], "checkpoints").glob("*/manifest.json"):
        checkpoint.delete(manifest.parent.name)


# -- the trial -------------------------------------------------------------------------------------


def _trial_class(options: argparse.Namespace) -> Any:
    import numpy as np
    import tensorflow as tf

    from detcore_keras import TFKerasTrial

    # Each layer has weights and two Adam slots.
    count = round(options.size * GIGABYTE / (3 * 4 * WIDTH * WIDTH))

    class Trial(TFKerasTrial):
        def build_model(self) -> Any:
            dense = tf.keras.layers.Dense
            layers = [dense(WIDTH, activation="relu", use_bias=False) for _ in range(count)]
            model = self.context.wrap_model(
                tf.keras.Sequential([tf.keras.Input((WIDTH,)), *layers])
            )
            model.compile(tf.keras.optimizers.Adam(1e-4), "mse")
            return model

        def build_training_data_loader(self) -> Any:
            x = np.random.default_rng(0).random((4 * options.batch, WIDTH), dtype=np.float32)
            return x, x

        def build_validation_data_loader(self) -> Any:
            return self.build_training_data_loader()

    return Trial


def _trial_context(folder: Path, batch: int) -> Any:
    from detcore_keras import TFKerasTrialContext

    return TFKerasTrialContext(make_setup(folder, batch))


# -- results ---------------------------------------------------------------------------------


def _tell(times: Times, size_bytes: int, options: argparse.Namespace) -> None:
    lost = {
        f"{way}: training time lost": [
            one - other
            for one, other in zip(times[f"{way}: stretch"], times["none: stretch"][1:], strict=True)
        ]
        for way in ("asynchronous", "synchronous")
    }
    lost["first save: training time lost"] = [
        times["first save: stretch"][0] - times["none: stretch"][0]
    ]
    print(f"{size_bytes / GIGABYTE:.2f} GiB in a checkpoint, {options.rounds} rounds of stretches "
          f"of {options.steps} steps\n")  # fmt: skip
    rows = []
    for name, seconds in {**times, **lost}.items():
        if name.endswith("outlasted"):
            rows.append((name, f"{sum(seconds):.0f} of {len(seconds)}", "", "", ""))
            continue
        middle = statistics.median(seconds)
        ratios = [
            f"{middle / statistics.median(times[f'copy, {kind} memory']):.2f}"
            for kind in ("new", "used")
        ]
        spread = f"{min(seconds):.3f} to {max(seconds):.3f}"
        rows.append((name, f"{middle:.3f}", spread, *ratios))
    print_table(("what", "median, s", "range, s", "x copy, new", "x copy, used"), rows)


if __name__ == "__main__":
    main()
