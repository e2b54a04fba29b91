"""Records of a script that runs by itself, without a runner."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.core._script import script_file
from detcore.errors import DetcoreError
from detcore.types import ExperimentState, TrialInfo

if TYPE_CHECKING:
    from detcore.core._script import ScriptExperiment
    from detcore.database import Database
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
) -> TrialInfo:
    """Record an experiment with one trial.

    Args:
        database: Where to.
        environment: Its `home` holds the trial's folder.
        plugins: What opens the storage of a checkpoint to start from.
        storage: Where the checkpoints will be.
        script: What is recorded of it.
        spec: What opened the storage; default: its URL.

    Raises:
        RunError: If the configuration names a checkpoint to start from that is not there.
    """
    from detcore.checkpoint import find_source, pin_source
    from detcore.database import keep_secrets

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
        "checkpoint_storage": storage.url if spec is None else _plain(spec),
    }
    pin_source(config, source)
    experiment_id = database.create_experiment(
        config=config, config_text=None, model_dir=str(model_dir), name=name
    )
    keep_secrets(environment.home, experiment_id, config)
    trial_id = database.create_trial(
        experiment_id=experiment_id, hparams=script.hparams, seed=script.seed
    )
    trial_dir = _folder(environment, experiment_id) / "trials" / str(trial_id)
    trial_dir.mkdir(parents=True, exist_ok=True)
    database.set_trial_dir(trial_id, str(trial_dir))
    run_id = database.start_run(trial_id)
    return TrialInfo(
        experiment_id=experiment_id,
        trial_id=trial_id,
        run_id=run_id,
        trial_seed=script.seed,
        hparams=script.hparams,
        config=config,
        model_dir=str(model_dir),
        trial_dir=str(trial_dir),
        database_url=environment.database_url,
        test_mode=script.test_mode,
        source_checkpoint=source.checkpoint if source else None,
        source_storage=source.storage if source else None,
    )


def settle_dead_scripts(
    database: Database, environment: Environment, plugins: PluginManager
) -> None:
    """Settle what scripts of this machine left that were killed: checkpoints, and their state."""
    for experiment in database.list_experiments(states=[ExperimentState.RUNNING]):
        if not experiment.config.get("is_standalone"):
            continue
        # None: it runs on another machine, whose next script looks after it.
        if database.experiment_is_alive(experiment.id) is False:
            error = "the script ended without saying how (killed, or the machine went down)"
            _try_settle(database, environment, plugins, experiment, error)
    # A script that ended while a checkpoint was on its way told how it ended itself.
    active = {record.experiment_id for record in database.list_checkpoints(states=["ACTIVE"])}
    for experiment_id in sorted(active):
        experiment = database.get_experiment(experiment_id)
        is_over = experiment.state is not ExperimentState.RUNNING
        is_script = experiment.config.get("is_standalone")
        if is_script and is_over and database.experiment_is_alive(experiment_id) is False:
            _try_settle(database, environment, plugins, experiment, None)


def _try_settle(
    database: Database,
    environment: Environment,
    plugins: PluginManager,
    experiment: Any,
    error: str | None,
) -> None:
    try:
        _settle(database, environment, plugins, experiment, error)
    except (DetcoreError, OSError) as error:
        # A storage that is away today must not keep an unrelated script from starting; the
        # records stay as they are, and the next start looks again.
        logging.getLogger("detcore").warning(
            "what experiment %s left behind could not be settled yet: %s", experiment.id, error
        )


def _settle(
    database: Database,
    environment: Environment,
    plugins: PluginManager,
    experiment: Any,
    error: str | None,
) -> None:
    from detcore.checkpoint import recover_checkpoints
    from detcore.database import restore_secrets
    from detcore.storage import open_storage

    restored = restore_secrets(environment.home, experiment.id, experiment.config)
    spec = restored.config.get("checkpoint_storage")
    with contextlib.closing(open_storage(spec, home=environment.home, plugins=plugins)) as storage:
        for trial in database.list_trials(experiment.id):
            recover_checkpoints(database, storage, trial.id)
            if error is not None:
                database.set_trial_state(trial.id, ExperimentState.ERROR, error=error)
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
