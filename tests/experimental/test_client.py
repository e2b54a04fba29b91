"""Test `Determined`: which records it opens, its imports, and its documented members."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from client_store import ClientStore
from fake_distributions import run_python
from http_face import make_token, served

import detcore
from detcore import client
from detcore.client import (
    Checkpoint,
    Determined,
    ExperimentReference,
    Model,
    ModelOrderBy,
    ModelSortBy,
    TrialReference,
)
from detcore.client.http.http_transport import HttpTransport
from detcore.environment import read_environment
from detcore.errors import NotFoundError, UnauthenticatedError

# -- records ---------------------------------------------------------------------------------------


def test_experimental_names_are_client_names() -> None:
    assert detcore.Client is Determined
    assert client.Determined is Determined


def test_client_opens_nothing_when_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETCORE_HOME", str(tmp_path / "home"))
    with Determined(None, "determined"):
        pass
    assert not (tmp_path / "home").exists()


def test_client_can_be_used_after_close(store: ClientStore) -> None:
    client = Determined()
    model = client.create_model("digits")
    client.close()
    client.close()
    model.add_metadata({"a": 1})
    assert client.get_model("digits").metadata == {"a": 1}
    client.close()


def address_of(client: Determined) -> str:
    assert isinstance(client._transport, HttpTransport)
    return client._transport._session.url


@pytest.mark.parametrize("name", ["DETCORE_MASTER", "DET_MASTER", "DET_MASTER_ADDR"])
def test_client_uses_master_of_environment(
    store: ClientStore, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "master")
    assert address_of(Determined()) == "http://master:8080"
    assert address_of(Determined("other:1")) == "http://other:1"
    monkeypatch.setenv("DET_MASTER_PORT", "8090")
    assert address_of(Determined()) == "http://master:8090"
    monkeypatch.setenv(name, "https://master")
    assert address_of(Determined()) == "https://master"


def test_objects_accept_documented_arguments(store: ClientStore) -> None:
    experiment = ExperimentReference(store.experiment(seed=3), "")
    assert experiment.get_config()["seed"] == 3
    assert (experiment.id, experiment.experiment_id) == (1, 1)
    trial = TrialReference(store.trial(1, rate=0.5), "")
    assert (trial.trial_id, trial.experiment_id) == (1, 1)
    assert (trial.hparams, trial.state) == ({"rate": 0.5}, "PAUSED")
    for reference in (experiment, trial):
        reference._transport.close()


def test_manually_created_objects_use_master(
    store: ClientStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = store.one_checkpoint()
    environment = read_environment()
    monkeypatch.setenv("DETCORE_TOKEN", make_token(environment.database_url))
    monkeypatch.setenv("DETCORE_HOME", str(tmp_path / "elsewhere"))
    with served(environment) as url:
        for master in (url, ""):
            if not master:
                monkeypatch.setenv("DET_MASTER", url)
            assert ExperimentReference(1, master).top_checkpoint().uuid == uuid
            assert TrialReference(1, master).select_checkpoint(latest=True).uuid == uuid
            checkpoint = Checkpoint(uuid, {}, 1, 1, {}, 10, "", None, {}, {}, master=master)
            folder = checkpoint.download(f"copy{len(master)}")
            assert (Path(folder) / "weights.txt").read_text() == "1 2 3"
            with pytest.raises(NotFoundError, match="no model 'm'"):
                Model("m", master=master).set_description("x")


def test_missing_credentials_show_login_command(store: ClientStore) -> None:
    client = Determined("http://localhost:1", "ada")
    with pytest.raises(UnauthenticatedError, match="detcore user login"):
        client.get_models()


def test_precedence_of_master_variables() -> None:
    home = {"DETCORE_HOME": "/h"}
    assert read_environment(home).master is None
    assert read_environment(home | {"DET_MASTER": "", "DET_MASTER_ADDR": "a"}).master == "a"
    both = {"DET_MASTER": "d", "DET_MASTER_ADDR": "a"}
    assert read_environment(home | both).master == "d"
    assert read_environment(home | both | {"DETCORE_MASTER": "m"}).master == "m"


def test_another_database(
    store: ClientStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Determined() as client:
        client.create_model("here")
    monkeypatch.setenv("DETCORE_DB", f"sqlite:///{tmp_path / 'other.db'}")
    with Determined() as client:
        assert client.get_models() == []


# -- imports ---------------------------------------------------------------------------------------

LIGHT = """
import sys
import detcore.client
from detcore.client import (
    Checkpoint, Determined, ExperimentReference, Model, ModelOrderBy, ModelSortBy, TrialReference)
