"""A process that stops at any operation leaves the old or the new checkpoint."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from detcore.checkpoint.torture import torture_storage
from detcore.storage import FsspecStorage, LocalStorage, StorageBackend


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> StorageBackend:
    if request.param == "local":
        return LocalStorage(tmp_path / "checkpoints")
    return FsspecStorage(f"memory://{uuid.uuid4().hex}/c")


def test_every_crash_point(storage: StorageBackend) -> None:
    seen: list[Any] = []
    report = torture_storage(storage, on_point=lambda *point: seen.append(point))
    assert list(map(str, report.losses)) == []
    assert sum(report.points.values()) == len(seen)
    assert min(report.points.values()) >= 2 * 4
    assert storage.list() == []


class _LosesHalf(LocalStorage):
    """Acknowledges a file of which it keeps a half."""

    def put_tree(self, pairs: Any, **options: Any) -> Any:
        digests = super().put_tree(pairs, **options)
        for path, key in pairs:
            if key.endswith("weights.bin"):
                data = Path(path).read_bytes()
                target = self.direct_path(key)
                target.write_bytes(bytes(len(data)))
        return digests


def test_a_storage_that_loses_what_it_acknowledged_is_found_out(tmp_path: Path) -> None:
    report = torture_storage(_LosesHalf(tmp_path / "c"))
    assert report.losses
    assert "weights.bin" in str(report.losses[0])
