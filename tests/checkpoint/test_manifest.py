"""Manifests that are not there, not any more, or already."""

from __future__ import annotations

import dataclasses
import uuid as uuids
from pathlib import Path
from typing import Any

import pytest

from detcore.checkpoint import MANIFEST_FILE
from detcore.checkpoint._commit import commit
from detcore.checkpoint._manifest import read_manifest
from detcore.errors import CheckpointConflictError, CheckpointNotFoundError

UUID = str(uuids.UUID(int=7))


def test_nothing_is_there(desk: Any) -> None:
    with pytest.raises(CheckpointNotFoundError, match="there is nothing there"):
        read_manifest(desk.storage, UUID)


def test_files_without_a_manifest_are_counted(desk: Any) -> None:
    for name in ("a", "b"):
        desk.storage.replace(f"{UUID}/{name}", b"1")
    with pytest.raises(CheckpointNotFoundError, match="2 files are there without a") as raised:
        read_manifest(desk.storage, UUID)
    assert "there is nothing there" not in str(raised.value)


def test_a_manifest_that_was_deleted_after_it_was_listed(desk: Any) -> None:
    with pytest.raises(CheckpointNotFoundError, match=f"no committed checkpoint {UUID}"):
        read_manifest(desk.storage, UUID, sizes={MANIFEST_FILE: 100})


def test_a_commit_whose_response_was_lost_is_repeated(desk: Any, folder: Path) -> None:
    uuid = desk.context.upload(folder, {"steps_completed": 7})
    manifest = read_manifest(desk.storage, uuid)
    commit(desk.storage, manifest)
    others = {name: manifest.files[name] for name in ("weights.bin", "metadata.json")}
    with pytest.raises(CheckpointConflictError, match=f"another process committed .* {uuid}"):
        commit(desk.storage, dataclasses.replace(manifest, files=others))
    assert read_manifest(desk.storage, uuid) == manifest
