"""Reading the manifest of a checkpoint that is not there, or not any more."""

from __future__ import annotations

import uuid as uuids
from typing import Any

import pytest

from detcore.checkpoint import MANIFEST_FILE
from detcore.checkpoint._manifest import read_manifest
from detcore.errors import CheckpointNotFoundError

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
