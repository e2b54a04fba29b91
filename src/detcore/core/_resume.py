"""Settles the experiments of scripts that were killed, and resumes those that were interrupted."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.contract.errors import DetcoreError
from detcore.contract.values import ExperimentState

if TYPE_CHECKING:
    from detcore.core._modes import ScriptExperiment
    from detcore.database import Database, ExperimentRecord, TrialRecord
    from detcore.environment import Environment
    from detcore.hooks import PluginManager

__all__ = ["InterruptedScripts"]

_INVALID_HP = "INVALID_HP"
_POLL_S = 0.05
# Settling takes a moment; if the storage is slow, a message names the process that is waited for.
_PATIENCE_S = 2.0
_KILLED = "the script ended without saying how (killed, or the machine went down)"


class InterruptedScripts:
    """The experiments of scripts by themselves that were killed or paused, or that failed.

    Args:
        database: The records.
        environment: Its `home` holds the trials' folders.
        plugins: Open their storages.
    """

    def __init__(
        self, database: Database, environment: Environment, plugins: PluginManager
    ) -> None:
        self._database = database
        self._environment = environment
        self._plugins = plugins

    def settle(self) -> None:
        """Settle the killed scripts of this machine: their checkpoints, and their state.

        Other scripts may start at the same time and take over settled experiments at once, so those
        that a live process holds are not touched.
        """
        database = self._database
        for experiment in database.list_experiments(states=[ExperimentState.RUNNING]):
            if experiment.config.get("is_standalone"):
                self._settle_if_killed(experiment.id)
        # A script that ended while a checkpoint was being saved has recorded its end itself.
        active: dict[int, set[str]] = {}
        for record in database.list_checkpoints(states=["ACTIVE"]):
            active.setdefault(record.experiment_id, set()).add(record.uuid)
        for experiment_id, uuids in sorted(active.items()):
            experiment = database.get_experiment(experiment_id)
            is_over = experiment.state is not ExperimentState.RUNNING
            is_script = experiment.config.get("is_standalone")
            if is_script and is_over and database.experiment_is_alive(experiment_id) is False:
                self._try_settle(experiment, uuids=uuids)

    def claim(self, script: ScriptExperiment, *, storage_url: str) -> TrialRecord | None:
        """Take over the newest experiment of the same script with the same settings.

        The same are: name, folder, configuration (with the storage), hyperparameters and seed. The
        length may differ, so that an interrupted script can be trained longer. Experiments that are
        running are skipped. Processes that start at the same time take different experiments.

        Args:
            script: The experiment to record, with its name, folder and whole configuration.
            storage_url: Where its checkpoints are. Earlier releases recorded it where the script
                itself named no storage.

        Returns:
            Its trial; None where a new one begins: no such experiment exists, or the newest is
            complete, canceled, or had hyperparameters that the script rejected.
        """
        database = self._database
        wanted = _identity(script, storage_url)
        for experiment in database.list_experiments(
            name=str(script.name), archived=False, newest_first=True
        ):
            if experiment.name != script.name:
                continue
            trial = _only_trial(database, experiment)
            if trial is None or _recorded(experiment, trial, storage_url) != wanted:
                continue
            if experiment.state is ExperimentState.RUNNING:
                _wait_until_settled(database, experiment.id)
                self._settle_if_killed(experiment.id)
                experiment = database.get_experiment(experiment.id)
            state = experiment.state
            if state is ExperimentState.RUNNING:
                continue
            is_rejected = (experiment.error or "").startswith(_INVALID_HP)
            if state not in (ExperimentState.PAUSED, ExperimentState.ERROR) or is_rejected:
                return None
            if database.claim_experiment(experiment.id):
                return trial
        return None

    def _settle_if_killed(self, experiment_id: int) -> None:
        """Settle the experiment of a script that was killed, unless another process does so now."""
        database = self._database
        experiment, is_alive = database.observe_experiment(experiment_id)
        # None: it runs on another machine, and the next script there settles it.
        if is_alive is not False or experiment.state is not ExperimentState.RUNNING:
            return
        # One of those that start now.
        if database.adopt_experiment(experiment_id) and not self._try_settle(
            experiment, error=_KILLED
        ):
            assert experiment.process is not None  # it was adopted from one
            database.disown_experiment(experiment_id, experiment.process)

    def _try_settle(
        self,
        experiment: ExperimentRecord,
        *,
        uuids: Collection[str] | None = None,
        error: str | None = None,
    ) -> bool:
        """Settle checkpoints, or some, and with an error the state; return whether that worked."""
        try:
            self._settle(experiment, uuids, error)
        except (DetcoreError, OSError) as failure:
            # A storage that is away today must not keep an unrelated script from starting; the
            # records stay as they are, and the next start looks again.
            logging.getLogger("detcore").warning(
                "the leftovers of experiment %s could not be settled yet: %s",
                experiment.id, failure,
            )  # fmt: skip
            return False
        return True

    def _settle(
        self, experiment: ExperimentRecord, uuids: Collection[str] | None, error: str | None
    ) -> None:
        from detcore.core._source import recover_trial
        from detcore.database import ingest_spools, restore_secrets
        from detcore.hooks.delivery import tell_end_of_killed
        from detcore.storage import open_storage

        database, home = self._database, self._environment.home
        ingest_spools(database, home, experiment_id=experiment.id)
        restored = restore_secrets(home, experiment.id, experiment.config)
        spec = restored.config.get("checkpoint_storage")
        state = ExperimentState.ERROR
        with contextlib.closing(open_storage(spec, home=home, plugins=self._plugins)) as storage:
            for trial in database.list_trials(experiment.id):
                recover_trial(database, storage, trial, uuids=uuids)
                if error is None:
                    continue
                database.set_trial_state(trial.id, state, error=error)
                if trial.trial_dir is not None:
                    tell_end_of_killed(
                        Path(trial.trial_dir), trial_id=trial.id, run_id=trial.run_id,
                        state=state.value, error=error,
                    )  # fmt: skip
        if error is not None:
            database.set_experiment_state(experiment.id, state, error=error)


def _wait_until_settled(database: Database, experiment_id: int) -> None:
    """Wait while another process of this machine settles the experiment of a killed script.

    That process holds the experiment then, and has no run of its trial. The same is true for a
    moment when a process takes the experiment over.
    """
    tell_at = time.monotonic() + _PATIENCE_S
    while True:
        experiment, is_alive = database.observe_experiment(experiment_id)
        trial = _only_trial(database, experiment)
        run = None if trial is None else trial.current_run
        if not is_alive or run is None or run.process == experiment.process:
            return
        if time.monotonic() >= tell_at and experiment.process is not None:
            tell_at = math.inf
            logging.getLogger("detcore").warning(
                "waiting for process %s, which settles what a killed run of experiment %s left",
                experiment.process.pid, experiment_id,
            )  # fmt: skip
        time.sleep(_POLL_S)


def _only_trial(database: Database, experiment: ExperimentRecord) -> TrialRecord | None:
    """Return the trial of a script; None if a runner ran the experiment, or without a trial."""
    if not experiment.config.get("is_standalone"):
        return None
    trials = database.list_trials(experiment.id)
    return trials[0] if trials and trials[0].trial_dir is not None else None


def _identity(script: ScriptExperiment, storage_url: str) -> list[Any]:
    from detcore.database import hide_secrets

    config, _ = hide_secrets(script.config, None)
    config = _comparable(config, storage_url)
    return _plain([str(script.model_dir), config, script.hparams, script.seed])


def _recorded(experiment: ExperimentRecord, trial: TrialRecord, storage_url: str) -> list[Any]:
    config = _comparable(experiment.config, storage_url)
    return _plain([experiment.model_dir, config, trial.hparams, trial.seed])


def _comparable(config: Mapping[str, Any], storage_url: str) -> dict[str, Any]:
    """Return a configuration without its length, and with one form for the default storage."""
    spec = config.get("checkpoint_storage")
    searcher = dict(config.get("searcher") or {})
    searcher.pop("max_length", None)
    default = None if spec == storage_url else spec
    return {**config, "checkpoint_storage": default, "searcher": searcher}


def _plain(values: list[Any]) -> list[Any]:
    """Return values as a record holds them: lists for tuples, and so on."""
    plain: list[Any] = json.loads(json.dumps(values, default=_plain_value))
    return plain


def _plain_value(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)
