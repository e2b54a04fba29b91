"""Run one trial in a worker process, from its first call to its outcome."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.checkpoint.restore_audit import check_restored, read_audit
from detcore.contract.controllers import (
    LoopingController,
    PrepareOptions,
    SteppingController,
    SupportsCommit,
    SupportsFinish,
    SupportsStartFrom,
    SupportsStateTensors,
)
from detcore.contract.errors import CheckpointNotFoundError, InvalidExperimentError
from detcore.contract.trial import TRIAL_FILE, TrialContext, TrialSetup
from detcore.trial.clock import ScheduledClock, ScheduledPollingClock
from detcore.trial.code_copy import list_code
from detcore.trial.entrypoint import find_framework, import_object
from detcore.trial.trial_loading import read_trial_file
from detcore.trial.trial_saving import TrialSaver, build_trial_record, read_clock

if TYPE_CHECKING:
    from detcore.contract.controllers import Clock, PollingClock
    from detcore.contract.trial import Trial
    from detcore.contract.values import Framework, TrialInfo
    from detcore.core import Context
    from detcore.data import LedgerWriter, StepDigests
    from detcore.distributed import DistributedContext


_logger = logging.getLogger("detcore.trial")

Controller = LoopingController | SteppingController

# Maximum duration of a call of `train`: interrupts are checked between two calls.
_MAX_CALL_S = 0.5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a trial in this process.

    Attributes:
        reason: "completed", "stop requested" or "preempted".
        steps_completed: Batches completed in all starts of the trial.
    """

    reason: str
    steps_completed: int

    @property
    def is_preempted(self) -> bool:
        """Whether the trial should be resumed later."""
        return self.reason == "preempted"


def run_trial(core: Context, trial_class: type[Trial]) -> Outcome:
    """Train a trial until its search method has no more work for it, or it is interrupted.

    Args:
        core: An open context with the trial's identity (``core.info``).
        trial_class: The user's class.

    Returns:
        Why training ended.

    Raises:
        InvalidHP: If the user's code rejects the hyperparameters.
        DetcoreError: If the trial violates a rule of its API.
    """
    framework = find_framework(trial_class, core.plugins.frameworks())
    with open_trial(core, framework) as opened:
        return opened.train(trial_class(opened.context))


class OpenTrial:
    """A trial whose process is prepared and whose context exists. Created by `open_trial`.

    Attributes:
        context: Context for the trial's code, of the framework's context class.
    """

    def __init__(
        self,
        core: Context,
        framework: Framework,
        context: TrialContext,
    ) -> None:
        self._core = core
        self._framework = framework
        self.context = context

    def train(self, trial: Trial, *, code_files: Sequence[str] | None = None) -> Outcome:
        """Train until the search method has no more work for the trial, or it is interrupted.

        Args:
            trial: An instance of the framework's trial class.
            code_files: Files to copy into each checkpoint, relative to the code directory. Default:
                all source and settings files in it.

        Returns:
            Why training ended.

        Raises:
            DetcoreError: If the trial violates a rule of its API.
        """
        core, framework = self._core, self._framework
        assert core.info is not None  # checked by open_trial
        controller: Controller = import_object(framework.controller)(trial, self.context)
        core.checkpoint.versions.update(_collect_versions(core, framework))
        record = build_trial_record(
            core.info, framework.name, _find_entrypoint(core.info, type(trial))
        )
        listener: object = controller
        if isinstance(listener, SupportsCommit):
            core.checkpoint.on_commit = listener.on_commit
        try:
            return self._run_controller(
                controller, _make_saver(core, core.info, record, code_files)
            )
        except BaseException as error:
            # An asynchronous save may still need the controller.
            core.finish_saving(error)
            raise
        finally:
            core.checkpoint.on_commit = None
            controller.close()

    def _run_controller(self, controller: Controller, saver: TrialSaver) -> Outcome:
        """Restore the controller, create the clock, and train to the end."""
        core, context, framework = self._core, self.context, self._framework
        batches_per_epoch = controller.batches_per_epoch()
        state, digests = _restore_controller(core, controller, context, framework)
        if context.digests is not None:
            stateful_object: object = controller
            context.digests.watch(
                stateful_object.state_tensors
                if isinstance(stateful_object, SupportsStateTensors)
                else None,
                digests,
            )
        clock = ScheduledClock(
            core, context, saver, state=state, batches_per_epoch=batches_per_epoch
        )
        _announce_start(core, clock)
        if framework.inexact_resume:
            core.channel.send(
                "inexact_resume", framework=framework.name, reason=framework.inexact_resume
            )
        if clock.open(controller):
            if isinstance(controller, LoopingController):
                controller.run(clock)
            else:
                drive_stepping(controller, clock)
        elif clock.stopped != "preempted" and isinstance(controller, SupportsFinish):
            controller.finish(clock)
        if clock.stopped is None:
            raise InvalidExperimentError(
                f"training ended at batch {clock.steps_completed}, before the next boundary at "
                f"batch {clock.next_boundary}.\n"
                f"The controller of {framework.name!r} must train until the clock returns STOP."
            )
        return Outcome(reason=clock.stopped, steps_completed=clock.steps_completed)


