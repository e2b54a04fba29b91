"""Starting the workers of a trial where it left off."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.checkpoint import CheckpointSource, find_source, recover_checkpoints
from detcore.errors import in_one_line
from detcore.runner._launching import framework_variables
from detcore.runner._running import RunningTrial, TrialOutput
from detcore.types import TrialInfo

if TYPE_CHECKING:
    from detcore.database import CheckpointRecord, Database
    from detcore.environment import Environment
    from detcore.hooks import PluginManager
    from detcore.launch import Launcher
    from detcore.runner._listener import RunListener
    from detcore.runner._slots import Place
    from detcore.runner._tokens import TrialTokens
    from detcore.storage import StorageBackend

__all__ = ["TrialStarter", "experiment_folder", "nothing_left", "trials_folder"]


def experiment_folder(environment: Environment, experiment_id: int) -> Path:
    """Return the folder of an experiment's own files."""
    return environment.home / "experiments" / str(experiment_id)


def trials_folder(environment: Environment, experiment_id: int) -> Path:
    """Return the folder with the folders of an experiment's trials."""
    return experiment_folder(environment, experiment_id) / "trials"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarter:
    """Starts trials of an experiment.

    Attributes:
        experiment_id: Which experiment.
        plain: Its configuration, with secrets.
        model_dir: Folder of the user's code.
        test_mode: Whether trials are smoke runs.
        is_verbose: Whether what frameworks say at every start is displayed, too.
        num_workers: Workers of each trial; >= 1.
        storage: Where the checkpoints are.
        launcher: What starts the workers.
        lock_fd: The experiment's lock, which the workers inherit.
        tokens: Lets the workers report to a server; None: they use the database.
    """

    database: Database
    environment: Environment
    plugins: PluginManager
    listener: RunListener
    experiment_id: int
    plain: Mapping[str, Any]
    model_dir: str
    test_mode: bool
    is_verbose: bool
    num_workers: int
    storage: StorageBackend
    launcher: Launcher
    lock_fd: int
    tokens: TrialTokens | None = None

    def start(self, index: int, trial_id: int, *, length: int | None, place: Place) -> RunningTrial:
        """Start the workers of a trial from its latest checkpoint; a new run of it begins.

        Args:
            index: Its number in the search.
            trial_id: Its record.
            length: How far the search wants it trained first.
            place: Where it runs.

        Raises:
            RunError: If the workers cannot be started.
        """
        info = self._info(trial_id, length)
        frameworks = () if self.is_verbose else self.plugins.frameworks().values()
        notices = [notice for framework in frameworks for notice in framework.notices]
        output = TrialOutput(info, self.listener, notices)
        try:
            workers = self.launcher.start(
                info,
                home=self.environment.home,
                slots=self.num_workers,
                keep_open=(self.lock_fd,),
                on_output=output,
                disabled_plugins=self.plugins.disabled,
                allowed_plugins=self.plugins.allowed,
                variables={
                    **({} if self.is_verbose else framework_variables(self.plugins)),
                    **place.variables,
                    **self._server_variables(trial_id),
                },
            )
        except BaseException:
            output.close()
            raise
        self.listener.trial_started(info, pid=workers.pid)
        if self.num_workers > 1:
            self.listener.notice(
                f"{self.num_workers} workers: processes {', '.join(map(str, workers.pids))}"
            )
        return RunningTrial(index, info, workers, output, place)

    def give_up_checkpoint(self, trial_id: int, uuid: str) -> CheckpointRecord | None:
        """Record that a checkpoint cannot be restored; return the one before, if there is one."""
        self.database.checkpoint_damaged(uuid)
        return self.database.latest_checkpoint(trial_id)

    def find_source(self) -> CheckpointSource | None:
        """Return the checkpoint that new trials start from, or None."""
        return find_source(
            self.plain["searcher"],
            database=self.database,
            storage=self.storage,
            environment=self.environment,
            plugins=self.plugins,
        )

    def _info(self, trial_id: int, length: int | None) -> TrialInfo:
        trial = self.database.get_trial(trial_id)
        # What a killed worker left half written is settled first.
        recover_checkpoints(self.database, self.storage, trial_id)
        latest = self.database.latest_checkpoint(trial_id)
        source = None if latest else self.find_source()
        folder = trials_folder(self.environment, self.experiment_id) / str(trial_id)
        return TrialInfo(
            experiment_id=self.experiment_id,
            trial_id=trial_id,
            run_id=self.database.start_run(trial_id),
            trial_seed=trial.seed,
            hparams=trial.hparams,
            config=self.plain,
            model_dir=self.model_dir,
            trial_dir=str(folder),
            database_url=self.tokens.url if self.tokens else self.environment.database_url,
            latest_checkpoint=latest.uuid if latest else None,
            steps_completed=latest.steps_completed if latest else 0,
            test_mode=self.test_mode,
            source_checkpoint=source.checkpoint if source else None,
            source_storage=source.storage if source else None,
            searcher_length=length,
            validated_metric=self._validated_metric(latest) if latest else None,
            best_validation=self._best_validation(trial_id, latest),
        )

    def _server_variables(self, trial_id: int) -> dict[str, str]:
        """Return what workers need to report to a server; it must not get into files or logs."""
        return self.tokens.variables(trial_id) if self.tokens else {}

    def _best_validation(self, trial_id: int, latest: CheckpointRecord | None) -> float | None:
        """Return the best value that earlier runs of a trial reported until a checkpoint."""
        searcher = self.plain["searcher"]
        return self.database.best_until(
            trial_id,
            searcher["metric"],
            steps_completed=latest.steps_completed if latest else 0,
            smaller_is_better=searcher.get("smaller_is_better", True),
        )

    def _validated_metric(self, checkpoint: CheckpointRecord) -> float | None:
        """Return the searcher's metric of a validation that followed a checkpoint, or None."""
        found = self.database.validation_at(checkpoint.trial_id, checkpoint.steps_completed)
        # An earlier one may be of other weights: of a run that trained to there, saving nothing.
        if found is None or not found.reported_at or found.reported_at < checkpoint.started_at:
            return None
        value = found.metrics.get(self.plain["searcher"]["metric"])
        if not isinstance(value, int | float) or math.isnan(value):
            return None
        return float(value)


def nothing_left(error: str, trial_id: int, uuid: str) -> str:
    """Return what is said of a trial whose only checkpoint is damaged.

    Training again from the start is not what was asked for.
    """
    return in_one_line(
        error.splitlines()[0],
        f"It was the only checkpoint of trial {trial_id}, so there is nothing to go on from. "
        f"If its files can be brought back: detcore checkpoint repair {uuid}; else start the "
        "experiment again.",
    )
