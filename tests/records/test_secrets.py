"""Test that secrets are masked in the records, stored in a private file, and restored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from detcore.errors import StorageError
from detcore.records import restore_secrets, save_secrets

if TYPE_CHECKING:
    from tests.records.conftest import Store

SECRET = "s3cr3t-of-the-test"
CONFIG: dict[str, Any] = {
    "name": "n",
    "checkpoint_storage": {
        "type": "s3", "bucket": "ckpt", "endpoint_url": "http://host:1", "prefix": None,
        "access_key": f"{SECRET}-a", "secret_key": f"{SECRET}-b",
    },
    "environment": {"environment_variables": ["A=1", f"API_TOKEN={SECRET}-c"]},
    "hyperparameters": {"private_key_size": 128, "lr": 0.1},
    "data": {"url": f"sftp://me:{SECRET}-d@host/path"},
}  # fmt: skip
TEXT = f"""name: n
entrypoint: a:b
searcher: {{name: single}}
checkpoint_storage: {{type: s3, bucket: ckpt, access_key: {SECRET}-a, secret_key: {SECRET}-b}}
anchored: &key {SECRET}-b
split: {{token: "a
{SECRET}"}}
data: {{url: "sftp://me:{SECRET}-d@host/path"}}
environment:
  environment_variables: [A=1, API_TOKEN={SECRET}-c]
"""


def test_database_contains_no_secrets(sqlite_store: Store) -> None:
    store = sqlite_store  # the test searches every byte of its file
    number = store.database.create_experiment(
        config=CONFIG, config_text=TEXT, model_dir="/m", name="n"
    )
    record = store.database.get_experiment(number)
    storage = record.config["checkpoint_storage"]
    assert storage["access_key"] == storage["secret_key"] == "********"
    assert storage["endpoint_url"] == "http://host:1"
    assert record.config["hyperparameters"] == CONFIG["hyperparameters"]
    assert record.config_text is not None
    assert "bucket: ckpt" in record.config_text
    store.database.close()
    files = list(store.home.glob("detcore.db*"))
    assert files
    for path in files:
        assert SECRET.encode() not in path.read_bytes(), path


def test_secrets_are_private_and_restored(store: Store) -> None:
    number = store.database.create_experiment(
        config=CONFIG, config_text=TEXT, model_dir="/m", name="n"
    )
    save_secrets(store.home, number, CONFIG)
    restored = restore_secrets(store.home, number, store.database.get_experiment(number).config)
    assert restored.config == CONFIG
    assert restored.missing == ()
    assert restored.path.stat().st_mode & 0o777 == 0o600
    assert restored.path.parent == store.home / "experiments" / str(number)


def test_missing_secrets_are_left_out(store: Store) -> None:
    number = store.database.create_experiment(
        config=CONFIG, config_text=None, model_dir="/m", name="n"
    )
    restored = restore_secrets(store.home, number, store.database.get_experiment(number).config)
    assert restored.missing == ("access_key", "secret_key")
    storage = {k: v for k, v in CONFIG["checkpoint_storage"].items() if k not in restored.missing}
    assert restored.config["checkpoint_storage"] == storage


def test_changed_values_are_not_overwritten(tmp_path: Path) -> None:
    save_secrets(tmp_path, 3, CONFIG)
    edited = {"checkpoint_storage": "/folder", "environment": {"environment_variables": ["A=1"]}}
    assert restore_secrets(tmp_path, 3, edited).config == edited


def test_experiment_without_secrets_has_no_file(tmp_path: Path) -> None:
    save_secrets(tmp_path, 3, CONFIG)
    path = restore_secrets(tmp_path, 3, {}).path
    assert path.exists()
    save_secrets(tmp_path, 3, {"checkpoint_storage": {"type": "s3", "bucket": "b"}})
    assert not path.exists()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"secrets": [1]}'])
def test_damaged_secrets_file_is_reported(tmp_path: Path, content: str) -> None:
    save_secrets(tmp_path, 3, CONFIG)
    path = restore_secrets(tmp_path, 3, {}).path
    path.write_text(content)
    with pytest.raises(StorageError, match=r"secrets\.json cannot be read"):
        restore_secrets(tmp_path, 3, CONFIG)
