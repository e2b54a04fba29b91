"""A process that stops at any operation leaves the old or the new checkpoint."""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from storage_servers import gcs_server, gcs_settings, moto, s3_settings, seaweedfs

from detcore.checkpoint import (
    commit as _commit,
)
from detcore.checkpoint import (
    delete as _delete,
)
from detcore.checkpoint import (
    prune,
    recover,
    recover_checkpoints,
    sharded_save,
)
from detcore.checkpoint import (
    save as _save,
)
from detcore.checkpoint.manifest import encode_manifest
from detcore.checkpoint.manifest_fields import MANIFEST_FILE
from detcore.errors import NotFoundError
from detcore.log.events import CheckpointDeleted, CheckpointStarted
from detcore.records import Database
from detcore.records import retention as rules
from detcore.storage import LocalStorage, StorageBackend
from detcore_storage import FsspecStorage, GcsStorage, S3Storage
from detcore_testing.crash import crash_scenarios
from detcore_testing.crash.crash_points import CrashPoint, Moment
from detcore_testing.torture import torture_storage

ON_SERVERS = 36


@pytest.mark.soak
@pytest.mark.parametrize("scenario", crash_scenarios.SCENARIOS)
@pytest.mark.parametrize("kind", ["local", "memory"])
def test_every_crash_point(kind: str, scenario: str, tmp_path: Path) -> None:
    storage: StorageBackend = LocalStorage(tmp_path / "checkpoints")
    if kind == "memory":
        storage = FsspecStorage(f"memory://{uuid.uuid4().hex}/c")
    points: list[CrashPoint] = []
    report = torture_storage(
        storage, scenarios=[scenario], on_point=lambda _, point: points.append(point)
    )
    assert report.losses == {}
    assert report.points == report.totals == {scenario: len(points)}
    assert report.points[scenario] >= 6
    moments = Counter(point.moment for point in points)
    assert moments[Moment.BEFORE] == moments[Moment.AFTER] == max(p.operation for p in points)
    if kind == "local" and scenario not in ("retention pass", "repair", "recovery"):
        assert moments[Moment.WITHIN] >= 2  # files, and the manifest
    assert [entry for entry in storage.list() if not entry.key.startswith(".detcore-")] == []


# -- object stores --------------------------------------------------------------------------------


SERVERS = {"seaweedfs": seaweedfs, "moto": moto, "gcs": gcs_server}


@pytest.mark.soak
@pytest.mark.parametrize("kind", SERVERS)
def test_crash_points_on_server(kind: str) -> None:
    prefix = uuid.uuid4().hex
    with SERVERS[kind]() as url, contextlib.ExitStack() as stack:
        storage: StorageBackend = (
            GcsStorage(gcs_settings(url, prefix))
            if kind == "gcs"
            else S3Storage(s3_settings(url, prefix))
        )
        stack.callback(storage.close)
        report = torture_storage(storage, points=ON_SERVERS)
        assert report.losses == {}
        assert sum(report.points.values()) == ON_SERVERS
        assert min(report.points.values()) >= 1
        assert min(report.totals.values()) >= 6
        assert storage.list() == []


# -- seeded faults ------------------------------------------------------------------------------


class _LossyStorage(LocalStorage):
    """Acknowledges a file but overwrites it with zeros."""

    def put_tree(self, pairs: Any, **options: Any) -> Any:
        digests = super().put_tree(pairs, **options)
        for path, key in pairs:
            if key.endswith("weights.bin"):
                data = Path(path).read_bytes()
                target = self.direct_path(key)
                target.write_bytes(bytes(len(data)))
        return digests


def test_lossy_storage_is_detected(tmp_path: Path) -> None:
    report = torture_storage(_LossyStorage(tmp_path / "c"), points=8, scenarios=["upload"])
    assert report.losses
    assert "weights.bin" in report.losses["upload"][0]


