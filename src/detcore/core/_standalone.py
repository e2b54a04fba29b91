"""Records of a script that runs by itself, without a runner."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.core._script import script_file
from detcore.errors import DetcoreError
from detcore.types import ExperimentState, TrialInfo

if TYPE_CHECKING:
    from detcore.core._script import ScriptExperiment
    from detcore.database import CheckpointRecord, Database, ExperimentRecord, TrialRecord
    from detcore.environment import Environment
    from detcore.hooks import PluginManager
    from detcore.storage import StorageBackend

__all__ = ["create_records", "settle_dead_scripts"]


def create_records(
    database: Database,
    environment: Environment,
    plugins: PluginManager,
    storage: StorageBackend,
    script: ScriptExperiment,
    *,
    spec: str | Mapping[str, object] | None = None,
    resume: bool = False,
) -> TrialInfo:
    """Record an experiment with one trial, or go on with one that was interrupted.

    Args:
        database: Where to.
        environment: Its `home` holds the trial's folder.
        plugins: What opens the storage of a checkpoint to start from.
        storage: Where the checkpoints will be.
        script: What is recorded of it.
        spec: What opened the storage; None: it is the default of the home.
        resume: Whether to go on with what an earlier process of the same script left.

    Raises:
        RunError: If the configuration names a checkpoint to start from that is not there.
    """
    from detcore.checkpoint import find_source, pin_source
    from detcore.core._resume import claim_interrupted

    source = find_source(
        script.config.get("searcher") or {},
        database=database,
        storage=storage,
        environment=environment,
        plugins=plugins,
    )
    file = script_file()
    name = script.name or (file.name if file is not None else "interactive")
    model_dir = script.model_dir or (file.parent if file is not None else Path.cwd())
    config: dict[str, Any] = {
        **copy.deepcopy(dict(script.config)),
        "name": name,
        "is_standalone": True,
        # Not the URL of the default, which changes when the home is moved.
        "checkpoint_storage": None if spec is None else _plain(spec),
    }
    pin_source(config, source)
    told = dataclasses.replace(script, config=config, name=name, model_dir=model_dir)
    trial = None
    if resume:
        trial = claim_interrupted(
            database,
            told,
            storage_url=storage.url,
            settle=lambda number: _settle_if_killed(database, environment, plugins, number),
        )
    if trial is None:
        trial = _create(database, environment, told)
    latest = _settled(database, environment, storage, trial)
    searcher = config.get("searcher") or {}
    best = None
    if searcher.get("metric"):
        best = database.best_until(
            trial.id,
            searcher["metric"],
            steps_completed=latest.steps_completed if latest else 0,
            smaller_is_better=bool(searcher.get("smaller_is_better", True)),
        )
    return TrialInfo(
        experiment_id=trial.experiment_id,
        trial_id=trial.id,
        run_id=database.start_run(trial.id),
        trial_seed=script.seed,
        hparams=script.hparams,
        config=config,
        model_dir=str(model_dir),
        trial_dir=str(trial.trial_dir),
        database_url=environment.database_url,
        latest_checkpoint=latest.uuid if latest else None,
        steps_completed=latest.steps_completed if latest else 0,
        test_mode=script.test_mode,
        source_checkpoint=source.checkpoint if source else None,
        source_storage=source.storage if source else None,
        best_validation=best,
    )


def _create(database: Database, environment: Environment, script: ScriptExperiment) -> TrialRecord:
    """Record an experiment with one trial, which has a folder of its own."""
    from detcore.database import keep_secrets

    name, config = str(script.name), script.config
    experiment_id = database.create_experiment(
        config=config, config_text=None, model_dir=str(script.model_dir), name=name
    )
    keep_secrets(environment.home, experiment_id, config)
    trial_id = database.create_trial(
        experiment_id=experiment_id, hparams=script.hparams, seed=script.seed
    )
    trial_dir = _folder(environment, experiment_id) / "trials" / str(trial_id)
    database.set_trial_dir(trial_id, str(trial_dir))
    return database.get_trial(trial_id)


def _settled(
    database: Database, environment: Environment, storage: StorageBackend, trial: TrialRecord
) -> CheckpointRecord | None:
    """Settle what earlier processes of a trial left; return the checkpoint it goes on from."""
    from detcore.checkpoint import recover_checkpoints
    from detcore.database import ingest_spools

    Path(str(trial.trial_dir)).mkdir(parents=True, exist_ok=True)
    if trial.current_run is None:
        return None
    ingest_spools(database, environment.home, trial_id=trial.id)
    recover_checkpoints(database, storage, trial.id)
    return database.latest_checkpoint(trial.id)


def settle_dead_scripts(
    database: Database, environment: Environment, plugins: PluginManager
) -> None:
    """Settle what scripts of this machine left that were killed: checkpoints, and their state.

    Other scripts may start at the same time, and take over at once what is settled: what a live one
    works on is not touched.
    """
    for experiment in database.list_experiments(states=[ExperimentState.RUNNING]):
        if not experiment.config.get("is_standalone"):
            continue
        _settle_if_killed(database, environment, plugins, experiment.id)
    # A script that ended while a checkpoint was on its way told how it ended itself.
    active: dict[int, set[str]] = {}
    for record in database.list_checkpoints(states=["ACTIVE"]):
        active.setdefault(record.experiment_id, set()).add(record.uuid)
    for experiment_id, uuids in sorted(active.items()):
        experiment = database.get_experiment(experiment_id)
        is_over = experiment.state is not ExperimentState.RUNNING
        is_script = experiment.config.get("is_standalone")
        if is_script and is_over and database.experiment_is_alive(experiment_id) is False:
            _try_settle(database, environment, plugins, experiment, uuids=uuids)


def _settle_if_killed(
    database: Database, environment: Environment, plugins: PluginManager, experiment_id: int
) -> None:
    """Settle what a script left, if it was killed, and no other process does so just now."""
    experiment, is_alive = database.observe_experiment(experiment_id)
    # None: it runs on another machine, whose next script looks after it.
    if is_alive is not False or experiment.state is not ExperimentState.RUNNING:
        return
    if database.adopt_experiment(experiment_id):  # one of those that start now
        error = "the script ended without saying how (killed, or the machine went down)"
        if not _try_settle(database, environment, plugins, experiment, error=error):
            assert experiment.process is not None  # it was adopted from one
            database.disown_experiment(experiment_id, experiment.process)


def _try_settle(
    database: Database,
    environment: Environment,
    plugins: PluginManager,
    experiment: ExperimentRecord,
    *,
    uuids: Collection[str] | None = None,
    error: str | None = None,
) -> bool:
    """Settle a script's checkpoints, or some, and with an error its state; whether that worked."""
    try:
        _settle(database, environment, plugins, experiment, uuids, error)
    except (DetcoreError, OSError) as failure:
        # A storage that is away today must not keep an unrelated script from starting; the
        # records stay as they are, and the next start looks again.
        logging.getLogger("detcore").warning(
            "what experiment %s left behind could not be settled yet: %s", experiment.id, failure
        )
        return False
    return True


