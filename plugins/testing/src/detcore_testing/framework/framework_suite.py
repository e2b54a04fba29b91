"""The contract that every framework plugin has to keep, for any framework."""

from __future__ import annotations

from detcore_testing.framework.framework_ends import EndClauses, WorkerClauses
from detcore_testing.framework.framework_running import FoundClauses, RunningClauses
from detcore_testing.framework.framework_state import CheckpointClauses, ExactClauses


class FrameworkSuite(
    WorkerClauses, EndClauses, ExactClauses, CheckpointClauses, RunningClauses, FoundClauses
):
    """The contract of a framework plugin, clause by clause, through runs in real processes.

    A subclass names trials of the framework, and reads their state off checkpoints by other means
    than the plugin's own. Runs are shared: most clauses look at the same few of them.

    Attributes:
        framework: The registered name.
        model_dir: Folder of the trials' code; it is copied.
        entrypoint: A trial that is the same for the same seed, and another one for another seed.
            Its data has 48 records or more. An epoch should have 6 batches or more.
        hyperparameters: Of all trials; with an even ``global_batch_size`` where trials of the
            framework have one.
        metric: A validation metric.
        smaller_is_better: Its direction.
        broken_entrypoint: A trial whose training, some batches on, raises an exception with the
            text "broken on purpose".
        invalid_hyperparameters: With these on top, the trial raises `detcore.InvalidHP`.
        changed_hyperparameters: With these on top, such as another learning rate, the same data
            trains the same model in another way; empty: not checked.
        stop_entrypoint: A trial that ends training in the framework's own way before all batches
            are done; empty if the framework has no such way.
        worker_entrypoint: The trial for several workers, whose records must not be dealt in an
            order that depends on how many there are; empty: `entrypoint`.
        modules: Modules of the framework, which must not be imported when plugins are found;
            empty: those that `Framework.requires` and ``related`` name.
        num_batches: How long trials train; not below 16.
        unit: Scheduling unit.
        worker_tolerance: How far two workers may be from one, absolutely and relatively.
        resume_tolerance: How far the metrics of a resumed run may be from those of one that was
            not interrupted, relatively, where `Framework.inexact_resume` says that a resume is not
            exact.
        validation_tolerance: How far reported validation metrics may be from those that
            `compute_validation` returns, absolutely and relatively.
        batch_counter: The array of `read_state` that counts the batches of the trial; empty: none.
        batches_per_epoch: Value that the controller must report for `entrypoint`'s data; None: not
            checked.
        num_validation_records: Records of `entrypoint`'s validation data; None: not checked.
        mean_metric: A training metric that is a mean over batches; empty if no metric is.
        callback_kinds: Which events of `callback_events` the framework has.
        ignored_state: Patterns of names in `read_state` that may differ between equal trainings.
        unread_files: Patterns of files in checkpoints that `restore` need not read, because only
            other code does, such as ``Framework.load_checkpoint``.
        python_path: Folders from which runs import, in addition to the installed packages.
        timeout_s: How long a run may take before it counts as hanging, in seconds.
    """
