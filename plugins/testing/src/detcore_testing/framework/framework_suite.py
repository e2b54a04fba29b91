"""Suite for the contract of framework plugins."""

from __future__ import annotations

from detcore_testing.framework.framework_ends import EndClauses, WorkerClauses
from detcore_testing.framework.framework_running import FoundClauses, RunningClauses
from detcore_testing.framework.framework_state import CheckpointClauses, ExactClauses


class FrameworkSuite(
    WorkerClauses, EndClauses, ExactClauses, CheckpointClauses, RunningClauses, FoundClauses
):
    """Tests each clause of the framework plugin contract with runs in real processes.

    A subclass names trials of the framework, and reads their state from checkpoints without the
    plugin's code. Most clauses share a few runs.

    Attributes:
        framework: Registered name of the framework.
        model_dir: Directory of the trials' code, which the suite copies.
        entrypoint: A trial whose training depends only on the seed. It needs at least 48 records,
            and should have at least 6 batches per epoch.
        hyperparameters: Hyperparameters of all trials. ``global_batch_size`` must be even if the
            framework's trials use it.
        metric: A validation metric.
        smaller_is_better: Whether smaller values of `metric` are better.
        broken_entrypoint: A trial that raises an exception with the message "broken on purpose"
            after some batches.
        invalid_hyperparameters: Additional hyperparameters with which the trial raises
            `detcore.InvalidHP`.
        changed_hyperparameters: Additional hyperparameters, such as another learning rate, that
            change the training of the same model on the same data. Empty: not checked.
        stop_entrypoint: A trial that stops through the framework before all batches are done.
            Empty if the framework cannot stop training.
        worker_entrypoint: The trial for several workers, whose record order must not depend on the
            number of workers. Empty: `entrypoint`.
        modules: Modules of the framework, which plugin discovery must not import. Empty: the
            modules in `Framework.requires` and ``related``.
        num_batches: Training length in batches, at least 16.
        unit: Scheduling unit.
        worker_tolerance: Absolute and relative tolerance between two workers and one worker.
        resume_tolerance: Relative tolerance for the metrics of a resumed run if
            `Framework.inexact_resume` declares that resume is not exact.
        validation_tolerance: Absolute and relative tolerance for the metrics that
            `compute_validation` returns.
        batch_counter: The array in `read_state` that counts the trial's batches. Empty: not
            checked.
        batches_per_epoch: Value that the controller must report for `entrypoint`'s data. None: not
            checked.
        num_validation_records: Records in `entrypoint`'s validation data. None: not checked.
        mean_metric: A training metric that is a mean over batches. Empty: not checked.
        callback_kinds: Events of `callback_events` that the framework has.
        ignored_state: Patterns of names in `read_state` that may differ between equal trainings.
        unread_files: Patterns of checkpoint files that only other code reads, such as
            ``Framework.load_checkpoint``, and not `restore`.
        python_path: Import directories of the runs, in addition to the installed packages.
        timeout_s: Duration in seconds after which a run counts as hanging.
    """
