"""Scripts whose framework owns its loop: their context, their settings, and their state."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore import core
from detcore.config import load_mapping
from detcore.environment import read_environment
from detcore.errors import InvalidExperimentError
from detcore.trial import open_clock, resumed_from
from detcore_torch.lr_scheduler import LRScheduler
from detcore_torch.state.model_attributes import ModelAttributes
from detcore_torch.state.random_generators import capture_generators, restore_generators
from detcore_torch.state.shared_state import capture_shared, restore_shared
from detcore_torch.state.state_files import StateFiles
from detcore_torch.state.worker_state import StatefulCallbacks, WorkerState, capture_worker

if TYPE_CHECKING:
    from detcore.trial import AskedClock
    from detcore.types import Length, TensorInfo, TrialSettings


_COME_BACK = 75  # sysexits' EX_TEMPFAIL: run again later
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
    clock: AskedClock
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
            raise SystemExit(_COME_BACK)


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
    storage = None if is_managed else script.settings.checkpoint_storage
    with core.init(
        distributed=core.DistributedContext.from_env(),
        checkpoint_storage=storage,
        script=script,
        resume=True,
    ) as context:
        _check_workers(*world_size, context)
        _check_same_data(context, steps_per_epoch)
        assert context.info is not None  # the context is open
        settings = context.info.settings
        count = functools.partial(
            _count_steps, settings=settings, context=context, steps_per_epoch=steps_per_epoch
        )
        with contextlib.ExitStack() as stack:
            checkpoint = stack.enter_context(resumed_from(context))
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
    recorded = {**config.model_dump(mode="json"), "name": None, "script_arguments": arguments}
    return core.ScriptExperiment(
        config=recorded,
        settings=config.trial_settings(),
        hparams=plan.hparams or {},
        seed=plan.seed,
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


def _count_steps(
    length: Length, *, settings: TrialSettings, context: core.Context, steps_per_epoch: int | None
) -> int:
    hparams = context.info.hparams if context.info is not None else {}
    return length.to_batches(
        global_batch_size=hparams.get("global_batch_size"),
        records_per_epoch=settings.records_per_epoch,
        batches_per_epoch=steps_per_epoch,
    )


@dataclasses.dataclass(slots=True, kw_only=True)
class ScriptState:
    """The state of a script's objects; a `detcore.trial.SavesState` with snapshots.

    Attributes:
        attributes: Attributes of the models, which are without the wrappers of a process group.
        optimizers: Their optimizers.
        schedulers: Learning rate schedulers.
        scalers: Gradient scalers.
        rank: Index of this worker; others than the chief save only what each worker has.
        callbacks: The callbacks' states, which each worker has, or None; see `restore_callbacks`.
        extra: Adds the framework's own files on the chief, or None.
        has_updated: Whether the optimizers have applied the gradients of their parameters. Those of
            other parameters are saved: a script may clip by the norm of all gradients.
    """

    attributes: ModelAttributes
    optimizers: Sequence[Any] = ()
    schedulers: Sequence[Any] = ()
    scalers: Sequence[Any] = ()
    rank: int = 0
    callbacks: StatefulCallbacks | None = None
    extra: Callable[[StateFiles], None] | None = None
    has_updated: bool = True
    _tensors: Sequence[TensorInfo] = ()

    @property
    def models(self) -> Sequence[Any]:
        """The models."""
        return self.attributes.models

    @property
    def lr_schedulers(self) -> list[LRScheduler]:
        """The schedulers as a trial wraps them."""
        return [LRScheduler(each, LRScheduler.StepMode.MANUAL_STEP) for each in self.schedulers]

    def save(self, directory: Path) -> None:
        """Write all files."""
        self._capture().write(directory)

    def snapshot(self, directory: Path) -> Callable[[], None]:
        """Copy the state; return a function that writes the copy."""
        return functools.partial(self._capture().copied().write, directory)

    def tensors(self) -> Sequence[TensorInfo]:
        """Return the tensors in the last checkpoint."""
        return self._tensors

    def restore(self, checkpoint: Path) -> None:
        """Restore everything but the random generators and the callbacks.

        Raises:
            InvalidCheckpointError: If it does not fit.
        """
        restore_shared(self, checkpoint)

    def check_objects(self, created: Sequence[str]) -> None:
        """Check that the next start of the script can restore the state.

        Args:
            created: The result of `list_objects` when training started.

        Raises:
            InvalidExperimentError: If it cannot.
        """
        objects = self.list_objects()
        if objects != created:
            raise InvalidExperimentError(
                f"training started with {', '.join(created) or 'nothing'}, and the script has "
                f"{', '.join(objects) or 'nothing'} now.\n"
                "A checkpoint could not be restored: the next start of the script has the objects "
                "of before when it restores them.\n"
                "Create all optimizers and schedulers before training, and change the parameter "
                "groups of an optimizer instead of the optimizer."
            )

    def list_objects(self) -> list[str]:
        """Return the classes of all optimizers, schedulers and scalers."""
        objects = (*self.optimizers, *self.schedulers, *self.scalers)
        return [type(each).__name__ for each in objects]

    def _list_applied(self) -> set[int]:
        """Return the ids of the parameters that an optimizer trains."""
        groups = [group for each in self.optimizers for group in each.param_groups]
        return {id(parameter) for group in groups for parameter in group["params"]}

    def _capture(self) -> StateFiles:
        files = StateFiles()
        if self.rank == 0:
            capture_shared(self, files)
            if self.extra is not None:
                self.extra(files)
        capture_worker(
            files,
            models=self.models,
            callbacks=self.callbacks,
            batches=0,
            applied=self._list_applied() if self.has_updated else (),
        )
        self._tensors = files.infos()
        return files


def restore_callbacks(clock: AskedClock, checkpoint: Path, callbacks: StatefulCallbacks) -> None:
    """Give this worker's callbacks their states.

    With another number of workers than in the checkpoint, they get those of the chief.
    """
    WorkerState(clock.own_folder(checkpoint) or checkpoint).restore_callbacks(callbacks)


def generators_in(
    clock: AskedClock, checkpoint: Path, models: Sequence[Any] = ()
) -> Callable[[], None]:
    """Read this worker's generators, gradients and metrics; return a function that restores them.

    With another number of workers than in the checkpoint, it leaves them as they are.

    Args:
        clock: The clock.
        checkpoint: The checkpoint.
        models: The models.
    """
    own = clock.own_folder(checkpoint)
    if own is None:
        return _nothing
    state = WorkerState(own)

    def restore() -> None:
        state.restore_metrics(models)
        state.restore_gradients(models)
        state.restore_generators()

    return restore


def _nothing() -> None:
    """Leave the generators as they are."""


def captured_generators() -> Callable[[], None]:
    """Return a function that sets the random generators to their present states."""
    state, tensors = capture_generators()
    return functools.partial(restore_generators, state, tensors)