@contextlib.contextmanager
def open_trial(
    core: Context,
    framework: Framework,
    *,
    context: TrialContext | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[OpenTrial]:
    """Prepare this process for a trial and create its context, before the trial object exists.

    Seeds every random generator, so the objects that the block creates are the same in every
    process.

    Args:
        core: An open context with the trial's identity (``core.info``).
        framework: The framework that trains it.
        context: A context that was created before the trial was known, after `prepare_process`. It
            is assigned to the trial here, and keeps hyperparameters that the trial does not have.
            Default: a new context.
        settings: Fields of `TrialSettings` that replace those of the experiment.

    Raises:
        InvalidExperimentError: If the core context belongs to no trial.
    """
    info = core.info
    if info is None:
        raise InvalidExperimentError("a trial needs a core context that belongs to a trial")
    _check_workers(framework, core.distributed.size)
    if context is None:
        prepare_process(framework, info, core.distributed)
    with _open_ledger(core, info) as ledger, contextlib.ExitStack() as stack:
        digests = _open_digests(core)
        if digests is not None:
            stack.enter_context(contextlib.closing(digests))
        setup = _make_setup(core, info, ledger, digests)
        if settings:
            changed = dataclasses.replace(setup.settings, **settings)
            setup = dataclasses.replace(setup, settings=changed)
        if context is None:
            context = import_object(framework.context_class)(setup)
        else:
            hparams = {**context.setup.hparams, **setup.hparams}
            context.setup = dataclasses.replace(setup, hparams=hparams)
            context.distributed = setup.distributed
        yield OpenTrial(core, framework, context)


def prepare_process(
    framework: Framework,
    info: TrialInfo,
    distributed: DistributedContext,
) -> None:
    """Seed every random generator, and call the framework plugin's preparation of a worker.

    Args:
        framework: The framework that trains.
        info: The trial, whose seed is the same on all workers.
        distributed: This worker's rank and its peers.

    Raises:
        InvalidExperimentError: If there are several workers and the framework supports only one.
    """
    import numpy as np

    random.seed(info.trial_seed)
    np.random.seed(info.trial_seed)
    if framework.prepare_worker is not None:
        import_object(framework.prepare_worker)(
            PrepareOptions(
                seed=info.trial_seed,
                deterministic_ops=info.settings.deterministic_ops,
                rank=distributed.rank,
                world_size=distributed.size,
                local_rank=distributed.local_rank,
                local_world_size=distributed.local_size,
            )
        )


def _check_workers(framework: Framework, size: int) -> None:
    if size > 1 and not framework.several_workers:
        raise InvalidExperimentError(
            f"the trial has {size} workers (resources.slots_per_trial), but the framework "
            f"{framework.name!r} supports only one worker per trial.\n"
            f"The workers would train {size} independent models.\n"
            "Set resources.slots_per_trial: 1."
        )


@contextlib.contextmanager
def _open_ledger(core: Context, info: TrialInfo) -> Iterator[LedgerWriter | None]:
    if not info.settings.data_ledger:
        yield None
        return
    from detcore.data import LedgerWriter

    rank, world_size = core.distributed.rank, core.distributed.size
    name = f"ledger-{info.run_id}" if world_size == 1 else f"ledger-{info.run_id}-{rank}"
    with contextlib.closing(
        LedgerWriter(
            Path(info.trial_dir) / f"{name}.bin",
            run_id=info.run_id,
            start_step=info.steps_completed,
            rank=rank,
            world_size=world_size,
        )
    ) as ledger:
        yield ledger


def _open_digests(core: Context) -> StepDigests | None:
    """Return the digests of the steps of a trial or script; None if they are off."""
    # The clock or the script digests the metrics of each step: reports may cover fewer steps after
    # a resume.
    digests = core.train.open_digests(with_reports=False)
    if digests is not None:
        digests.describe(plugins=core.plugins.versions())
    return digests


def _make_setup(
    core: Context,
    info: TrialInfo,
    ledger: LedgerWriter | None = None,
    digests: StepDigests | None = None,
) -> TrialSetup:
    return TrialSetup(
        config=info.config,
        settings=info.settings,
        hparams=info.hparams,
        seed=info.trial_seed,
        distributed=core.distributed,
        info=info,
        tensorboard_path=Path(core.train.get_tensorboard_path()),
        cache_dir=core.environment.home / "cache",
        ledger=ledger,
        digests=digests,
        steps_completed=info.steps_completed,
        test_mode=info.test_mode,
    )


def open_clock(
    core: Context,
    *,
    framework: str,
    checkpoint: Path | None,
    steps_per_epoch: int | None,
    code_files: Sequence[str] | None = None,
) -> PollingClock:
    """Create the clock of a script whose framework controls its loop and its validation.

    Args:
        core: The script's open context.
        framework: Name of the framework, recorded in the checkpoints.
        checkpoint: The directory that `restore_latest_checkpoint` provides.
        steps_per_epoch: Steps in one pass over the training data; None if unknown.
        code_files: Files to copy into each checkpoint, as for `OpenTrial.train`.

    Raises:
        InvalidCheckpointError: If the checkpoint was written without a clock.
        ScheduleError: If a length cannot be converted to steps; the message names the setting.
    """
    info = core.info
    assert info is not None  # an open context has a trial
    context = TrialContext(_make_setup(core, info, digests=_open_digests(core)))
    context.get_hparams()  # the script reads them elsewhere, so none is reported as unread
    state, saved_parts = {}, None
    if checkpoint is not None:
        state = read_clock(checkpoint, str(info.latest_checkpoint))
        saved_parts = read_audit(context.worker_directory(checkpoint))
    record = {"version": 1, "framework": framework, "trial_id": info.trial_id}
    saver = _make_saver(core, info, record, code_files)
    clock = ScheduledPollingClock(
        core,
        context,
        saver,
        state=state,
        batches_per_epoch=steps_per_epoch,
        saved_parts=saved_parts,
    )
    _announce_start(core, clock)
    return clock


def _announce_start(core: Context, clock: ScheduledPollingClock) -> None:
    core.channel.send(
        "started",
        length=clock.operation_length,
        batches_per_epoch=clock.batches_per_epoch,
        steps_completed=clock.steps_completed,
    )


def _make_saver(
    core: Context,
    info: TrialInfo,
    record: Mapping[str, object],
    code_files: Sequence[str] | None,
) -> TrialSaver:
    # The runner's copy contains no secrets. Workers on other machines do not have it.
    is_copied = code_files is None and info.code_dir is not None and Path(info.code_dir).is_dir()
    code_dir = Path(info.code_dir if is_copied and info.code_dir else info.model_dir)
    return TrialSaver(
        core=core,
        record=record,
        code_dir=code_dir,
        code_files=list_code(code_dir) if code_files is None else code_files,
        config=None if is_copied else info.config,
        is_async=info.settings.checkpoint_async,
    )


def _restore_controller(
    core: Context, controller: Controller, context: TrialContext, framework: Framework
) -> tuple[dict[str, Any], dict[str, int] | None]:
    """Restore the latest checkpoint into the controller.

    Without a checkpoint, start from another trial's checkpoint if the configuration names one.

    Returns:
        The clock's saved state, and the result of `check_restored`.
    """
    with restore_latest_checkpoint(core) as path:
        if path is not None and core.info is not None:
            state = read_clock(path, str(core.info.latest_checkpoint))
            controller.restore(path)
            digests = None
            if not framework.inexact_resume:
                digests = check_restored(
                    controller,
                    read_audit(context.worker_directory(path)),
                    reaction=core.info.settings.inexact_resume,
                )
            return state, digests
    _start_from_source(core, controller, framework)
    return {}, None


@contextlib.contextmanager
def restore_latest_checkpoint(core: Context) -> Iterator[Path | None]:
    """Provide the directory of the checkpoint from which a trial resumes; None at its first start.

    If the checkpoint is damaged, the trial's next start resumes from the previous checkpoint.

    Args:
        core: The trial's open context. All workers must enter the block.

    Raises:
        CheckpointNotFoundError: If the checkpoint was deleted.
        CheckpointCorruptError: If a file is missing or has changed.
    """
    uuid = None if core.info is None else core.info.latest_checkpoint
    if uuid is None:
        yield None
        return
    with core.checkpoint.restore_path(uuid) as path:
        yield Path(path)


def _start_from_source(core: Context, controller: object, framework: Framework) -> None:
    """Pass the controller another trial's checkpoint, if the configuration names one."""
    info = core.info
    if info is None or info.source_checkpoint is None:
        return
    if not isinstance(controller, SupportsStartFrom):
        raise InvalidExperimentError(
            f"the trial should start from checkpoint {info.source_checkpoint} "
            "(searcher.source_checkpoint_uuid or source_trial_id), but trials of the framework "
            f"{framework.name!r} cannot start from another trial's checkpoint.\n"
            f"The controller of {framework.name!r} has no method start_from.\n"
            "Remove the setting from the experiment file."
        )
    with _open_source_directory(core, info, info.source_checkpoint) as folder:
        if (folder / TRIAL_FILE).exists():
            read_trial_file(folder, framework.name)  # raises an error for another framework
        controller.start_from(folder)
    _logger.info(
        "training starts at batch 0 with the variables of checkpoint %s", info.source_checkpoint
    )


@contextlib.contextmanager
def _open_source_directory(core: Context, info: TrialInfo, source: str) -> Iterator[Path]:
    if Path(source).is_absolute():
        if not Path(source).is_dir():
            raise CheckpointNotFoundError(
                f"the trial starts from the directory {source}, which does not exist.\n"
                "Restore it: the trial needs it until its first checkpoint."
            )
        yield Path(source)
        return
    if info.source_storage is None:
        with core.checkpoint.restore_path(source) as folder:
            yield folder
        return
    from detcore.storage import open_storage

    home = core.environment.home
    with (
        contextlib.closing(
            open_storage(info.source_storage, home=home, plugins=core.plugins)
        ) as storage,
        core.checkpoint.restore_path(source, storage=storage) as folder,
    ):
        yield folder


def _collect_versions(core: Context, framework: Framework) -> dict[str, str]:
    """Return the known versions of a framework and its plugin."""
    plugin = core.plugins.find_framework_provider(framework.name)
    versions = {plugin.distribution: plugin.version}
    for name in (*framework.requires, *framework.related):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            versions[name] = str(version)
    return versions


def _find_entrypoint(info: TrialInfo, trial_class: type[Trial]) -> str:
    """Return the import path of a trial class."""
    name = f"{trial_class.__module__}:{trial_class.__qualname__}"
    if trial_class.__module__ == "__main__":
        from detcore.core import script_file

        script, folder = script_file(), Path(info.model_dir)
        if script is not None:
            file = script.relative_to(folder) if script.is_relative_to(folder) else script.name
            return f"{file}:{trial_class.__qualname__}"
    entrypoint = info.settings.entrypoint
    if isinstance(entrypoint, str) and entrypoint.endswith(f".py:{trial_class.__qualname__}"):
        return entrypoint  # the module name does not identify the file
    return name


def drive_stepping(controller: SteppingController, clock: Clock) -> None:
    """Train until the clock ends the training.

    The batches up to each boundary are trained in calls of about half a second. Their metrics are
    averaged, weighted by the number of batches.

    Args:
        controller: The trial's controller.
        clock: Gives the boundaries, and does the work that is due there.
    """
    pace = 1
    is_training = True
    while is_training:
        num_done, sums = 0, dict[str, float]()
        num_batches = clock.next_boundary - clock.steps_completed
        while num_done < num_batches and not (num_done and clock.interrupt_requested):
            count = min(pace, num_batches - num_done)
            started_at = time.monotonic()
            metrics = controller.train(count)
            pace = _next_pace(count, clock.slowest(time.monotonic() - started_at))
            _add_metrics(sums, metrics, count)
            num_done += count
        means = {name: total / num_done for name, total in sums.items()}
        is_training = clock.boundary(clock.steps_completed + num_done, means)


def _next_pace(count: int, seconds: float) -> int:
    """Return the number of batches for the next call, at most twice the present number."""
    return max(1, min(2 * count, int(count * _MAX_CALL_S / max(seconds, 1e-6))))


def _add_metrics(sums: dict[str, float], metrics: Mapping[str, float], count: int) -> None:
    for name, value in metrics.items():
        sums[name] = sums.get(name, 0.0) + float(value) * count
