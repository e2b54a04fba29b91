"""What step digests, the data ledger and reports add to a step of a Keras trial.

Trials of the digits model of `keras_digests`, trained on arrays in the fast loop, are in one
process and take turns in a random order, so that other load on the machine falls on all alike. CPU
time is that of the process; read the ratio beside that of the null control. A unit has 100 steps,
at whose end a trial reports the mean of its metrics and those of each batch (log and TensorBoard
file), digests its state, and flushes its files, as detcore's clock does. Digests are of every tenth
step.

    python benchmarks/keras_records.py [--rounds 40] [--steps 1000] [--quick]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import tensorflow as tf
from _digest_rounds import HEADS, DigestClock, measure_rounds
from _report import parse_options, print_table
from _trial_setup import make_setup
from keras_digests import BATCH, WIDTHS, Classifier

from detcore._log import open_log
from detcore.core._channel import Channel
from detcore.core._records import TrialRecords
from detcore.core._train import TrainContext
from detcore.data import LedgerWriter, StepDigests
from detcore.trial import PrepareOptions, TrialSetup
from detcore_keras import TFKerasTrialContext
from detcore_keras._controller import KerasController
from detcore_keras._worker import prepare_worker

MODEL = "digits"
EVERY = 10
VARIANTS = {
    "none": "", "null control: none again": "", "digests": "digests", "ledger": "ledger",
    "reports": "reports", "all": "digests ledger reports",
}  # fmt: skip


class RecordsClock(DigestClock):
    """Reports and flushes at each unit, too."""

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


class Variant:
    """A trial with its controller and its clock.

    Args:
        folder: Where its files go.
        kept: Which of digests, ledger and reports it keeps.
    """

    def __init__(self, folder: Path, kept: str) -> None:
        folder.mkdir(parents=True)
        plain = make_setup(folder, BATCH)
        digests = ledger = train = None
        if "digests" in kept:
            digests = StepDigests(folder / "digests-1.bin", run_id=1, start_step=0, every=EVERY)
        if "ledger" in kept:
            ledger = LedgerWriter(folder / "ledger-1.bin", run_id=1, start_step=0)
        if "reports" in kept:
            records = TrialRecords(plain.info, open_log(plain.info), Channel(None))
            train = TrainContext(
                plain.info,
                distributed=plain.distributed,
                records=records,
                storage=None,  # type: ignore[arg-type]  # for uploads only
            )
        setup = TrialSetup(
            config={},
            hparams={**plain.hparams, "width": WIDTHS[MODEL]},
            seed=1,
            distributed=plain.distributed,
            digests=digests,
            ledger=ledger,
        )
        context = TFKerasTrialContext(setup)
        self.controller = KerasController(Classifier(context), context)
        self.clock = RecordsClock(digests, ledger, train)
        if digests is not None:
            digests.watch(self.controller.state_tensors)

    def cpu_s(self, steps: int) -> float:
        """Train, and return the CPU seconds."""
        self.clock.stop += steps
        began = time.process_time()
        self.controller.run(self.clock)  # type: ignore[arg-type]  # what a run needs of a clock
        return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=1000)
    options = parse_options(parser, rounds=1, steps=100)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    prepare_worker(PrepareOptions(seed=1))
    chosen = {"none", "all"} if options.quick else set(VARIANTS)
    with tempfile.TemporaryDirectory(prefix="keras-records-") as name:
        turns = {
            variant: Variant(Path(name) / variant, kept).cpu_s
            for variant, kept in VARIANTS.items()
            if variant in chosen
        }
        rows = measure_rounds(MODEL, turns, rounds=options.rounds, steps=options.steps)
    print_table(HEADS, rows)


if __name__ == "__main__":
    main()
