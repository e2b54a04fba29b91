"""The compared runs: a trial, or its part up to a checkpoint."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.data import DigestedRun, read_digests
from detcore.errors import NotFoundError
from detcore.plugins.delivery import read_run
from detcore.types import TrialInfo, TrialSettings

if TYPE_CHECKING:
    from detcore.records import CheckpointRecord, Database, ExperimentRecord, TrialRecord


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A trial with the results of its training.

    Attributes:
        label: Name in messages, such as ``trial 3``.
        info: Information about the newest start of its worker.
        digests: Digests of its steps, or None.
        checkpoints: Its complete checkpoints, oldest first.
        last_step: The last step to compare: the trial's last step, or the checkpoint's step.
        framework: Name of its framework; None if unknown.
    """

    label: str
    info: TrialInfo
    digests: DigestedRun | None
    checkpoints: tuple[CheckpointRecord, ...]
    last_step: int
    framework: str | None

    def find_checkpoint_before(self, step: int) -> CheckpointRecord | None:
        """Return the newest checkpoint at a step or earlier; None for the start of the run."""
        candidates = [record for record in self.checkpoints if record.steps_completed <= step]
        return max(candidates, key=lambda record: record.steps_completed, default=None)


def find_run(database: Database, name: str) -> Run:
    """Find a trial by its id, or by the UUID of one of its checkpoints.

    Raises:
        NotFoundError: If neither exists.
        RunError: If the trial left no files, or a script trained it.
    """
    checkpoint = None if name.isdigit() else database.get_checkpoint(name)
    trial = database.get_trial(checkpoint.trial_id if checkpoint else int(name))
    info = _read_info(trial, database.get_experiment(trial.experiment_id))
    checkpoints = tuple(
        sorted(
            database.list_checkpoints(trial_id=trial.id, states=["COMPLETED"]),
            key=lambda record: record.steps_completed,
        )
    )
    digests = read_digests(Path(info.trial_dir))
    return Run(
        label=f"checkpoint {name[:8]}" if checkpoint else f"trial {trial.id}",
        info=info,
        digests=digests,
        checkpoints=checkpoints,
        last_step=checkpoint.steps_completed
        if checkpoint
        else _find_last_step(checkpoints, digests),
        framework=next((str(record.metadata.get("framework")) for record in checkpoints), None),
    )


def _find_last_step(checkpoints: tuple[CheckpointRecord, ...], digests: DigestedRun | None) -> int:
    steps = [checkpoint.steps_completed for checkpoint in checkpoints]
    if digests is not None:
        steps += [max(digests.steps, default=0), max(digests.states, default=0)]
    return max(steps, default=0)


def _read_info(trial: TrialRecord, experiment: ExperimentRecord) -> TrialInfo:
    if trial.trial_dir is None or not Path(trial.trial_dir).is_dir():
        raise NotFoundError(
            f"trial {trial.id} has no directory here: {trial.trial_dir or 'never started'}.\n"
            "Digests, code and settings are in DETCORE_HOME of the machine that ran the trial.\n"
            "Run the command there, or copy that directory."
        )
    if experiment.config.get("is_standalone"):  # a standalone script has no start file
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
