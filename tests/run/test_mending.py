"""Settings of a failed experiment that are changed when it is resumed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from toy_command import MODEL_DIR, Detcore

from detcore.environment import Environment, read_environment
from detcore.errors import ConfigError, RunError
from detcore.plugins import PluginManager
from detcore.records import Database, restore_secrets, save_secrets
from detcore.run.changed_settings import change_settings
from detcore.search import Validated, event_to_json
from detcore.types import ExperimentState

CONFIG = {
    "name": "repaired",
    "entrypoint": "model_def:Line",
    "hyperparameters": {"global_batch_size": 8},
    "searcher": {"name": "single", "metric": "acc", "max_length": {"batches": 40}},
    "checkpoint_storage": {
        "type": "s3",
        "bucket": "bucket",
        "access_key": "a",
        "secret_key": "wrong",
    },
}


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return read_environment({"DETCORE_HOME": str(tmp_path), "DETCORE_PLUGINS": "storage"})


def record(environment: Environment, *, searcher: Mapping[str, object] = {}) -> int:
    """Record an experiment that failed, with one trial."""
    from detcore.config import load_mapping

    config = {**CONFIG, "searcher": {**CONFIG["searcher"], **searcher}}  # type: ignore[dict-item]
    loaded = load_mapping(config, models=PluginManager(environment).settings_models())
    plain = loaded.config.model_dump(mode="json")
    with Database.open(environment.database_url) as database:
        number = database.create_experiment(
            config=plain, config_text=None, model_dir="/code", name="repaired"
        )
        save_secrets(environment.home, number, plain)
        database.create_trial(experiment_id=number, hparams={}, seed=1)
        database.set_experiment_state(number, ExperimentState.ERROR)
    return number


def fix(environment: Environment, number: int, **changes: object) -> list[str]:
    dotted_changes = {name.replace("__", "."): value for name, value in changes.items()}
    with Database.open(environment.database_url) as database:
        return change_settings(
            database.get_experiment(number),
            dotted_changes,
            database=database,
            environment=environment,
            plugins=PluginManager(environment),
        )


def test_harmless_settings_are_changed_and_recorded(environment: Environment) -> None:
    number = record(environment)
    lines = fix(
        environment,
        number,
        searcher__metric="val_loss",
        max_restarts=7,
        searcher__max_length__batches=80,
        checkpoint_storage__secret_key="right",
    )
    assert sorted(lines) == [
        "checkpoint_storage.secret_key: '********' is now '********'",
        "max_restarts: 5 is now 7",
        "searcher.max_length.batches: 40 is now 80",
        "searcher.metric: 'acc' is now 'val_loss'",
    ]
    with Database.open(environment.database_url) as database:
        recorded = database.get_experiment(number).config
        [event] = database.events(1, "config")
    full = restore_secrets(environment.home, number, recorded).config
    assert full["searcher"]["metric"] == "val_loss"
    assert full["max_restarts"] == 7
    assert full["checkpoint_storage"]["secret_key"] == "right"
    assert "right" not in str(recorded)
    assert event.payload["searcher.metric"] == ["acc", "val_loss"]
    assert "right" not in str(event.payload)
    assert fix(environment, number, max_restarts=7) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hyperparameters__global_batch_size": 4}, "the training so far may depend on it"),
        ({"searcher__max_length__batches": 20}, "only be increased"),
        ({"searcher__max_length": {"epochs": 90}}, "in the same unit"),
        ({"checkpoint_storage__bucket": "other"}, "the training so far may depend on it"),
        ({"searcher__smaller_is_better": False}, "the training so far may depend on it"),
    ],
)
def test_settings_that_change_the_past_are_refused(
    environment: Environment, changes: dict[str, object], message: str
) -> None:
    number = record(environment)
    with Database.open(environment.database_url) as database:
        before = database.get_experiment(number)
    with pytest.raises(RunError, match=message) as caught:
        fix(environment, number, **changes)
    name = next(iter(changes)).replace("__", ".")
    assert re.search(f"detcore run CONFIG.yaml /code --set '?{name}=", str(caught.value))
    with Database.open(environment.database_url) as database:
        assert database.get_experiment(number).config == before.config


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"searcher__name": "random"}, "searcher.name=random"),
        ({"checkpoint_storage__type": "shared_fs"}, "checkpoint_storage.type=shared_fs"),
        ({"entrypoint": "python3 a.py"}, "'entrypoint=python3 a.py'"),
        ({"searcher__max_length": "{epochs: 9}"}, "'searcher.max_length={epochs: 9}'"),
        ({"data__deep__token": "sesame"}, "data.deep.token=..."),
    ],
)
def test_suggested_command_works(
    environment: Environment, changes: dict[str, object], flag: str
) -> None:
    number = record(environment)
    with pytest.raises(RunError) as caught:
        fix(environment, number, **changes)
    assert str(caught.value).endswith(f" --set {flag}")


def test_settings_of_reported_search_are_kept(environment: Environment) -> None:
    number = record(environment)
    with Database.open(environment.database_url) as database:
        database.add_search_event(number, number=0, event=None)
        database.add_search_event(number, number=1, event=event_to_json(Validated(0, 40, 0.5)))
    with pytest.raises(RunError, match="trials have already reported it"):
        fix(environment, number, searcher__metric="val_loss")
    with pytest.raises(RunError, match="already been trained to the end"):
        fix(environment, number, searcher__max_length__batches=80)
    with pytest.raises(ConfigError, match="max_restarts"):
        fix(environment, number, max_restarts="many")
    asha = record(environment, searcher={"name": "adaptive_asha", "max_trials": 4})
    with pytest.raises(RunError, match="adaptive_asha derives the lengths"):
        fix(environment, asha, searcher__max_length__batches=80)
    with Database.open(environment.database_url) as database:
        database.set_experiment_state(asha, ExperimentState.COMPLETED)
    with pytest.raises(RunError, match="is complete"):
        fix(environment, asha, max_restarts=9)


def test_resume_corrects_wrong_metric(detcore: Detcore) -> None:
    config = detcore.config(searcher__metric="acc", min_checkpoint_period__batches=5)
    failed = detcore.run_failing("run", config, MODEL_DIR, "--json")
    [trial] = failed.summary["trials"]
    assert trial["latest_checkpoint"] is not None
    refused = detcore.run_failing("run", "--resume", 1, "--set", "hyperparameters.learning_rate=1")
    command = f"--set searcher.source_checkpoint_uuid={trial['latest_checkpoint']}"
    assert command in refused.output
    repaired = detcore.run_checked(
        "run", "--resume", 1, "--json", "--set", "searcher.metric=val_loss",
        "--set", "searcher.max_length.batches=50",
    )  # fmt: skip
    assert "searcher.metric: 'acc' is now 'val_loss'" in repaired.output
    assert repaired.summary["trials"][0]["steps_completed"] == 50
