"""Context and settings of scripts whose framework runs the training loop."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from detcore import core
from detcore.config import load_mapping
from detcore.environment import read_environment
from detcore.errors import InvalidExperimentError
from detcore.trial import open_clock, restore_latest_checkpoint
from detcore.types import Length
from detcore_torch.state.worker_state import StatefulCallbacks, WorkerState

if TYPE_CHECKING:
    from detcore.trial import PollingClock


Reaction: TypeAlias = Literal["warn", "fail", "ignore"]
"""Reaction to an inexact resume; see ``reproducibility.inexact_resume``."""
_EXIT_TEMPFAIL = 75  # sysexits' EX_TEMPFAIL: run again later
_script_hparams: set[str] = set()


def hyperparameters(**defaults: Any) -> dict[str, Any]:
    """Return the hyperparameters of this trial, or `defaults` without ``detcore run``.

    Args:
        defaults: Values by name. The trial's values replace and extend them.
    """
    _script_hparams.update(defaults)
    environment = read_environment()
    if environment.trial_info is None:
        return defaults
    return {**defaults, **core.read_trial_info(environment).hparams}


def list_script_hparams() -> list[str]:
    """Return the hyperparameter names that the script passed to `hyperparameters`."""
    return sorted(_script_hparams)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of a standalone script, which ``detcore run`` did not start.

    Attributes:
        metric: Validation metric that selects the best checkpoint.
        smaller_is_better: Whether a smaller metric is better.
        length: Steps to train; >= 1.
        report_every: Steps between reports; >= 1.
        validate_every: Steps between validations; 0 to validate only at the end.
        save_every: Steps between checkpoints, in addition to the best and the last; 0 for none.
        seed: Seed to record, ``0 <= seed < 2**31``.
        hparams: Hyperparameters to record; None for none.
        arguments: The library's arguments that affect the result of training. A run resumes only
            with equal arguments. Arguments without a JSON form, and None, are not compared.
        storage: Path or URL of the checkpoints; None for the default.
        inexact_resume: Reaction to an inexact resume.
    """

    metric: str
    smaller_is_better: bool = True
    length: int
    report_every: int
    validate_every: int
    save_every: int
    seed: int
    hparams: Mapping[str, object] | None
    arguments: Mapping[str, object]
    storage: str | None
    inexact_resume: Reaction

    def to_config(self) -> dict[str, object]:
        """Return the plan as the content of an experiment file."""
        config: dict[str, object] = {
            "searcher": {
                "name": "single",
                "metric": self.metric,
                "smaller_is_better": self.smaller_is_better,
                "max_length": {"batches": self.length},
            },
            "scheduling_unit": self.report_every,
            "min_validation_period": {"batches": self.validate_every},
            "min_checkpoint_period": {"batches": self.save_every},
            "reproducibility": {
                "experiment_seed": self.seed,
                "inexact_resume": self.inexact_resume,
            },
        }
        if self.storage is not None:
            config["checkpoint_storage"] = self.storage
        return config


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """An open run of a script.

    Attributes:
        context: Its Core API context.
        clock: Decides which work is due.
        checkpoint: Directory of the checkpoint to resume from, valid until `release`; or None.
        release: Releases the directory, once the state is restored.
        length: Maximum number of steps of the experiment; None if the search method decides.
        validation_period: Steps between two validations; 0 for none.
        is_managed: Whether ``detcore run`` started the script.
    """

    context: core.Context
    clock: PollingClock
    checkpoint: Path | None
    release: Callable[[], None]
    length: int | None
    validation_period: int
    is_managed: bool

    def check_completed(self) -> None:
        """Check that the clock ended training.

        Raises:
            SystemExit: With code 75, if the trial was preempted. Code after the training would
                assume a trained model.
            InvalidExperimentError: If the framework ended training before its length.
        """
        if self.clock.stopped is None:
            raise InvalidExperimentError(
                f"training ended before step {self.clock.next_boundary}, which the experiment must "
                "reach.\n"
                "The framework's limit (max_steps, epochs) is lower than searcher.max_length.\n"
                "Raise the limit, or lower searcher.max_length."
            )
        if self.clock.stopped == "preempted":
            raise SystemExit(_EXIT_TEMPFAIL)


