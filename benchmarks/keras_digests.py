"""Measure the time that step digests add to a step of a Keras trial in the fast loop.

One trial trains with and without digests, in turns in a random order. Other load on the machine and
the location of the tensors in memory are therefore the same for all. The CPU time is that of the
process. Compare a ratio with the null control. A unit has 100 steps.

    python benchmarks/keras_digests.py [--rounds 40] [--steps 1000] [--model digits] [--quick]
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from _digest_rounds import (
    HEADS,
    VARIANTS,
    WIDTHS,
    DigestClock,
    Trial,
    make_trial_setup,
    measure_rounds,
)
from _report import parse_options, print_table

from detcore.trial import PrepareOptions
from detcore_keras import TFKerasTrial, TFKerasTrialContext
from detcore_keras.keras_controller import KerasController
from detcore_keras.worker_setup import prepare_worker


class Classifier(TFKerasTrial):
    """Random images in the shape of digits."""

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


def make_trial(folder: Path, model: str) -> Trial:
    """Return a trial that writes its files to a directory."""
    context = TFKerasTrialContext(make_trial_setup(folder, WIDTHS[model]))

    def use(clock: DigestClock) -> None:
        context.setup = dataclasses.replace(
            context.setup, digests=clock.digests, ledger=clock.ledger
        )

    return Trial(KerasController(Classifier(context), context), use)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--model", choices=WIDTHS, help="one model (default: all)")
    options = parse_options(parser, rounds=1, steps=100, model="digits")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    prepare_worker(PrepareOptions(seed=1))
    models = [options.model] if options.model else list(WIDTHS)
    left_out = {"null control: without again", "every step"} if options.quick else set()
    rows = []
    with tempfile.TemporaryDirectory(prefix="keras-digests-") as name:
        for model in models:
            folder = Path(name) / model
            trial = make_trial(folder, model)
            turns = {
                variant: trial.digests_turn(folder / variant, every)
                for variant, every in VARIANTS.items()
                if variant not in left_out
            }
            rows += measure_rounds(model, turns, rounds=options.rounds, steps=options.steps)
    print_table(HEADS, rows)


if __name__ == "__main__":
    main()
