"""Expiring credentials and differing clocks while checkpoints are saved."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import FaultProxy, fault_proxy
from storage_servers import BUCKET
from toy_command import MODEL_DIR, Detcore

from detcore.errors import StorageError
from detcore.storage import StorageBackend, digest_file
from detcore_storage import S3Settings, S3Storage

LARGE_BYTES = 12_000_000  # sent in parts


@pytest.fixture
def moto_proxy(moto_url: str) -> Iterator[FaultProxy]:
    """A proxy to a server that accepts all access keys."""
    with fault_proxy(moto_url) as proxy:
        yield proxy


class Credentials:
    """A file of AWS with an access key, which the proxy lets expire."""

    def __init__(self, path: Path, proxy: FaultProxy) -> None:
        self._path = path
        self._proxy = proxy
        self._number = 0
        self._num_refused = 0
        proxy.on_expired = self._refuse
        self.write()

    def write(self) -> None:
        """Write the next access key."""
        self._number += 1
        beside = self._path.with_suffix(".new")
        key = f"KEY{self._number}"
        beside.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = s\n")
        beside.replace(self._path)

    def expire(self) -> None:
        """Let the current key expire; the next key is written after some requests were rejected."""
        self._num_refused = 0
        self._proxy.expired_keys.add(f"KEY{self._number}")

    def _refuse(self) -> None:
        self._num_refused += 1
        if self._num_refused == 2:
            self.write()


@pytest.fixture
def credentials(
    moto_proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Credentials:
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return Credentials(path, moto_proxy)


def write_files(folder: Path) -> list[tuple[Path, str]]:
    pairs = [(folder / name, f"run/{name}") for name in ("small", "tiny", "large")]
    for (path, _), size in zip(pairs, (9, 1, LARGE_BYTES), strict=True):
        path.write_bytes(b"x" * size)
    return pairs


def list_calls(storage: StorageBackend, folder: Path) -> list[Callable[[], object]]:
    """Return calls of each kind."""
    folder.mkdir()
    pairs = write_files(folder)
    expected = {key: digest_file(path) for path, key in pairs}
    targets = [(folder / "back" / key, key) for _, key in pairs]
    requests: list[int] = []

    def put() -> None:
        assert storage.put_tree(pairs, progress=requests.append) == expected
        assert sum(requests) == LARGE_BYTES + 10

    def get() -> None:
        assert storage.get_tree(targets) == expected

    def read() -> None:
        assert storage.read("run/new") == b"new"

    def list_all() -> None:
        assert {entry.key for entry in storage.list("run")} == {*expected, "run/new"}

    return [put, lambda: storage.create("run/new", b"new"), get, read, list_all,
            lambda: storage.replace("run/new", b"newer"), lambda: storage.delete(["run/new"]),
            storage.probe]  # fmt: skip


def test_expired_credentials_are_renewed(
    credentials: Credentials, moto_proxy: FaultProxy, tmp_path: Path
) -> None:
    settings = {"bucket": BUCKET, "prefix": uuid.uuid4().hex, "endpoint_url": moto_proxy.url}
    storage = S3Storage(S3Settings.model_validate(settings))
    for call in list_calls(storage, tmp_path / "files"):
        credentials.expire()
        call()
    assert len(moto_proxy.expired_keys) == 8


REFUSED = [("s3", "RequestTimeTooSkewed"), ("gcs", "Invalid Credentials")]


@pytest.mark.parametrize(("kind", "code"), REFUSED)
def test_temporary_refusal_is_retried(
    kind: str, code: str, open_behind_proxy: Any, tmp_path: Path
) -> None:
    storage, proxy = open_behind_proxy(kind, 60.0)
    for call in list_calls(storage, tmp_path / "files"):
        codes = iter([code] * 3)
        proxy.choose = lambda method, target, codes=codes: next(codes, None)
        call()
    assert len(proxy.seen) >= 3 * 7


ADVICE = [
    ("s3", "ExpiredToken", "The credentials have expired. Renew them"),
    ("s3", "RequestTimeTooSkewed", "The clock of this machine differs"),
    ("s3", "AccessDenied", "The store refuses the credentials"),
    ("gcs", "Invalid Credentials", "The store refuses the credentials"),
]


@pytest.mark.parametrize(("kind", "code", "advice"), ADVICE)
def test_refusal_ends_with_advice(
    kind: str, code: str, advice: str, open_behind_proxy: Any
) -> None:
    storage, proxy = open_behind_proxy(kind, 6.0)
    proxy.always(code)
    with pytest.raises(StorageError) as caught:
        storage.replace("run/new", b"new")
    assert advice in str(caught.value)
    assert "owner and mode" not in str(caught.value)
    # Only temporary errors are retried.
    assert (len(proxy.seen) == 1) == (code == "AccessDenied")


def test_missing_credentials_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "missing"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    storage = S3Storage(S3Settings.model_validate({"bucket": BUCKET, "deadline_s": 0.5}))
    with pytest.raises(StorageError) as caught:
        storage.replace("new", b"new")
    message = f"writing new failed in {storage.url}: no AWS credentials were found.\nSet AWS_ACCESS"
    assert str(caught.value).startswith(message)


def test_run_survives_expired_credentials(
    credentials: Credentials, moto_proxy: FaultProxy, tmp_path: Path
) -> None:
    """The key expires at each commit, for the worker as well as for the runner."""
    storage = {
        "type": "s3", "bucket": BUCKET, "prefix": "trials", "endpoint_url": moto_proxy.url,
        "save_trial_latest": 1, "save_experiment_best": 0, "save_trial_best": 0,
    }  # fmt: skip
    manifests = set()

    def expire_at_commit(method: str, target: str) -> None:
        if method == "PUT" and target.endswith("/manifest.json") and target not in manifests:
            manifests.add(target)
            credentials.expire()

    moto_proxy.choose = expire_at_commit
    with Detcore(tmp_path) as detcore:
        finished = detcore("run", detcore.config(checkpoint_storage=storage), MODEL_DIR)
        assert finished.code == 0, finished.stdout + finished.stderr
        listed = detcore("checkpoint", "list", "--experiment", 1, "--deleted", "--json").stdout
    assert listed.count('"COMPLETED"') == 1
    assert listed.count('"DELETED"') == len(manifests) - 1 > 0
    assert len(moto_proxy.expired_keys) >= 3