def _manifest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    from detcore.storage import digest_file

    def put_nothing(_storage: Any, _uuid: str, scan: Any, **_options: Any) -> Any:
        return {name: digest_file(path) for name, path in scan.files.items()}

    def save(self: Any, scan: Any, *rest: Any, **more: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(_save, "write_files", put_nothing)
            patch.setattr(_commit, "_check_stored_sizes", lambda *_: None)
            saved = real_save(self, scan, *rest, **more)
        _commit.write_files(self._storage, saved, scan)
        return saved

    real_save = _save.Saver._save_copies
    monkeypatch.setattr(_save.Saver, "_save_copies", save)


def _manifest_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the manifest like other files, so that a kill can leave half a manifest."""

    def commit(storage: Any, manifest: Any) -> None:
        import tempfile

        with tempfile.NamedTemporaryFile() as file:
            Path(file.name).write_bytes(encode_manifest(manifest))
            storage.put_tree([(Path(file.name), f"{manifest.uuid}/{MANIFEST_FILE}")])

    monkeypatch.setattr(_save, "commit_manifest", commit)


def _files_before_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    def remove(storage: Any, uuid: str) -> None:
        keys = [entry.key for entry in storage.list(uuid)]
        storage.delete(sorted(keys, key=lambda key: key.endswith(MANIFEST_FILE)))

    for module in (_delete, recover, _save):
        monkeypatch.setattr(module, "remove_files", remove)


def _record_deleted_before_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def delete(storage: Any, uuid: str, *, database: Any = None, **_options: Any) -> Any:
        database.record_checkpoint(CheckpointDeleted(uuid=uuid, resources={}))
        _delete.remove_files(storage, uuid)
        return {}

    monkeypatch.setattr(prune, "delete_checkpoint", delete)


def _files_deleted_before_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def delete(storage: Any, uuid: str, *, database: Any = None, **_options: Any) -> Any:
        _delete.remove_files(storage, uuid)
        with contextlib.suppress(NotFoundError):
            database.record_checkpoint(CheckpointDeleted(uuid=uuid, resources={}))
        return {}

    monkeypatch.setattr(prune, "delete_checkpoint", delete)


def _recorded_after_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(database: Any, storage: Any, manifest: Any, times: Any) -> None:
        started = postponed.pop(manifest.uuid, None)
        if started is not None:
            real(database, **started)
        _commit.record_committed(database, storage, manifest, times)

    def postpone(self: Any, change: Any, **options: Any) -> None:
        if isinstance(change, CheckpointStarted):
            postponed[change.uuid] = {"change": change, **options}
        else:
            real(self, change, **options)

    postponed: dict[str, Any] = {}
    real = Database.record_checkpoint
    monkeypatch.setattr(Database, "record_checkpoint", postpone)
    monkeypatch.setattr(_save, "record_committed", record)


def _recorded_complete_before_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(storage: Any, manifest: Any) -> None:
        _commit.record_committed(owner["records"], storage, manifest)
        _commit.commit_manifest(storage, manifest)

    owner: dict[str, Any] = {}
    started = _save.Saver._start_save

    def remember(self: Any, *arguments: Any, **options: Any) -> Any:
        owner["records"] = self._records
        return started(self, *arguments, **options)

    monkeypatch.setattr(_save.Saver, "_start_save", remember)
    monkeypatch.setattr(_save, "commit_manifest", commit)


def _recovery_ignores_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover, "has_manifest", lambda *_: False)


def _recovery_leaves_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover, "remove_files", lambda *_: None)


def _recovery_always_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete a file in every recovery, although nothing needs recovery."""

    def recover(database: Any, storage: Any, trial_id: int) -> Any:
        storage.delete(["a-stray-file"])
        return recover_checkpoints(database, storage, trial_id)

    monkeypatch.setattr(crash_scenarios, "recover_checkpoints", recover)


def _part_without_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete some files while the manifest still lists them."""

    def remove(storage: Any, manifest: Any, left: Any, gone: Any) -> None:
        storage.delete(f"{left.uuid}/{name}" for name in sorted(gone))
        if left != manifest:
            storage.replace(f"{left.uuid}/{MANIFEST_FILE}", encode_manifest(left))

    monkeypatch.setattr(_delete, "_remove_listed_files", remove)


def _registered_checkpoints_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    forced = functools.partial(_delete.delete_checkpoint, force=True)
    monkeypatch.setattr(prune, "delete_checkpoint", forced)
    monkeypatch.setattr(rules, "_find_exempt", lambda _database: {})


def _repair_without_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover, "verify_checkpoint", lambda *_, **__: [])


def _shards_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_save.Saver, "_record_end", lambda self, *_, **__: None)
    monkeypatch.setattr(sharded_save.ShardedSaver, "_write_and_commit", lambda *_, **__: None)


FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = [
    (_manifest_first, "upload", "counts as complete but is damaged|is damaged"),
    (_manifest_in_place, "upload", "recovery failed|counts as complete but is damaged"),
    (_files_before_manifest, "retention pass", "counts as complete but is damaged"),
    (_record_deleted_before_files, "retention pass", "files remain|counts|not"),
    (_files_deleted_before_the_record, "retention pass", "counts as complete but is damaged"),
    (_recorded_after_commit, "upload", "files remain"),
    (_recorded_complete_before_commit, "upload", "counts as complete but is damaged"),
    (_recovery_ignores_manifests, "recovery", "not"),
    (_recovery_leaves_files, "upload", "files remain"),
    (_recovery_always_changes, "upload", "a second recovery made a change"),
    (_part_without_manifest, "save and delete a part", "counts as complete but is damaged"),
    (_registered_checkpoints_deleted, "retention pass", "not"),
    (_repair_without_verification, "repair", "is damaged|but damaged|not"),
    (_shards_not_committed, "two workers", "was saved but is|files remain"),
]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("seed", "scenario", "words"), FAULTS, ids=[fault.__name__[1:] for fault, _, _ in FAULTS]
)
def test_seeded_fault_is_detected(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    seed: Callable[[pytest.MonkeyPatch], None],
    scenario: str,
    words: str,
) -> None:
    import re

    seed(monkeypatch)
    losses = torture_storage(LocalStorage(tmp_path / "c"), scenarios=[scenario]).losses
    assert losses, "the fault was not detected"
    assert any(re.search(words, loss.partition("): ")[2]) for loss in losses[scenario]), losses
