"""Scripts whose framework owns its loop: their context and their settings."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore import core
from detcore.config import load_mapping
from detcore.environment import read_environment
from detcore.errors import InvalidExperimentError
from detcore.trial import open_clock, restore_latest_checkpoint
from detcore.types import Length
from detcore_torch.state.worker_state import StatefulCallbacks, WorkerState

if TYPE_CHECKING:
    from detcore.trial import PollingClock


_EXIT_TEMPFAIL = 75  # sysexits' EX_TEMPFAIL: run again later
_script_hparams: set[str] = set()


def hyperparameters(**defaults: Any) -> dict[str, Any]:
    """Return the hyperparameters of this trial; `defaults` if ``detcore run`` did not start it.

    Args:
        defaults: Values by name. The trial's values replace them; further ones are added.
    """
    _script_hparams.update(defaults)
    environment = read_environment()
    if environment.trial_info is None:
        return defaults
    return {**defaults, **core.read_trial_info(environment).hparams}


def list_script_hparams() -> list[str]:
    """Return the hyperparameters that the script has named in calls of `hyperparameters`."""
    return sorted(_script_hparams)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings with which a script trains that ``detcore run`` did not start.

    Attributes:
        metric: The validation metric that chooses the best checkpoint.
        smaller_is_better: Its direction.
        length: Steps to train; >= 1.
        report_every: Steps between reports; >= 1.
        validate_every: Steps between validations; 0 for one at the end.
        save_every: Steps between checkpoints, besides the best and the last; 0 for none.
        seed: Seed to record, ``0 <= seed < 2**31``.
        hparams: Hyperparameters to record; None for none.
        arguments: The library's arguments on which the result of training depends. A run continues
            only with equal ones; those without a JSON form, and None, are not compared.
        storage: Path or URL of the checkpoints; None for the default.
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

    def config(self) -> dict[str, object]:
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
            "reproducibility": {"experiment_seed": self.seed},
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
        checkpoint: The folder of the checkpoint from which it resumes, until `release`; or None.
        release: Gives the folder back, once the state is restored.
        length: Steps that the experiment trains at most; None if only the search method knows.
        validation_period: Steps between two validations; 0 for none.
        is_managed: Whether ``detcore run`` started the script, and the experiment file decides.
    """

    context: core.Context
    clock: PollingClock
    checkpoint: Path | None
    release: Callable[[], None]
    length: int | None
    validation_period: int
    is_managed: bool

    def finish(self) -> None:
        """Check that training ended because the clock said so.

        Raises:
            SystemExit: With code 75, if the trial was preempted: code after the training would
                assume that the model is trained.
            InvalidExperimentError: If the framework ended training earlier.
        """
        if self.clock.stopped is None:
            raise InvalidExperimentError(
                f"training ended before step {self.clock.next_boundary}, to which the experiment "
                "goes at least.\n"
                "The framework's own limit (max_steps, epochs) is lower than searcher.max_length.\n"
                "Raise the one or lower the other."
            )
        if self.clock.stopped == "preempted":
            raise SystemExit(_EXIT_TEMPFAIL)


@contextlib.contextmanager
def open_run(
    plan: Plan, *, framework: str, steps_per_epoch: int | None, world_size: tuple[str, int]
) -> Iterator[ScriptRun]:
    """Open the context of a script, and its clock; check at the end that training is complete.

    Under ``detcore run``, the experiment file decides on lengths and periods, else the plan.

    Args:
        plan: The script's settings.
        framework: The name for the checkpoints.
        steps_per_epoch: Steps in one pass over the training data; None if unknown.
        world_size: The number of processes according to the library, after its name there.

    Raises:
        SystemExit: See `ScriptRun.finish`.
        InvalidExperimentError: If the library has found another number of processes than were
            started, or the workers have different data, or see `ScriptRun.finish`.
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
            run.finish()


def _describe_script(plan: Plan) -> core.ScriptExperiment:
    """Return what is recorded of a script that ``detcore run`` did not start."""
    config = load_mapping(plan.config()).config
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
    """Return the script alone: its folder may contain anything, up to a home folder."""
    file = core.script_file()
    return [] if file is None else [file.name]


def _has_json_form(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _check_same_data(context: core.Context, steps_per_epoch: int | None) -> None:
    """Check that all workers have the same number of steps in an epoch."""
    found = context.distributed.allgather(steps_per_epoch)
    if len(set(found)) > 1:
        raise InvalidExperimentError(
            f"the workers have different data: by rank, an epoch has {found} steps.\n"
            "They would train on different epochs, or wait for each other without an end.\n"
            "Give each worker all of the data; the library divides it."
        )


def _check_workers(name: str, size: int, context: core.Context) -> None:
    """Check that a library has found as many processes as were started."""
    started = context.distributed.size
    if size != started:
        raise InvalidExperimentError(
            f"{started} workers were started, but {name} is {size}: each of them would train a "
            "model by itself.\n"
            "Start the script with torchrun or with 'detcore launch --launcher torch', and have "
            "the library use the CPU where there is no GPU (use_cpu=True, cpu=True)."
        )


def count_steps_per_epoch(loader: object, batches_per_step: int) -> int | None:
    """Return the steps in one pass over the data; None for a stream without a length."""
    try:
        num_batches = len(loader)  # type: ignore[arg-type]  # asked here
    except TypeError:
        return None
    return max(1, math.ceil(num_batches / batches_per_step))


def restore_callbacks(clock: PollingClock, checkpoint: Path, callbacks: StatefulCallbacks) -> None:
    """Give this worker's callbacks their states.

    With another number of workers than in the checkpoint, they get those of the chief.
    """
    WorkerState(clock.worker_directory(checkpoint) or checkpoint).restore_callbacks(callbacks)


def generators_in(
    clock: PollingClock, checkpoint: Path, models: Sequence[Any] = ()
) -> Callable[[], None]:
    """Read this worker's generators, gradients and metrics; return a function that restores them.

    With another number of workers than in the checkpoint, it leaves them as they are.

    Args:
        clock: The clock.
        checkpoint: The checkpoint.
        models: The models.
    """
    own = clock.worker_directory(checkpoint)
    if own is None:
        return lambda: None
    state = WorkerState(own)

    def restore() -> None:
        state.restore_metrics(models)
        state.restore_gradients(models)
        state.restore_generators()

    return restore
