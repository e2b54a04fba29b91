"""Copies of checkpoints in folders, which can tell whether they are whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detcore.checkpoint import MANIFEST_FILE, copy_checkpoint, is_complete_copy
from detcore.checkpoint.manifest import METADATA_FILE
from detcore.errors import InvalidCheckpointError

META = {"steps_completed": 1}


def test_complete_copy_is_kept(
    desk: Any, uuid: str, folder: Path, tmp_path: Path, tree: Any
) -> None:
    copy = tmp_path / "copies" / "one"
    assert not is_complete_copy(copy, uuid)
    copy_checkpoint(desk.storage, uuid, copy)
    assert is_complete_copy(copy, uuid)
    assert tree(folder).items() <= tree(copy).items()
    before = {path: path.stat().st_ino for path in copy.rglob("*") if path.name != MANIFEST_FILE}
    (copy / MANIFEST_FILE).unlink()  # as what `detcore checkpoint download` leaves
    copy_checkpoint(desk.storage, uuid, copy)
    after = {path: path.stat().st_ino for path in copy.rglob("*") if path.name != MANIFEST_FILE}
    assert after == before
    assert is_complete_copy(copy, uuid)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a file is missing": lambda copy: (copy / "weights.bin").unlink(),
    "a file is shorter": lambda copy: (copy / "weights.bin").write_bytes(b"short"),
    "a file has other content": lambda copy: (copy / "variables" / "a[0]").write_text("nine"),
    "an empty folder is missing": lambda copy: shutil.rmtree(copy / "empty"),
    "the manifest is missing": lambda copy: (copy / MANIFEST_FILE).unlink(),
    "the manifest is cut": lambda copy: (copy / MANIFEST_FILE).write_text("{"),
}


@pytest.fixture
def copy(local_desk: Any, local_uuid: str, tmp_path: Path) -> Path:
    copy_checkpoint(local_desk.storage, local_uuid, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_copy_is_repaired_by_copying(
    local_desk: Any, local_uuid: str, copy: Path, damage: str
) -> None:
    DAMAGE[damage](copy)
    assert not is_complete_copy(copy, local_uuid)
    copy_checkpoint(local_desk.storage, local_uuid, copy)
    assert is_complete_copy(copy, local_uuid)


def test_copy_may_have_changed_metadata(copy: Path, local_uuid: str) -> None:
    (copy / METADATA_FILE).write_text('{"note": "changed by hand"}')
    assert is_complete_copy(copy, local_uuid)


def test_copy_refuses_folder_of_other_checkpoint(
    local_desk: Any, local_uuid: str, copy: Path, folder: Path
) -> None:
    other = local_desk.upload(folder, META)
    with pytest.raises(InvalidCheckpointError, match=f"contains another checkpoint, {local_uuid}"):
        is_complete_copy(copy, other)
