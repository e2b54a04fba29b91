"""Declarations that a subclass of `FrameworkSuite` makes about its plugin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from detcore_testing.suite_clauses import Suite


class FrameworkDeclarations(Suite):
    """Attributes and methods that a subclass supplies. `FrameworkSuite` documents them."""

    capabilities: ClassVar[Mapping[str, str]] = {
        "callbacks": "the framework calls user callbacks in order",
        "early-stop": "a trial that requests a stop ends as COMPLETED",
        "load-checkpoint": "Checkpoint.load returns a model (Framework.load_checkpoint)",
        "several-workers": "several workers train one model (Framework.several_workers)",
        "snapshot": "checkpoints are written while training continues (SupportsSnapshot)",
        "start-from": "a trial starts from another trial's checkpoint (SupportsStartFrom)",
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
        """Return weights, optimizer state and counters in a checkpoint, without the controller.

        Args:
            checkpoint: A committed checkpoint, or a directory written by the controller's ``save``.
        """
        raise NotImplementedError(f"{type(self).__name__} must define read_state")

    def compute_validation(self, checkpoint: Path) -> Mapping[str, float] | None:
        """Compute validation metrics of the model in a checkpoint, without the controller.

        This method is optional. It checks that the controller validates on exactly the validation
        records. Compute a metric from the saved weights and these records.

        Args:
            checkpoint: A committed checkpoint of a trial of `entrypoint`.

        Returns:
            At least one metric that the controller reports, or None to skip the comparison.
        """
        return None

    def callback_events(self, journal: Path) -> Sequence[str]:
        """Return the callback events of a run, in order.

        The experiment file of each run contains ``data: {journal: PATH}``. The trial's callbacks
        log their events in this file. The events are ``train_begin``, ``epoch_begin``,
        ``batch_end``, ``epoch_end``, ``validation_begin``, ``validation_end``, ``checkpoint``,
        ``train_end``.

        Args:
            journal: Path of the file, in any format that the callbacks write.
        """
        raise NotImplementedError(f"{type(self).__name__} must define callback_events")
