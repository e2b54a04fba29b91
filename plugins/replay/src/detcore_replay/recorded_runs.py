"""The runs that are compared: a trial, or the part of one up to a checkpoint."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.errors import NotFoundError
from detcore.plugins.delivery import read_run
from detcore.types import TrialInfo, TrialSettings
from detcore_replay.digest_file import DigestedRun, read_digests

if TYPE_CHECKING:
    from detcore.records import CheckpointRecord, Database, ExperimentRecord, TrialRecord


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A trial, as it was trained.

    Attributes:
        label: Such as ``trial 3``.
        info: The newest start of its worker.
        digests: Digests of its steps; None if it stored none.
        checkpoints: Its whole checkpoints, oldest first.
        last_step: The step that the comparison ends at: the last one, or the checkpoint's.
        framework: Name of the framework that trained it; None if not known.
    """

    label: str
    info: TrialInfo
    digests: DigestedRun | None
    checkpoints: tuple[CheckpointRecord, ...]
    last_step: int
    framework: str | None

    def checkpoint_before(self, step: int) -> CheckpointRecord | None:
        """Return the newest checkpoint of a step or an earlier one; None: the run's beginning."""
        known = [each for each in self.checkpoints if each.steps_completed <= step]
        return max(known, key=lambda each: each.steps_completed) if known else None


def find_run(database: Database, name: str) -> Run:
    """Find a trial by its id, or by the UUID of one of its checkpoints.

    Raises:
        NotFoundError: If there is neither.
        RunError: If it left no files, or a script trained it.
    """
    checkpoint = None if name.isdigit() else database.get_checkpoint(name)
    trial = database.get_trial(checkpoint.trial_id if checkpoint else int(name))
    info = _read_info(trial, database.get_experiment(trial.experiment_id))
    checkpoints = tuple(
        sorted(
            database.list_checkpoints(trial_id=trial.id, states=["COMPLETED"]),
            key=lambda each: each.steps_completed,
        )
    )
    digests = read_digests(Path(info.trial_dir))
    return Run(
        label=f"checkpoint {name[:8]}" if checkpoint else f"trial {trial.id}",
        info=info,
        digests=digests,
        checkpoints=checkpoints,
        last_step=checkpoint.steps_completed if checkpoint else _last_step(checkpoints, digests),
        framework=next((str(c.metadata.get("framework")) for c in checkpoints), None),
    )


def _last_step(checkpoints: tuple[CheckpointRecord, ...], digests: DigestedRun | None) -> int:
    steps = [each.steps_completed for each in checkpoints]
    if digests is not None:
        steps += [max(digests.steps, default=0), max(digests.states, default=0)]
    return max(steps, default=0)


def _read_info(trial: TrialRecord, experiment: ExperimentRecord) -> TrialInfo:
    if trial.trial_dir is None or not Path(trial.trial_dir).is_dir():
        raise NotFoundError(
            f"trial {trial.id} has no folder here: {trial.trial_dir or 'it was never started'}.\n"
            "Digests, code and settings of a run are kept in the home of the machine that ran it.\n"
            "Run the command there, or copy that DETCORE_HOME."
        )
    if experiment.config.get("is_standalone"):  # no runner wrote a file about its start
        return TrialInfo(
            experiment_id=experiment.id,
            trial_id=trial.id,
            run_id=trial.run_id,
            trial_seed=trial.seed,
            hparams=trial.hparams,
            config=experiment.config,
            model_dir=experiment.model_dir,
            trial_dir=trial.trial_dir,
            settings=TrialSettings(entrypoint=f"python3 {experiment.name}"),
        )
    return read_run(Path(trial.trial_dir), trial.run_id)
