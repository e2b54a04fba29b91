"""Define the base class of trials, and the context that each trial receives."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from detcore.contract.errors import CheckFailedError, InvalidExperimentError, closest_match
from detcore.contract.values import TrialInfo, TrialSettings

if TYPE_CHECKING:
    from typing_extensions import Self

    from detcore.contract.distributed import DistributedContext
    from detcore.data import LedgerWriter, StepDigests

__all__ = [
    "CLOCK_FILE",
    "WORKERS_DIRECTORY",
    "InstanceCheckpoints",
    "Trial",
    "TrialContext",
    "TrialEnv",
    "TrialSetup",
]


CLOCK_FILE = "clock.json"
"""File of a checkpoint with the state of the clock and the number of workers."""
TRIAL_FILE = "trial.json"
"""File of a checkpoint that describes its trial."""
WORKERS_DIRECTORY = "workers"
"""Directory of a checkpoint with a directory for each worker except the chief, by rank."""


class Trial:
    """A training job, described by methods that build its parts.

    Users subclass the trial class of a framework plugin (such as ``detcore_keras.KerasTrial``),
    not this class. detcore creates one instance per worker process and passes it the context.
    """

    def __init__(self, context: TrialContext) -> None:
        """Store the context. Subclasses that override this usually also build their models here.

        Args:
            context: The trial's hyperparameters, ranks and paths.
        """
        self.context = context


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialSetup:
    """Values from which a `TrialContext` is created.

    Attributes:
        config: The experiment's configuration as plain values, with defaults, for the user's code.
        settings: The experiment's settings for the plugin's code.
        hparams: Hyperparameters of this trial.
        seed: Seed of everything random in the trial.
        distributed: Ranks and collectives.
        info: The trial's identity; None if nothing is recorded (`TrialContext.from_config`).
        tensorboard_path: Directory of event files.
        cache_dir: Directory of data caches that outlive the trial.
        ledger: Log of the record ids of each batch; None if the data ledger is off.
        digests: Digests of each step; None if step digests are off.
        steps_completed: Batches completed before this process started.
        test_mode: Whether to run one batch, one validation step and one checkpoint.
    """

    config: Mapping[str, Any]
    settings: TrialSettings = dataclasses.field(default_factory=TrialSettings)
    hparams: Mapping[str, Any]
    seed: int
    distributed: DistributedContext
    info: TrialInfo | None = None
    tensorboard_path: Path | None = None
    cache_dir: Path | None = None
    ledger: LedgerWriter | None = None
    digests: StepDigests | None = None
    steps_completed: int = 0
    test_mode: bool = False


class TrialEnv:
    """Attributes of ``context.env`` that trials written for Determined read.

    Attributes:
        hparams: Hyperparameters of this trial.
        trial_seed: Seed of everything random in the trial.
        experiment_config: The experiment's configuration as plain values, with defaults.
    """

    def __init__(self, setup: TrialSetup) -> None:
        self.hparams = setup.hparams
        self.trial_seed = setup.seed
        self.experiment_config = setup.config

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"context.env.{name} does not exist: it described a Determined container.\n"
            "context.env has hparams, trial_seed and experiment_config. Get the devices from the "
            "framework, such as tf.config.list_physical_devices('GPU'), and the rank of this "
            "worker from context.distributed."
        )


class InstanceCheckpoints(Protocol):
    """The checkpoints of a trial that was created for debugging, in a directory of the caller.

    The trial's data and model are built on first use. Use it from one thread at a time.

    Attributes:
        directory: A directory of checkpoints, or a single checkpoint.
    """

    directory: Path

    @property
    def latest(self) -> Path | None:
        """The newest checkpoint in the directory, or the directory if it is a checkpoint.

        None if there is no checkpoint yet.
        """

    def restore(self, checkpoint: str | os.PathLike[str] | None = None) -> Path:
        """Restore the whole training state into the trial's model, data and random generators.

        Args:
            checkpoint: A checkpoint's directory; default: `latest`.

        Returns:
            The checkpoint's directory.

        Raises:
            CheckpointNotFoundError: If no checkpoint is found.
            InvalidCheckpointError: If the checkpoint does not fit the trial.
        """

    def save(self, steps_completed: int | None = None) -> Path:
        """Save the whole training state as a new checkpoint in the directory.

        The checkpoint can be loaded like a run's checkpoint, and a run can start from it
        (``searcher.source_checkpoint_uuid: DIRECTORY``).

        Args:
            steps_completed: Number of completed batches to record. Default: that of the restored
                checkpoint, or 0.

        Returns:
            The checkpoint's directory.
        """

    def validate(self) -> dict[str, float]:
        """Evaluate the current model on the validation data, and return the metrics."""

    def close(self) -> None:
        """Release resources of the trial's data, such as worker processes."""


