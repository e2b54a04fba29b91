"""Test that ``detcore experiment delete`` removes records and files together, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from client_store import ClientStore

from detcore.cli.main_command import main
from detcore.errors import NotFoundError, StorageError
from detcore.records import Database
from detcore.storage import LocalStorage
from detcore.types import ExperimentState


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClientStore]:
    monkeypatch.setenv("DETCORE_HOME", str(tmp_path))
    with Database.open(f"sqlite:///{tmp_path / 'detcore.db'}") as database:
        yield ClientStore(tmp_path, database)


@pytest.fixture
def number(store: ClientStore) -> int:
    """Return an experiment with a trial and two checkpoints, next to a second experiment."""
    store.checkpoint(store.trial(store.experiment()), 10)
    number = store.experiment()
    trial = store.trial(number)
    store.checkpoint(trial, 10)
    store.checkpoint(trial, 20)
    return number


def delete(number: int, *options: str) -> Result:
    return CliRunner().invoke(main, ["experiment", "delete", str(number), *options])


def manifests(store: ClientStore) -> int:
    return len(list((store.home / "checkpoints").glob("*/manifest.json")))


def assert_untouched(store: ClientStore, number: int) -> None:
    assert manifests(store) == 3
    records = store.database.list_checkpoints(experiment_id=number)
    assert [record.state for record in records] == ["COMPLETED", "COMPLETED"]


def test_delete_removes_records_and_files(store: ClientStore, number: int) -> None:
    folder = store.home / "experiments" / str(number)
    assert folder.is_dir()
    result = delete(number, "--yes")
    assert result.exit_code == 0, result.output
    assert f"experiment {number} (test): 1 trial, 2 checkpoints with " in result.output
    assert result.output.endswith(f"deleted experiment {number}\n")
    with pytest.raises(NotFoundError):
        store.database.get_experiment(number)
    assert store.database.list_checkpoints(experiment_id=number) == []
    assert not folder.exists()
    assert manifests(store) == 1  # the other experiment's
    assert store.experiment() == number + 1  # the number is not reused


def test_delete_asks_for_confirmation(store: ClientStore, number: int) -> None:
    refused = delete(number)
    assert refused.exit_code == 2
    assert "pass --yes to delete without asking" in refused.output
    listing = delete(number, "--dry-run")
    assert "nothing was deleted (--dry-run)" in listing.output
    assert_untouched(store, number)


def test_running_experiment_is_not_deleted(store: ClientStore) -> None:
    number = store.experiment(state=ExperimentState.RUNNING)  # run by this process
    result = delete(number, "--yes")
    assert result.exit_code == 1
    assert f"experiment {number} is running and cannot be deleted." in result.output
    store.database.get_experiment(number)


def test_registered_checkpoint_prevents_delete(store: ClientStore, number: int) -> None:
    uuid = store.database.list_checkpoints(experiment_id=number)[1].uuid
    store.database.register_version(store.database.create_model("digits").id, uuid)
    result = delete(number, "--yes")
    assert result.exit_code == 1
    assert "are in the model registry: digits version 1." in result.output
    assert_untouched(store, number)


@pytest.mark.parametrize(
    ("state", "is_refused"),
    [
        (ExperimentState.RUNNING, True),
        (ExperimentState.PAUSED, True),
        (ExperimentState.ERROR, True),
        (ExperimentState.COMPLETED, False),
        (ExperimentState.CANCELED, False),
    ],
)
def test_source_of_open_experiment_is_not_deleted(
    store: ClientStore, number: int, state: ExperimentState, is_refused: bool
) -> None:
    uuid = store.database.list_checkpoints(experiment_id=number)[0].uuid
    searcher = {"name": "single", "metric": "loss", "source_checkpoint_uuid": uuid}
    user = store.database.create_experiment(
        config={"searcher": searcher}, config_text=None, model_dir="/code", name="user"
    )
    store.database.set_experiment_state(user, state)
    result = delete(number, "--yes")
    assert result.exit_code == int(is_refused)
    if is_refused:
        assert f"trials of experiment {user} start from a checkpoint" in result.output
        way = "delete" if state is ExperimentState.ERROR else "cancel"
        assert f"first: detcore experiment {way} {user}" in result.output
        assert_untouched(store, number)


def test_unreachable_storage_prevents_delete(store: ClientStore) -> None:
    folder = store.home / "checkpoints"
    number = store.experiment(checkpoint_storage={"type": "shared_fs", "host_path": str(folder)})
    store.checkpoint(store.trial(number), 10)
    away = folder.rename(store.home / "away")
    refused = delete(number, "--yes")
    assert refused.exit_code
    assert f"{folder} does not exist" in refused.output
    away.rename(folder)
    [record] = store.database.list_checkpoints(experiment_id=number)
    assert record.state == "COMPLETED"
    assert delete(number, "--yes").exit_code == 0


def test_interrupted_deletion_can_be_repeated(
    store: ClientStore, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_storage: LocalStorage, prefix: str) -> None:
        raise StorageError(f"the storage went away before the files of {prefix} were deleted")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "delete_tree", fail)
        assert delete(number, "--yes").exit_code == 1
    states = [
        checkpoint.state for checkpoint in store.database.list_checkpoints(experiment_id=number)
    ]
    assert states == ["DELETING", "DELETING"]
    assert delete(number, "--yes").exit_code == 0
    assert manifests(store) == 1
