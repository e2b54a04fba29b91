"""Behaviour that all storage back ends share, in addition to their common suite.

The suite is `detcore_testing.StorageSuite`: see plugins/testing/tests and plugins/storage/tests.
"""

from __future__ import annotations

import time
import uuid

import pytest

from detcore.errors import UnsafePathError
from detcore.storage import check_key
from detcore_storage import FsspecStorage


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "it is empty"),
        ("/etc/passwd", "it is absolute"),
        ("../x", r"'\.\.'"),
        ("a/../../x", r"'\.\.'"),
        ("a//b", "empty or '.' part"),
        ("./a", "empty or '.' part"),
        ("a/", "empty or '.' part"),
        ("a\0b", "NUL"),
        ("a\udcff", "UTF-8"),
        ("a\nb", "control character"),
        ("\x1b[2J", "control character"),
        ("a\x9b1m", "control character"),
        ("a" * 256, "255 bytes"),
        ("ü" * 128, "255 bytes"),
        ("/".join(["a" * 200] * 6), "1205 bytes"),
    ],
)
def test_unsafe_key_is_rejected_with_reason(key: str, reason: str) -> None:
    with pytest.raises(UnsafePathError, match=reason):
        check_key(key)


def test_probe_removes_files_of_killed_processes() -> None:
    storage = FsspecStorage(f"memory://{uuid.uuid4()}")
    end = uuid.uuid4().hex
    storage.replace(f".detcore-probe/1700000000-{end}", b"left")
    now = f".detcore-probe/{int(time.time())}-{end}"
    storage.replace(now, b"of another process")
    storage.probe()
    assert [entry.key for entry in storage.list()] == [now]


def test_create_names_existing_key() -> None:
    storage = FsspecStorage(f"memory://{uuid.uuid4()}")
    storage.create("a/marker", b"first")
    with pytest.raises(FileExistsError, match="a/marker already exists in memory://"):
        storage.create("a/marker", b"second")
