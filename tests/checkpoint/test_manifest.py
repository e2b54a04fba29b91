"""Manifests that are not there, not any more, or already."""

from __future__ import annotations

import uuid as uuids
from typing import Any

import pytest

from detcore.checkpoint import MANIFEST_FILE
from detcore.checkpoint._manifest import read_manifest
from detcore.errors import CheckpointNotFoundError

UUID = str(uuids.UUID(int=7))


def test_a_manifest_that_was_deleted_after_it_was_listed(desk: Any) -> None:
    with pytest.raises(CheckpointNotFoundError, match=f"no committed checkpoint {UUID}"):
        read_manifest(desk.storage, UUID, sizes={MANIFEST_FILE: 100})