from detcore import Client
Client()
Client("host:8080", "ada")
TrialReference(3, "")
print([name for name in sys.modules if name.partition(".")[0] in
       ("numpy", "sqlalchemy", "pydantic", "pluggy", "fsspec", "urllib3", "fastapi")
       or name == "detcore.records"])
"""


def test_client_import_is_light(tmp_path: Path) -> None:
    result = run_python("-W", "error", "-c", LIGHT, variables={"DETCORE_HOME": str(tmp_path)})
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


# -- members ---------------------------------------------------------------------------------------

NONE = inspect.Parameter.empty
CHECKPOINT_FIELDS = (
    *("uuid", "experiment_config", "experiment_id", "trial_id", "hparams", "batch_number"),
    *("start_time", "end_time", "resources", "validation"),
    *("determined_version", "framework", "format", "model_version", "model_name"),
    *("metadata", "master"),
)
BEST = {"sort_by": None, "smaller_is_better": None}
DOCUMENTED: dict[Any, dict[str, Any]] = {
    Determined: {"master": None, "user": None, "password": None},
    Determined.get_experiment: {"experiment_id": NONE},
    Determined.get_trial: {"trial_id": NONE},
    Determined.get_checkpoint: {"uuid": NONE},
    Determined.create_model: {"name": NONE, "description": "", "metadata": None},
    Determined.get_model: {"name": NONE},
    Determined.get_models: {
        "sort_by": ModelSortBy.NAME,
        "order_by": ModelOrderBy.ASCENDING,
        "name": "",
        "description": "",
    },
    Model: {
        "name": NONE,
        "description": "",
        "creation_time": None,
        "last_updated_time": None,
        "metadata": None,
        "master": "",
    },
    Model.get_version: {"version": 0},
    Model.get_versions: {"order_by": ModelOrderBy.DESCENDING},
    Model.register_version: {"checkpoint_uuid": NONE},
    Model.add_metadata: {"metadata": NONE},
    Model.remove_metadata: {"keys": NONE},
    ExperimentReference: {"experiment_id": NONE, "master": None},
    ExperimentReference.top_checkpoint: BEST,
    ExperimentReference.top_n_checkpoints: {"limit": NONE, **BEST},
    TrialReference: {"trial_id": NONE, "master": None},
    TrialReference.top_checkpoint: BEST,
    TrialReference.select_checkpoint: {"latest": False, "best": False, "uuid": None, **BEST},
    Checkpoint: {
        **dict.fromkeys(CHECKPOINT_FIELDS[:10], NONE),
        **dict.fromkeys(CHECKPOINT_FIELDS[10:]),
    },
    Checkpoint.download: {"path": None},
    Checkpoint.load: {"path": None, "tags": None, "kwargs": NONE},
    Checkpoint.add_metadata: {"metadata": NONE},
    Checkpoint.remove_metadata: {"keys": NONE},
    Checkpoint.load_from_path: {"path": NONE, "tags": None, "kwargs": NONE},
}


@pytest.mark.parametrize("callable_", DOCUMENTED, ids=lambda found: found.__qualname__)
def test_client_accepts_documented_arguments(callable_: Any) -> None:
    parameters = inspect.signature(callable_).parameters
    defaults = {name: value.default for name, value in parameters.items() if name != "self"}
    documented = DOCUMENTED[callable_]
    assert list(defaults.items())[: len(documented)] == list(documented.items())
    # Additional parameters must be optional.
    assert all(defaults[name] is not NONE for name in list(defaults)[len(documented) :])
