"""What step digests add to each step of a Keras trial that trains many steps in one call.

One trial trains, with and without digests in turns of a random order, so that other load on the
machine, and the place of its tensors in memory, are the same for all. CPU time is that of the
process; read the ratio beside that of the null control. A unit has 100 steps.

    python benchmarks/keras_digests.py [--rounds 40] [--steps 1000] [--model digits] [--quick]
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from _digest_rounds import HEADS, VARIANTS, DigestClock, measure_rounds
from _report import parse_options, print_table
from _trial_setup import make_setup

from detcore.data import StepDigests
from detcore.trial import PrepareOptions, TrialSetup
from detcore_keras import TFKerasTrial, TFKerasTrialContext
from detcore_keras._controller import KerasController
from detcore_keras._worker import prepare_worker

BATCH = 32
# Hidden units of a model that reads digits, and of one whose step is more like those of users.
WIDTHS = {"digits": 32, "1,024 hidden units": 1024}


class Classifier(TFKerasTrial):
    """Digits of random pixels."""

    def __init__(self, context: Any) -> None:
        self.context = context

    def build_model(self) -> Any:
        import keras

        model = keras.Sequential(
            [
                keras.layers.Dense(self.context.get_hparam("width"), activation="relu"),
                keras.layers.Dropout(0.2),
                keras.layers.Dense(10),
            ]
        )
        model = self.context.wrap_model(model)
        optimizer = self.context.wrap_optimizer(keras.optimizers.Adam(0.001))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=optimizer, loss=loss)
        return model

    def build_training_data_loader(self) -> Any:
        generator = np.random.default_rng(1)
        return generator.random((1797, 64), np.float32), generator.integers(10, size=1797)

    def build_validation_data_loader(self) -> Any:
        return self.build_training_data_loader()


class Trial:
    """A trial that trains with one of several digests, or with none."""

    def __init__(self, folder: Path, width: int) -> None:
        self.folder = folder
        plain = make_setup(folder, BATCH)
        hparams = {**plain.hparams, "width": width}
        setup = TrialSetup(config={}, hparams=hparams, seed=1, distributed=plain.distributed)
        self.context = TFKerasTrialContext(setup)
        self.controller = KerasController(Classifier(self.context), self.context)
        self.steps = 0

    def turn(self, variant: str, every: int) -> Callable[[int], float]:
        """Return a function that trains with digests of a period, and returns the CPU seconds."""
        digests = None
        if every:
            path = self.folder / variant / "digests-1.bin"
            digests = StepDigests(path, run_id=1, start_step=0, every=every)
            digests.watch(self.controller.state_tensors)
        clock = DigestClock(digests)

        def train(steps: int) -> float:
            self.context.setup = dataclasses.replace(self.context.setup, digests=digests)
            clock.begin(self.steps, steps)
            self.steps += steps
            began = time.process_time()
            self.controller.run(clock)  # type: ignore[arg-type]  # what a run needs of a clock
            return time.process_time() - began

        return train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--model", choices=WIDTHS, help="this one alone; default: all")
    options = parse_options(parser, rounds=1, steps=100, model="digits")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    prepare_worker(PrepareOptions(seed=1))
    models = [options.model] if options.model else list(WIDTHS)
    left_out = {"null control: without again", "every step"} if options.quick else set()
    rows = []
    with tempfile.TemporaryDirectory(prefix="keras-digests-") as name:
        for model in models:
            trial = Trial(Path(name) / model, WIDTHS[model])
            turns = {
                variant: trial.turn(variant, every)
                for variant, every in VARIANTS.items()
                if variant not in left_out
            }
            rows += measure_rounds(model, turns, rounds=options.rounds, steps=options.steps)
    print_table(HEADS, rows)


if __name__ == "__main__":
    main()