def _settle(
    database: Database,
    environment: Environment,
    plugins: PluginManager,
    experiment: ExperimentRecord,
    uuids: Collection[str] | None,
    error: str | None,
) -> None:
    from detcore.checkpoint import recover_checkpoints
    from detcore.database import restore_secrets
    from detcore.delivery import tell_end_of_killed
    from detcore.storage import open_storage

    restored = restore_secrets(environment.home, experiment.id, experiment.config)
    spec = restored.config.get("checkpoint_storage")
    with contextlib.closing(open_storage(spec, home=environment.home, plugins=plugins)) as storage:
        for trial in database.list_trials(experiment.id):
            recover_checkpoints(database, storage, trial.id, uuids=uuids)
            if error is not None:
                database.set_trial_state(trial.id, ExperimentState.ERROR, error=error)
                if trial.trial_dir is not None:
                    tell_end_of_killed(
                        Path(trial.trial_dir),
                        trial_id=trial.id,
                        run_id=trial.run_id,
                        state=ExperimentState.ERROR.value,
                        error=error,
                    )
    if error is not None:
        database.set_experiment_state(experiment.id, ExperimentState.ERROR, error=error)


def _plain(spec: str | Mapping[str, object]) -> str | dict[str, object]:
    """Return a specification as JSON values; pydantic's secrets hide theirs."""
    if isinstance(spec, str):
        return spec
    return {
        key: value.get_secret_value() if hasattr(value, "get_secret_value") else value
        for key, value in spec.items()
    }


def _folder(environment: Environment, experiment_id: int) -> Path:
    return environment.home / "experiments" / str(experiment_id)
