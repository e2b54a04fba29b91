"""Networks that delay, reset and cut connections, and stores that limit requests."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import FAULTS, FaultProxy, fault_proxy
from storage_servers import s3_settings

from detcore.errors import StorageError
from detcore.storage import StorageBackend, digest_file
from detcore_storage import S3Storage

KINDS = ["s3", "gcs"]
DEADLINE_S = 4.0
# Tolerance after a deadline, for a pending request on a busy machine.
SLACK_S = 6.0


@pytest.fixture
def files(tmp_path: Path) -> list[tuple[Path, str]]:
    """Thirty small files, and one that travels in parts."""
    folder = tmp_path / "source"
    folder.mkdir()
    pairs = []
    for index in range(30):
        path = folder / f"{index}"
        path.write_bytes(bytes([index]) * (100 + 1000 * index))
        pairs.append((path, f"run/{index}"))
    large = folder / "large"
    large.write_bytes(bytes(range(251)) * 50_000)
    return [*pairs, (large, "run/large")]


@pytest.mark.parametrize("kind", KINDS)
def test_temporary_faults_are_retried(
    kind: str, open_behind_proxy: Any, files: list[tuple[Path, str]], tmp_path: Path
) -> None:
    storage, proxy = open_behind_proxy(kind, 60.0)
    expected = {key: digest_file(path) for path, key in files}
    proxy.sometimes(*FAULTS, share=0.3)
    values = random.getstate()
    assert storage.put_tree(files) == expected
    targets = [(tmp_path / "back" / key, key) for _, key in files]
    assert storage.get_tree(targets) == expected
    assert len(set(proxy.seen)) >= 5
    # Training draws from this generator during a background save, so retries must not.
    assert random.getstate() == values
    for path, key in targets:
        assert digest_file(path) == expected[key]
    assert {entry.key: entry.size for entry in storage.list("run")} == {
        key: digest.size for key, digest in expected.items()
    }
    storage.replace("run/marker", b"first")
    assert storage.read("run/marker") == b"first"
    storage.delete_tree("run")
    proxy.choose = lambda method, target: None
    assert storage.list() == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", ["503", "reset before", "stall", "truncate"])
def test_permanent_faults_raise_before_deadline(
    kind: str,
    fault: str,
    open_behind_proxy: Any,
    files: list[tuple[Path, str]],
    tmp_path: Path,
) -> None:
    prefix = uuid.uuid4().hex
    patient, _ = open_behind_proxy(kind, 60.0, prefix)
    patient.put_tree(files)
    patient.close()
    storage, proxy = open_behind_proxy(kind, DEADLINE_S, prefix)
    methods = ("GET",) if fault == "truncate" else ()
    proxy.always(fault, *methods)
    calls: list[Callable[[], object]] = [
        lambda: storage.get_tree([(tmp_path / "back", "run/29")]),
        lambda: storage.get_tree([(tmp_path / "back", "run/large")]),
        lambda: storage.read("run/1"),
    ]
    if not methods:
        calls += [
            lambda: storage.put_tree(files),
            lambda: storage.put_tree(files[-1:]),
            lambda: storage.create("run/new", b"x"),
            lambda: storage.list("run"),
        ]

    def took(call: Callable[[], object]) -> float:
        start = time.monotonic()
        with pytest.raises(StorageError):
            call()
        return time.monotonic() - start

    with ThreadPoolExecutor(len(calls)) as pool:
        assert max(pool.map(took, calls)) < DEADLINE_S + SLACK_S


# fake-gcs-server directs the parts of an upload to itself, past the proxy. In GCS, an unfinished
# upload is not an object and cannot be listed.
def test_partial_uploads_are_not_listed_or_kept(
    open_behind_proxy: Any, files: list[tuple[Path, str]]
) -> None:
    storage, proxy = open_behind_proxy("s3", DEADLINE_S)
    count = 0

    def fail_later(method: str, target: str) -> str | None:
        nonlocal count
        is_part = method == "PUT" and "partNumber" in target
        count += is_part
        return "503" if is_part and count > 1 else None

    proxy.choose = fail_later
    with pytest.raises(StorageError):
        storage.put_tree(files[-1:])
    assert count > 1
    proxy.choose = lambda method, target: None
    assert storage.list() == []
    assert isinstance(storage, S3Storage)
    assert storage.clear_uploads(older_than_s=0.0) == 0


def test_create_succeeds_when_answer_is_lost(
    open_behind_proxy: Any,
) -> None:
    storage: StorageBackend
    for kind in KINDS:
        storage, proxy = open_behind_proxy(kind, 20.0)
        lost = iter([True])
        proxy.choose = lambda method, target, lost=lost: (
            "reset after" if method in ("PUT", "POST") and next(lost, False) else None
        )
        with pytest.raises(FileExistsError):
            storage.create("marker", b"mine")
        assert storage.read("marker") == b"mine"


@pytest.mark.parametrize("server", ["weed_url", "moto_url"])
def test_multipart_upload_survives_lost_answer(
    server: str,
    request: pytest.FixtureRequest,
    files: list[tuple[Path, str]],
    tmp_path: Path,
) -> None:
    def lose_answer(method: str, target: str) -> str | None:
        return "reset after" if method == "POST" and "uploadId" in target and lost.pop() else None

    lost = [False] * 50 + [True]
    with fault_proxy(request.getfixturevalue(server)) as proxy:
        settings = s3_settings(proxy.url, uuid.uuid4().hex, deadline_s=20)
        storage = S3Storage(settings)
        storage.replace("run/large", b"an older content")
        proxy.choose = lose_answer
        expected = digest_file(files[-1][0])
        assert storage.put_tree(files[-1:]) == {"run/large": expected}
        assert proxy.seen == ["reset after"]
        assert storage.get_tree([(tmp_path / "back", "run/large")]) == {"run/large": expected}
        assert storage.clear_uploads(older_than_s=0.0) == 0


def test_deleted_bucket_is_not_a_lost_answer(
    s3_proxy: FaultProxy, files: list[tuple[Path, str]]
) -> None:
    storage = S3Storage(s3_settings(s3_proxy.url, uuid.uuid4().hex, bucket="absent"))
    with pytest.raises(StorageError, match=r"'absent' .* does not exist"):
        storage.put_tree(files[-1:])
