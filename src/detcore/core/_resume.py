"""Resumes the experiment of a script by itself that was killed or paused, or that failed."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from detcore.types import ExperimentState

if TYPE_CHECKING:
    from detcore.core._script import ScriptExperiment
    from detcore.database import Database, ExperimentRecord, TrialRecord

__all__ = ["claim_interrupted"]

_INVALID_HP = "INVALID_HP"
_POLL_S = 0.05
# Settling takes a moment; if the storage is slow, a message names the process that is waited for.
_PATIENCE_S = 2.0


def claim_interrupted(
    database: Database,
    script: ScriptExperiment,
    *,
    storage_url: str,
    settle: Callable[[int], None],
) -> TrialRecord | None:
    """Take over the newest experiment of the same script with the same settings.

    The same are: name, folder, configuration (with the storage), hyperparameters and seed. The
    length may differ, so that an interrupted script can be trained longer. Experiments that are
    running are skipped. Processes that start at the same time take different experiments.

    Args:
        database: The records; experiments of killed scripts are settled, or being settled.
        script: The experiment to record, with its name, folder and whole configuration.
        storage_url: Where its checkpoints are. Earlier releases recorded it where the script
            itself named no storage.
        settle: Settles the experiment of a killed script, unless another process holds it.

    Returns:
        Its trial; None where a new one begins: no such experiment exists, or the newest is
        complete, canceled, or had hyperparameters that the script rejected.
    """
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
            settle(experiment.id)
            experiment = database.get_experiment(experiment.id)
        if experiment.state is ExperimentState.RUNNING:
            continue
        is_rejected = (experiment.error or "").startswith(_INVALID_HP)
        if experiment.state not in (ExperimentState.PAUSED, ExperimentState.ERROR) or is_rejected:
            return None
        if database.claim_experiment(experiment.id):
            return trial
    return None


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
