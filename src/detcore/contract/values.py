"""Small values that several packages of detcore exchange. Imports only the stdlib."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, Union

from detcore.contract.errors import ScheduleError

__all__ = [
    "RETENTION_DEFAULTS",
    "Control",
    "ExperimentState",
    "Framework",
    "GradientSettings",
    "JSONValue",
    "Length",
    "MetricKind",
    "ModelOrderBy",
    "ModelSortBy",
    "SaveTimes",
    "TensorInfo",
    "TrialInfo",
    "TrialSettings",
    "TrialState",
    "UnfinishedCheckpoint",
    "Unit",
]  # fmt: skip

JSONValue: TypeAlias = Union[bool, int, float, str, "list[JSONValue]", "dict[str, JSONValue]", None]
MetricKind = Literal["training", "validation"]
_TRIAL_CLASS = re.compile(
    r"""(?P<module>([^\W\d]\w*\.)*[^\W\d]\w*|[^\s|&;<>()$`\\"'*?[\]#~{}!]+\.py)"""
    r":(?P<name>[^\W\d]\w*)"
)
RETENTION_DEFAULTS: Mapping[str, int] = {
    "save_experiment_best": 0,
    "save_trial_best": 1,
    "save_trial_latest": 1,
}
"""Default numbers of checkpoints to keep."""
COLLECTIVE_TIMEOUT_S = 1800.0
CONNECT_TIMEOUT_S = 300.0


class Unit(str, enum.Enum):
    """The unit of a length."""

    BATCHES = "batches"
    RECORDS = "records"
    EPOCHS = "epochs"


@dataclasses.dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor in a checkpoint, as its framework describes it; stored in the manifest.

    Attributes:
        name: Name of the tensor in the framework, such as ``"dense/kernel"``.
        shape: Dimensions.
        dtype: NumPy's name of the element type, such as ``"float32"``. Types that NumPy lacks
            (``"bfloat16"``) have the framework's name.
        file: Name of the file that contains the tensor, relative to the checkpoint.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SaveTimes:
    """Duration of a save.

    Attributes:
        size_bytes: Sum of the file sizes.
        stalled_s: Seconds for which training waited, including the wait for the previous save.
        total_s: Seconds from the start of the save, after that wait, to its record.
    """

    size_bytes: int
    stalled_s: float
    total_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedCheckpoint:
    """A recorded checkpoint whose process may have exited.

    Attributes:
        uuid: Identifier of the checkpoint.
        state: ACTIVE, DELETING or PARTIALLY_DELETED.
        resources: Sizes of the files to keep, by name.
    """

    uuid: str
    state: str
    resources: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Length:
    """An amount of training, such as 5 epochs.

    Attributes:
        count: Number of units; >= 0.
        unit: The unit.
    """

    count: int
    unit: Unit

    def to_batches(
        self,
        *,
        global_batch_size: int | None = None,
        records_per_epoch: int = 0,
        batches_per_epoch: int | None = None,
    ) -> int:
        """Return the length in batches: rounded down, but at least 1 unless `count` is 0.

        Args:
            global_batch_size: Records per step over all workers; needed for records, and for
                epochs given by `records_per_epoch`.
            records_per_epoch: Configured number of records in one epoch; 0 = not configured.
            batches_per_epoch: Number of batches in one epoch that the data reports, or None. Only
                used if `records_per_epoch` is 0.

        Raises:
            ScheduleError: If `count` is negative, or an argument that the conversion needs is
                missing.
        """
        if self.count < 0:
            raise ScheduleError(f"a length of {self.count} {self.unit.value} is negative")
        if self.count == 0:
            return 0
        if self.unit is Unit.BATCHES:
            return self.count
        if self.unit is Unit.EPOCHS and not records_per_epoch:
            if not batches_per_epoch:
                raise ScheduleError(
                    f"cannot convert {self.count} epochs into batches: records_per_epoch is not "
                    "set, and the length of the training data is unknown.\n"
                    "Set records_per_epoch in the experiment file, or give the length in batches."
                )
            return self.count * batches_per_epoch
        if not global_batch_size:
            raise ScheduleError(
                f"cannot convert {self.count} {self.unit.value} into batches: "
                "hyperparameters.global_batch_size is not set.\n"
                "Set it, or give the length in batches."
            )
        records = self.count * (records_per_epoch if self.unit is Unit.EPOCHS else 1)
        return max(1, records // global_batch_size)


class ExperimentState(str, enum.Enum):
    """The state of an experiment."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    CANCELED = "CANCELED"
    ERROR = "ERROR"


TrialState = ExperimentState


class Control(str, enum.Enum):
    """A request of another process to the runner of an experiment."""

    PAUSE = "pause"
    CANCEL = "cancel"
    KILL = "kill"


class ModelOrderBy(enum.IntEnum):
    """The sort direction of a list."""

    ASCENDING = 1
    DESCENDING = 2
    ASC = 1
    DESC = 2


class ModelSortBy(enum.IntEnum):
    """The sort key of a list of models."""

    UNSPECIFIED = 0
    NAME = 1
    DESCRIPTION = 2
    CREATION_TIME = 4
    LAST_UPDATED_TIME = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A training framework that a plugin registers.

    Every object is named as ``"module:attribute"`` and imported on first use, so registering does
    not import the framework.

    Attributes:
        name: Short name, such as ``"keras"``.
        trial_class: The `detcore.Trial` subclass that users subclass.
        context_class: The `detcore.TrialContext` subclass that its trials receive.
        controller: A callable ``(trial, context) -> SteppingController | LoopingController``.
        prepare_worker: A callable ``(PrepareOptions) -> None``, called in a worker process before
            the trial is created (for seeds and device settings), or None.
        load_checkpoint: A callable ``(path, tags=..., **kwargs) -> model`` for checkpoints that
            this framework wrote, or None. It receives only the arguments that the caller passed.
        reads: Other frameworks whose checkpoints `load_checkpoint` reads, as named in the
            checkpoint's ``metadata.json``, without the version (``"torch"``) or with the format
            (``"tensorflow:h5"``).
        native_init: The callable behind ``detcore.client.<name>.init``, for scripts that train
            without a trial class, or None.
        metric: Default validation metric for comparing trials, for configurations written in
            Python.
        several_workers: Whether its controllers train one model on several workers. If not, trials
            with several workers are rejected.
        inexact_resume: The reason why a resumed trial does not continue bit for bit, as a sentence
            without a full stop. Empty if it does. A run and ``detcore plugins info`` show it.
        requires: Modules that must be importable, such as ``("tensorflow",)``.
        related: Further modules whose versions matter, such as ``("keras",)``. Checkpoints record
            the versions of the imported modules among `requires` and `related`.
        install_hint: The command that installs the modules in `requires`.
        variables: Names and default values of environment variables for worker processes. They are
            set before anything is imported, unless the user has set them.
        import_variables: Prefixes of the environment variables that the framework reads during its
            import, such as ``"TF_"``. A trial of a search is not forked from a process that has
            imported the framework with other values.
        notices: Regular expressions of whole lines that the framework writes to standard error at
            every start, with ``\\n`` between consecutive lines. A run keeps such lines in the
            trial's log and does not display them.
    """

    name: str
    trial_class: str
    context_class: str
    controller: str
    prepare_worker: str | None = None
    load_checkpoint: str | None = None
    reads: tuple[str, ...] = ()
    native_init: str | None = None
    metric: str = "val_loss"
    several_workers: bool = False
    inexact_resume: str = ""
    requires: tuple[str, ...] = ()
    related: tuple[str, ...] = ()
    install_hint: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    import_variables: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GradientSettings:
    """How the workers of a trial combine gradients and training metrics (``optimizations``).

    Attributes:
        aggregation_frequency: Batches whose gradients are summed before each update; >= 1.
        average_aggregated_gradients: Whether that sum is divided by `aggregation_frequency`.
        average_training_metrics: Whether training metrics are averaged over all workers.
        gradient_compression: Whether gradients are sent as half-precision numbers.
        auto_tune_tensor_fusion: Whether Horovod chooses the next two settings.
        tensor_fusion_threshold: Megabytes of gradients that Horovod sends together, or None.
        tensor_fusion_cycle_time: Milliseconds between two rounds of Horovod, or None.
    """

    aggregation_frequency: int = 1
    average_aggregated_gradients: bool = True
    average_training_metrics: bool = True
    gradient_compression: bool = False
    auto_tune_tensor_fusion: bool = False
    tensor_fusion_threshold: int | None = None
    tensor_fusion_cycle_time: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialSettings:
    """The settings of the experiment file that a trial's launcher, workers and plugins need.

    `detcore.config.ExperimentConfig.trial_settings` returns them. Each field has the meaning and
    the default of the field with the same name in the file, in whatever section that is.

    Attributes:
        entrypoint: Empty for a standalone script.
        metric: ``searcher.metric``; None for a standalone script without this setting.
        max_length: None for search methods without this setting.
        length_unit: The unit of all lengths of the search.
        step_digests: 0: none, k: every k-th step.
        checkpoint_storage: Argument of `detcore.storage.open_storage`, with credentials.
        gradients: The section ``optimizations``.
    """

    entrypoint: str | list[str] = ""
    metric: str | None = None
    smaller_is_better: bool = True
    max_length: Length | None = None
    length_unit: Unit = Unit.EPOCHS
    source_trial_id: int | None = None
    source_checkpoint_uuid: str | None = None
    records_per_epoch: int = 0
    scheduling_unit: int = 100
    min_validation_period: Length = Length(0, Unit.BATCHES)
    min_checkpoint_period: Length = Length(0, Unit.BATCHES)
    perform_initial_validation: bool = False
    checkpoint_policy: Literal["best", "all", "none"] = "best"
    checkpoint_storage: str | Mapping[str, Any] | None = None
    checkpoint_async: bool = True
    checkpoint_exit_timeout_s: float = 3600.0
    preemption_grace_s: float | None = None
    hang_timeout_s: float | None = None
    stop_at_nan: bool = False
    data_ledger: bool = False
    deterministic_ops: bool | None = None
    step_digests: int = 10
    inexact_resume: Literal["warn", "fail", "ignore"] = "warn"
    slots_per_trial: int = 1
    gradients: GradientSettings = GradientSettings()

    def __post_init__(self) -> None:
        for name in ("max_length", "min_validation_period", "min_checkpoint_period"):
            value = getattr(self, name)
            if isinstance(value, Mapping):  # read from JSON
                length = Length(int(value["count"]), Unit(value["unit"]))
                object.__setattr__(self, name, length)
        object.__setattr__(self, "length_unit", Unit(self.length_unit))
        if isinstance(self.gradients, Mapping):
            object.__setattr__(self, "gradients", GradientSettings(**self.gradients))

    @property
    def is_trial_class(self) -> bool:
        """Whether `entrypoint` names a trial class, not a command."""
        return self.match_trial_class(self.entrypoint) is not None

    @staticmethod
    def match_trial_class(entrypoint: object) -> re.Match[str] | None:
        """Return ``module`` and ``name`` of an entrypoint that names a class; None for a command.

        A class is named as ``module:Class`` or ``directory/file.py:Class``.
        """
        return _TRIAL_CLASS.fullmatch(entrypoint) if isinstance(entrypoint, str) else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialInfo:
    """The trial that a worker process runs. The runner passes it as a JSON file.

    Attributes:
        experiment_id: Id of the experiment's record.
        trial_id: Id of the trial's record.
        run_id: Number of this start of the trial, from 1.
        trial_seed: Seed of everything random in the trial, ``0 <= seed < 2**31``.
        hparams: Hyperparameters of this trial, constants resolved.
        config: The experiment's configuration with defaults, as JSON values, for users and
            observers. Code reads `settings`.
        model_dir: Absolute path of the directory with the user's code.
        trial_dir: Absolute path of the directory with the trial's log, ledger and event files.
        latest_checkpoint: UUID of the checkpoint to restore, or None to start fresh.
        steps_completed: Steps of that checkpoint; 0 for a fresh start.
        test_mode: Whether to run one batch, one validation and one checkpoint.
        source_checkpoint: Checkpoint from which a fresh trial starts: UUID of another trial's
            checkpoint or absolute path of a directory, or None. Ignored if `latest_checkpoint` is
            set.
        source_storage: Storage of `source_checkpoint`, as ``checkpoint_storage`` in an experiment
            file; None for the trial's storage.
        searcher_length: Training length that the search method first requests, since the start of
            the trial and in the unit of ``searcher.max_length``; None for ``max_length``.
        validated_metric: The searcher's metric from a validation of `latest_checkpoint` that was
            recorded after the checkpoint, or None. The worker does not repeat that validation.
        best_validation: The best value of the searcher's metric that earlier runs of the trial
            reported until `steps_completed`, or None.
        settings: The settings in `config` that launchers, workers and plugins read.
        code_dir: Directory with a copy of the user's code without secrets, for checkpoints. If
            None, checkpoints copy `model_dir`.
        is_complete: Whether an earlier, unfinished start of a standalone script completed this
            run. Then `latest_checkpoint` has its final state, and nothing is left to train.
    """

    experiment_id: int
    trial_id: int
    run_id: int
    trial_seed: int
    hparams: Mapping[str, Any]
    config: Mapping[str, Any]
    model_dir: str
    trial_dir: str
    latest_checkpoint: str | None = None
    steps_completed: int = 0
    test_mode: bool = False
    source_checkpoint: str | None = None
    source_storage: str | Mapping[str, Any] | None = None
    searcher_length: int | None = None
    validated_metric: float | None = None
    best_validation: float | None = None
    settings: TrialSettings = TrialSettings()
    code_dir: str | None = None
    is_complete: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.settings, Mapping):  # read from JSON
            object.__setattr__(self, "settings", TrialSettings(**self.settings))