class TrialContext:
    """A trial's view of its run. Framework plugins subclass it.

    Example::

        >>> from detcore import TrialContext
        >>> context = TrialContext.from_config(
        ...     {"hyperparameters": {"global_batch_size": 32, "dropout": 0.5}}
        ... )
        >>> context.get_hparam("dropout"), context.get_per_slot_batch_size()
        (0.5, 32)
        >>> context.distributed.get_rank(), context.is_managed
        (0, False)

    Attributes:
        distributed: The `DistributedContext` of the trial's workers.
        planned_batches: Batch at which training ends according to the search method; None before
            that is known.
        checkpoints: The checkpoints of a trial that ``detcore.client.create_trial_instance``
            created; None in a run.
    """

    def __init__(self, setup: TrialSetup) -> None:
        self.setup = setup
        self.distributed = setup.distributed
        self.planned_batches: int | None = None
        self.checkpoints: InstanceCheckpoints | None = None
        self._stop_requested = False
        self._read_hparams: set[str] = set()

    @property
    def env(self) -> TrialEnv:
        """Compatibility with trials written for Determined; new code uses the methods."""
        self._read_hparams.update(self.setup.hparams)
        return TrialEnv(self.setup)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Create a context for debugging outside of a run.

        Nothing is recorded, and the wrapping methods return their arguments.

        Args:
            config: An experiment configuration as a dictionary. Only the parts that the trial reads
                are required.
        """
        from detcore.config import resolve_constants
        from detcore.config.experiment_config import Optimizations
        from detcore.contract.distributed import DistributedContext

        values = copy.deepcopy(dict(config))
        seed = int((values.get("reproducibility") or {}).get("experiment_seed") or 0)
        optimizations = Optimizations.model_validate(values.get("optimizations") or {})
        return cls(
            TrialSetup(
                config=values,
                settings=TrialSettings(gradients=optimizations.gradient_settings()),
                hparams=resolve_constants(values.get("hyperparameters") or {}, seed=seed),
                seed=seed,
                distributed=DistributedContext(
                    rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1
                ),
            )
        )

    @property
    def info(self) -> TrialInfo | None:
        """The trial's identity; None outside of a run."""
        return self.setup.info

    @property
    def is_managed(self) -> bool:
        """Whether a run drives this trial; False for contexts created by `from_config`."""
        return self.setup.info is not None

    @property
    def ledger(self) -> LedgerWriter | None:
        """The data ledger, if ``data_ledger: true`` is set."""
        return self.setup.ledger

    @property
    def digests(self) -> StepDigests | None:
        """The digests of each step, unless ``reproducibility.step_digests`` is off."""
        return self.setup.digests

    @property
    def test_mode(self) -> bool:
        """Whether this is a smoke run of one batch (``detcore run --test``)."""
        return self.setup.test_mode

    def get_experiment_config(self) -> dict[str, Any]:
        """Return a copy of the experiment's configuration."""
        return copy.deepcopy(dict(self.setup.config))

    def get_data_config(self) -> dict[str, Any]:
        """Return the ``data`` section of the configuration."""
        return copy.deepcopy(dict(self.setup.config.get("data") or {}))

    def get_experiment_id(self) -> int:
        """Return the experiment's id; 0 outside of a run."""
        return self.info.experiment_id if self.info else 0

    def get_trial_id(self) -> int:
        """Return the trial's id; 0 outside of a run."""
        return self.info.trial_id if self.info else 0

    def get_trial_seed(self) -> int:
        """Return the seed of everything random in this trial, ``0 <= seed < 2**31``."""
        return self.setup.seed

    def get_hparams(self) -> dict[str, Any]:
        """Return all hyperparameters of this trial by name."""
        self._read_hparams.update(self.setup.hparams)
        return copy.deepcopy(dict(self.setup.hparams))

    def get_hparam(self, name: str) -> Any:
        """Return one hyperparameter.

        Raises:
            InvalidExperimentError: If it does not exist (it is also a ValueError).
        """
        hparams = self.setup.hparams
        self._read_hparams.add(name)
        if name not in hparams:
            similar = closest_match(str(name), map(str, hparams))
            raise InvalidExperimentError(
                f"unknown hyperparameter {name!r}; defined: "
                f"{', '.join(sorted(map(str, hparams))) or 'none'}.\n"
                "Add it under 'hyperparameters' in the experiment file"
                f"{f', or rename {similar!r} to {name!r} there' if similar else ''}."
            )
        return copy.deepcopy(hparams[name])

    def unread_hparams(self) -> dict[str, str | None]:
        """Return the hyperparameters that the trial has not read, with their closest matches.

        Each is mapped to the most similar hyperparameter that the trial has read, or to None. If
        the file has ``droput`` and the code reads ``dropout``, this is ``dropout``. `get_hparams`
        counts as reading all hyperparameters.
        """
        unread = [name for name in self.setup.hparams if name not in self._read_hparams]
        return {
            name: closest_match(name, self._read_hparams)
            for name in unread
            if name != "global_batch_size"
        }

    def get_global_batch_size(self) -> int:
        """Return the number of records per step over all workers.

        This is the configured value, rounded down to a multiple of the number of workers.

        Raises:
            InvalidExperimentError: If ``hyperparameters.global_batch_size`` is missing, not an
                integer, or smaller than the number of workers.
        """
        return self.get_per_slot_batch_size() * self.distributed.get_size()

    def get_per_slot_batch_size(self) -> int:
        """Return the number of records per step for one worker (``per_worker_batch_size``)."""
        size = self.setup.hparams.get("global_batch_size")
        if size is None:
            raise InvalidExperimentError(
                "hyperparameters.global_batch_size is not set.\n"
                "A trial class needs it: it is the number of records in one step.\n"
                "Add it to the experiment file, such as:\n"
                "  hyperparameters:\n    global_batch_size: 32"
            )
        workers = self.distributed.get_size()
        if not isinstance(size, int) or isinstance(size, bool) or size < workers:
            raise InvalidExperimentError(
                f"hyperparameters.global_batch_size is {size!r} "
                f"({type(size).__name__}) for {workers} worker{'s' if workers > 1 else ''}.\n"
                "It must be an integer, at least 1 for each worker."
            )
        return size // workers

    def get_initial_batch(self) -> int:
        """Return the number of batches completed before this process started."""
        return self.setup.steps_completed

    def worker_directory(self, directory: Path) -> Path | None:
        """Return the directory of this worker's files in a checkpoint; for framework plugins.

        Args:
            directory: Checkpoint directory, as passed to ``restore``.

        Returns:
            The checkpoint itself on the chief, and a directory in it on other workers. None if a
            different number of workers saved the checkpoint: no file belongs to one worker then.
        """
        clock_file = directory / CLOCK_FILE
        # Tests of a controller may run it without a clock, on one worker.
        clock = json.loads(clock_file.read_text(encoding="utf-8")) if clock_file.exists() else {}
        rank, size = self.distributed.rank, self.distributed.size
        if clock.get("workers", 1) != size:
            return None
        return directory / WORKERS_DIRECTORY / str(rank) if rank else directory

    def prepare_instance(self, trial: Trial, checkpoint: Path | None) -> None:
        """Make the trial build its objects from a checkpoint; plugins may override this.

        Called before the first use of a trial that was created for debugging. The default does
        nothing, because ``checkpoints.restore()`` works with every framework.

        Args:
            trial: The trial. An override may replace its methods.
            checkpoint: The newest checkpoint in its directory, or None.
        """

    def get_tensorboard_path(self) -> Path:
        """Return the directory for event files of this trial."""
        return self.setup.tensorboard_path or Path.cwd() / "tensorboard"

    def get_stop_requested(self) -> bool:
        """Return whether a stop was requested."""
        return self._stop_requested

    def set_stop_requested(self, stop_requested: bool) -> None:
        """Request the end of the trial, which then saves a checkpoint at the next boundary.

        Args:
            stop_requested: True to request it, False to withdraw the request.
        """
        if not isinstance(stop_requested, bool):
            raise CheckFailedError(
                f"set_stop_requested requires True or False, got {stop_requested!r} "
                f"({type(stop_requested).__name__})"
            )
        self._stop_requested = stop_requested
