"""Recovery of unfinished checkpoints at the next start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from detcore.checkpoint import recover_checkpoints, verify_checkpoint
from detcore.errors import StorageError
from detcore.log.events import CheckpointDeleting, CheckpointStarted

META = {"steps_completed": 4}


def begin(desk: Any, uuid: str) -> None:
    desk.database.record_checkpoint(
        CheckpointStarted(uuid=uuid, storage_url=desk.storage.url, steps_completed=9),
        trial_id=desk.trial_id,
    )


def test_unrecorded_commit_becomes_complete(desk: Any, uuid: str) -> None:
    before = desk.database.get_checkpoint(uuid)
    from sqlalchemy import text

    with desk.database._begin_write() as connection:
        connection.execute(text("UPDATE checkpoints SET state = 'ACTIVE', resources = '{}'"))
    assert recover_checkpoints(desk.database, desk.storage, desk.trial_id) == [uuid]
    after = desk.database.get_checkpoint(uuid)
    assert (after.state, after.resources) == ("COMPLETED", before.resources)
    assert after.metadata == before.metadata
    assert recover_checkpoints(desk.database, desk.storage, desk.trial_id) == []


def test_unfinished_save_is_removed(desk: Any, folder: Path) -> None:
    intact_uuid = desk.upload(folder, META)
    begin(desk, "half")
    desk.storage.replace("half/weights", b"x" * 1000)
    assert recover_checkpoints(desk.database, desk.storage, desk.trial_id) == []
    assert desk.states() == {intact_uuid: "COMPLETED", "half": "DELETED"}
    assert desk.names("half") == []
    assert verify_checkpoint(desk.storage, intact_uuid) == []


def test_empty_manifest_is_not_a_commit(desk: Any) -> None:
    begin(desk, "half")
    desk.storage.replace("half/manifest.json", b"")
    recover_checkpoints(desk.database, desk.storage, desk.trial_id)
    assert desk.states() == {"half": "DELETED"}
    assert desk.names("half") == []


def test_damaged_manifest_allows_next_start(
    desk: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    intact_uuid = desk.upload(folder, META)
    begin(desk, "broken")
    desk.storage.replace("broken/manifest.json", b"{ cut off")
    assert recover_checkpoints(desk.database, desk.storage, desk.trial_id) == []
    assert desk.states() == {intact_uuid: "COMPLETED", "broken": "DAMAGED"}
    assert "checkpoint broken" in caplog.text
    assert desk.names("broken") == ["manifest.json"]


def test_interrupted_deletion_is_finished(desk: Any, uuid: str) -> None:
    desk.database.record_checkpoint(CheckpointDeleting(uuid=uuid))
    recover_checkpoints(desk.database, desk.storage, desk.trial_id)
    assert desk.names(uuid) == []
    assert desk.states() == {uuid: "DELETED"}


def test_missing_storage_is_an_error(local_desk: Any) -> None:
    begin(local_desk, "half")
    shutil.rmtree(local_desk.storage.root, ignore_errors=True)
    with pytest.raises(StorageError, match=r"is missing.*\n.*may contain a complete.*\n.*Mount it"):
        recover_checkpoints(local_desk.database, local_desk.storage, local_desk.trial_id)
    assert local_desk.states() == {"half": "ACTIVE"}


def test_recovery_is_limited_to_trial_and_storage(local_desk: Any, tmp_path: Path) -> None:
    from detcore.storage import LocalStorage

    begin(local_desk, "half")
    local_desk.storage.replace("half/weights", b"x")
    other = LocalStorage(tmp_path / "other")
    other.probe()
    assert recover_checkpoints(local_desk.database, other, local_desk.trial_id) == []
    assert recover_checkpoints(local_desk.database, local_desk.storage, 99) == []
    assert local_desk.states() == {"half": "ACTIVE"}
    assert local_desk.names("half") == ["weights"]


def test_lost_commit_response_is_not_a_failure(desk: Any, folder: Path) -> None:
    """`create` got through, but says that the marker exists."""
    real = desk.storage.create

    def create(key: str, data: bytes) -> None:
        real(key, data)
        real(key, data)

    desk.storage.create = create
    uuid = desk.upload(folder, META)
    assert desk.states() == {uuid: "COMPLETED"}
    assert verify_checkpoint(desk.storage, uuid) == []


def test_second_writer_of_uuid_is_a_conflict(desk: Any, folder: Path) -> None:
    real = desk.storage.create

    def create(key: str, data: bytes) -> None:
        import dataclasses

        from detcore.checkpoint.manifest import decode_manifest, encode_manifest

        uuid = json.loads(data)["uuid"]
        manifest = decode_manifest(data, uuid, "")
        real(key, encode_manifest(dataclasses.replace(manifest, files={})))
        real(key, data)

    desk.storage.create = create
    with pytest.raises(Exception, match=r"another process committed checkpoint .* other files"):
        desk.upload(folder, META)


def test_files_changed_during_save_are_detected(local_desk: Any, folder: Path) -> None:
    real = local_desk.storage.replace

    def replace(key: str, data: bytes) -> None:
        uuid = key.partition("/")[0]
        (local_desk.storage.root / uuid / "weights.bin").write_bytes(b"something else")
        real(key, data)

    local_desk.storage.replace = replace
    with pytest.raises(Exception, match=r"was not committed: weights.bin has 14 bytes"):
        local_desk.upload(folder, META)
    assert local_desk.storage.list() == []


def test_failed_cleanup_does_not_hide_error(
    local_desk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def delete_tree(prefix: str) -> None:
        raise StorageError("the disk went away")

    local_desk.storage.delete_tree = delete_tree

    def save() -> None:
        with local_desk.store_path(META) as (path, _):
            (path / "w").write_text("half")
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        save()
    assert "could not be removed yet: the disk went away" in caplog.text
    assert set(local_desk.states().values()) == {"ACTIVE"}
    del local_desk.storage.delete_tree
    recover_checkpoints(local_desk.database, local_desk.storage, local_desk.trial_id)
    assert local_desk.storage.list() == []
    assert set(local_desk.states().values()) == {"DELETED"}
