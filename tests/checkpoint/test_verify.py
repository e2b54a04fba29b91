"""What is said of damage. That all of it is found, on every back end: tests/storage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from detcore.checkpoint import Fault, verify_checkpoint
from detcore.errors import CheckpointCorruptError

META = {"steps_completed": 3, "loss": 0.25, "text": "some words"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "sub").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "part-0").write_bytes(os.urandom(5000))
    (root / "sub" / "part-1").write_bytes(os.urandom(5000))
    (root / "large").write_bytes(os.urandom(600_000))
    (root / "none").write_bytes(b"")
    return root


def test_faults_outside_of_a_selection_do_not_matter(
    local_desk: Any, source: Path, tmp_path: Path
) -> None:
    uuid = local_desk.context.upload(source, META)
    (local_desk.storage.root / uuid / "large").write_bytes(b"changed")
    local_desk.context.download(uuid, tmp_path / "back", selector=lambda name: name == "part-0")
    assert (tmp_path / "back" / "part-0").read_bytes() == (source / "part-0").read_bytes()


def test_in_memory_too(desk: Any, source: Path) -> None:
    uuid = desk.context.upload(source, META)
    desk.storage.replace(f"{uuid}/part-0", b"\0" * 5000)
    desk.storage.replace(f"{uuid}/extra", b"")
    faults = verify_checkpoint(desk.storage, uuid)
    assert [fault.name for fault in faults] == ["extra", "part-0"]
    assert faults[0] == Fault("extra", "is not in the manifest", is_stray=True)
    with pytest.raises(CheckpointCorruptError, match="part-0: has changed: its digest is"):
        desk.context.restore_path(uuid).__enter__()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"version": 1', '"version": 2', "its version is 2, and this release reads 1"),
        ('"steps_completed": 3', '"steps_completed": 4', "its checksum does not match"),
        ("detcore-checkpoint", "other", "its format is 'other'"),
        ('"checksum"', '"check"', "its field 'checksum' is missing"),
        ("{", "", "it is not JSON"),
    ],
)
def test_a_changed_manifest_is_refused_with_the_reason(
    local_desk: Any, source: Path, old: str, new: str, message: str
) -> None:
    uuid = local_desk.context.upload(source, META)
    path = local_desk.storage.root / uuid / "manifest.json"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(CheckpointCorruptError, match=f"manifest.json cannot be used: {message}"):
        local_desk.context.get_metadata(uuid)


def test_a_manifest_of_another_checkpoint_is_refused(local_desk: Any, source: Path) -> None:
    first = local_desk.context.upload(source, META)
    second = local_desk.context.upload(source, META)
    root = local_desk.storage.root
    (root / second / "manifest.json").write_bytes((root / first / "manifest.json").read_bytes())
    with pytest.raises(CheckpointCorruptError, match=f"it belongs to checkpoint '{first}'"):
        local_desk.context.get_metadata(second)
