"""Measure the time that step digests, data ledger and reports add to a step of a Keras trial.

One trial of the digits model of `keras_digests`, on arrays in the fast loop, trains with each of
them in turns in a random order. Other load on the machine and the location of the tensors in memory
are therefore the same for all. The CPU time is that of the process. Compare a ratio with the null
control. A unit has 100 steps. After each unit the trial reports the mean of its metrics and the
metrics of each batch (log and TensorBoard file), digests every tenth step, and flushes its files,
like detcore's clock.

    python benchmarks/keras_records.py [--rounds 40] [--steps 1000] [--quick]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf
from _digest_rounds import BATCH, HEADS, DigestClock, measure_rounds
from _report import parse_options, print_table
from _trial_setup import make_setup
from keras_digests import make_trial

from detcore.core.channel import Channel
from detcore.core.train_context import TrainContext
from detcore.core.trial_records import TrialRecords
from detcore.data import LedgerWriter, StepDigests
from detcore.log.writing import open_log
from detcore.trial import PrepareOptions
from detcore_keras.worker_setup import prepare_worker

MODEL = "digits"
EVERY = 10
VARIANTS = {
    "none": "", "null control: none again": "", "digests": "digests", "ledger": "ledger",
    "reports": "reports", "all": "digests ledger reports",
}  # fmt: skip


class RecordsClock(DigestClock):
    """Also reports and flushes after each unit."""

    def __init__(
        self, digests: StepDigests | None, ledger: LedgerWriter | None, train: TrainContext | None
    ) -> None:
        super().__init__(digests)
        self.ledger, self.train = ledger, train

    def boundary(
        self,
        steps_completed: int,
        training_metrics: Any,
        batch_metrics: Any = None,
        *,
        n_records: int | None = None,
    ) -> bool:
        if self.ledger is not None:
            self.ledger.flush()
        if self.train is not None:
            self.train.report_training_metrics(
                steps_completed, training_metrics, batch_metrics, n_records=n_records
            )
        return super().boundary(steps_completed, training_metrics, batch_metrics)


def make_clock(folder: Path, parts: str) -> RecordsClock:
    """Return a clock.

    Args:
        folder: Directory of its files.
        parts: Which of digests, ledger and reports it writes.
    """
    folder.mkdir(parents=True)
    digests = ledger = train = None
    if "digests" in parts:
        digests = StepDigests(folder / "digests-1.bin", run_id=1, start_step=0, every=EVERY)
    if "ledger" in parts:
        ledger = LedgerWriter(folder / "ledger-1.bin", run_id=1, start_step=0)
    if "reports" in parts:
        plain = make_setup(folder, BATCH)
        train = TrainContext(
            plain.info,
            distributed=plain.distributed,
            records=TrialRecords(plain.info, open_log(plain.info), Channel(None)),
            storage=None,  # type: ignore[arg-type]  # only uploads use it
        )
    return RecordsClock(digests, ledger, train)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=1000)
    options = parse_options(parser, rounds=1, steps=100)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    prepare_worker(PrepareOptions(seed=1))
    names = {"none", "all"} if options.quick else set(VARIANTS)
    with tempfile.TemporaryDirectory(prefix="keras-records-") as name:
        trial = make_trial(Path(name), MODEL)
        turns = {
            variant: trial.turn(make_clock(Path(name) / variant, parts))
            for variant, parts in VARIANTS.items()
            if variant in names
        }
        rows = measure_rounds(MODEL, turns, rounds=options.rounds, steps=options.steps)
    print_table(HEADS, rows)


if __name__ == "__main__":
    main()