@contextlib.contextmanager
def open_run(
    plan: Plan, *, framework: str, steps_per_epoch: int | None, world_size: tuple[str, int]
) -> Iterator[ScriptRun]:
    """Open a script's context and clock; check at the end that training is complete.

    Under ``detcore run``, the experiment file determines lengths and periods. Otherwise the plan
    determines them.

    Args:
        plan: The script's settings.
        framework: Name of the framework in checkpoints.
        steps_per_epoch: Steps in one pass over the training data; None if unknown.
        world_size: Name of the library's setting for the number of processes, and its value.

    Raises:
        SystemExit: See `ScriptRun.check_completed`.
        InvalidExperimentError: If the library uses another number of processes than were started,
            or the workers have different data, or see `ScriptRun.check_completed`.
    """
    is_managed = read_environment().trial_info is not None
    script = _describe_script(plan)
    with core.init(
        distributed=core.DistributedContext.from_env(),
        script=script,
        resume=True,
    ) as context:
        _check_workers(*world_size, context)
        _check_same_data(context, steps_per_epoch)
        assert context.info is not None  # the context is open
        settings, hparams = context.info.settings, context.info.hparams
        count = functools.partial(
            Length.to_batches,
            global_batch_size=hparams.get("global_batch_size"),
            records_per_epoch=settings.records_per_epoch,
            batches_per_epoch=steps_per_epoch,
        )
        with contextlib.ExitStack() as stack:
            checkpoint = stack.enter_context(restore_latest_checkpoint(context))
            clock = open_clock(
                context,
                framework=framework,
                checkpoint=checkpoint,
                steps_per_epoch=steps_per_epoch,
                code_files=None if is_managed else _list_code_files(),
            )
            run = ScriptRun(
                context=context,
                clock=clock,
                checkpoint=checkpoint,
                release=stack.close,
                length=None if settings.max_length is None else count(settings.max_length),
                validation_period=count(settings.min_validation_period),
                is_managed=is_managed,
            )
            yield run
            run.check_completed()


def _describe_script(plan: Plan) -> core.ScriptExperiment:
    """Return the experiment record of a script that ``detcore run`` did not start."""
    config = load_mapping(plan.to_config()).config
    arguments = {
        name: value
        for name, value in plan.arguments.items()
        if value is not None and _has_json_form(value)
    }
    recorded = {**config.model_dump(mode="json"), "name": None}
    return core.ScriptExperiment(
        config=recorded, hparams=plan.hparams or {}, seed=plan.seed, arguments=arguments
    )


def _list_code_files() -> list[str]:
    """Return only the script: its directory may contain anything, and may be a home directory."""
    file = core.script_file()
    return [] if file is None else [file.name]


def _has_json_form(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _check_same_data(context: core.Context, steps_per_epoch: int | None) -> None:
    """Check that all workers have the same number of steps per epoch."""
    counts = context.distributed.allgather(steps_per_epoch)
    if len(set(counts)) > 1:
        raise InvalidExperimentError(
            f"the workers have different data: by rank, an epoch has {counts} steps.\n"
            "They would train on different epochs, or wait for each other forever.\n"
            "Give each worker all of the data. The library divides it."
        )


def _check_workers(name: str, size: int, context: core.Context) -> None:
    """Check that the library uses all processes that were started."""
    started = context.distributed.size
    if size != started:
        raise InvalidExperimentError(
            f"{started} workers were started, but {name} is {size}: each worker would train a "
            "separate model.\n"
            "Start the script with torchrun or with 'detcore launch --launcher torch'. On a "
            "machine without a GPU, set the library to the CPU (use_cpu=True, cpu=True)."
        )


def count_steps_per_epoch(loader: object, batches_per_step: int) -> int | None:
    """Return the steps per pass over the data, or None for a stream without a length."""
    try:
        num_batches = len(loader)  # type: ignore[arg-type]  # checked here
    except TypeError:
        return None
    return max(1, math.ceil(num_batches / batches_per_step))


def name_position(position: Mapping[str, Any]) -> dict[str, Any]:
    """Return a loader's position by name, for the comparison after a resume.

    Between two epochs, the end of the first and the start of the second are the same.
    """
    length = position.get("batches_per_epoch")  # unknown for a stream
    return {"data.position": position["epoch"] * length + position["batch"]} if length else {}


def restore_callbacks(clock: PollingClock, checkpoint: Path, callbacks: StatefulCallbacks) -> None:
    """Restore the states of this worker's callbacks.

    With another number of workers than in the checkpoint, the chief's states are restored.
    """
    WorkerState(clock.worker_directory(checkpoint) or checkpoint).restore_callbacks(callbacks)


def generators_in(
    clock: PollingClock, checkpoint: Path, models: Sequence[Any] = ()
) -> Callable[[], None]:
    """Read this worker's generators, gradients and metrics; return a function that restores them.

    With another number of workers than in the checkpoint, the function changes nothing.

    Args:
        clock: The clock.
        checkpoint: The checkpoint.
        models: The models.
    """
    worker_dir = clock.worker_directory(checkpoint)
    if worker_dir is None:
        return lambda: None
    state = WorkerState(worker_dir)

    def restore() -> None:
        state.restore_metrics(models)
        state.restore_gradients(models)
        state.restore_generators()

    return restore
