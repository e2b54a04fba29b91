"""Declarations that a subclass of `FrameworkSuite` makes about its plugin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from detcore_testing.suite_clauses import Suite


class FrameworkDeclarations(Suite):
    """Attributes and methods that a subclass supplies; `FrameworkSuite` documents them."""

    capabilities: ClassVar[Mapping[str, str]] = {
        "callbacks": "users give the framework callbacks, which are called in order",
        "early-stop": "a trial that asks for a stop ends, and counts as complete",
        "load-checkpoint": "Checkpoint.load returns a model (Framework.load_checkpoint)",
        "several-workers": "workers train one model together (Framework.several_workers)",
        "snapshot": "checkpoints are written while training goes on (SupportsSnapshot)",
        "start-from": "a trial starts from another one's checkpoint (SupportsStartFrom)",
    }

    framework: ClassVar[str] = ""
    model_dir: ClassVar[Path] = Path()
    entrypoint: ClassVar[str] = ""
    hyperparameters: ClassVar[Mapping[str, Any]] = {}
    metric: ClassVar[str] = "val_loss"
    smaller_is_better: ClassVar[bool] = True
    broken_entrypoint: ClassVar[str] = ""
    invalid_hyperparameters: ClassVar[Mapping[str, Any]] = {}
    changed_hyperparameters: ClassVar[Mapping[str, Any]] = {}
    stop_entrypoint: ClassVar[str] = ""
    worker_entrypoint: ClassVar[str] = ""
    modules: ClassVar[tuple[str, ...]] = ()
    num_batches: ClassVar[int] = 24
    unit: ClassVar[int] = 4
    worker_tolerance: ClassVar[float] = 1e-6
    resume_tolerance: ClassVar[float] = 0.1
    validation_tolerance: ClassVar[float] = 1e-5
    batch_counter: ClassVar[str] = ""
    batches_per_epoch: ClassVar[int | None] = None
    num_validation_records: ClassVar[int | None] = None
    mean_metric: ClassVar[str] = "loss"
    callback_kinds: ClassVar[tuple[str, ...]] = ("batch_end", "validation_end")
    ignored_state: ClassVar[tuple[str, ...]] = ()
    unread_files: ClassVar[tuple[str, ...]] = ()
    python_path: ClassVar[tuple[Path, ...]] = ()
    timeout_s: ClassVar[float] = 240.0

    def read_state(self, checkpoint: Path) -> Mapping[str, np.ndarray]:
        """Return weights, optimizer state and counters in a checkpoint; not by the controller.

        Args:
            checkpoint: A committed checkpoint, or a folder that the controller's ``save`` wrote.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define read_state")

    def compute_validation(self, checkpoint: Path) -> Mapping[str, float] | None:
        """Return validation metrics of the model in a checkpoint; not by the controller.

        Optional. A few lines that compute a metric from the saved weights and the validation
        records show that the controller validates on these records, and on no others.

        Args:
            checkpoint: A committed checkpoint of a trial of `entrypoint`.

        Returns:
            At least one metric that the controller reports; None: there is nothing to compare.
        """
        return None

    def callback_events(self, journal: Path) -> Sequence[str]:
        """Return the events that callbacks received in a run, in order.

        Runs have ``data: {journal: PATH}`` in their experiment file, where callbacks of the trial
        take notes. The events are ``train_begin``, ``epoch_begin``, ``batch_end``, ``epoch_end``,
        ``validation_begin``, ``validation_end``, ``checkpoint``, ``train_end``.

        Args:
            journal: The path; the format of the file is up to the callbacks.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define callback_events")
