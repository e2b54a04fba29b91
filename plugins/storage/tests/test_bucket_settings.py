"""Bucket settings in URLs and experiment files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detcore.environment import read_environment
from detcore.errors import ConfigError, StorageTypeError
from detcore.plugins import PluginManager
from detcore.storage import open_storage
from detcore_storage import GcsSettings, GcsStorage, S3Settings, S3Storage


@pytest.fixture
def plugins(tmp_path: Path) -> PluginManager:
    return PluginManager(read_environment({"DETCORE_HOME": str(tmp_path)}))


@pytest.mark.parametrize(
    ("spec", "kind", "url"),
    [
        ("s3://bucket/a/b", S3Storage, "s3://bucket/a/b"),
        ("s3://bucket", S3Storage, "s3://bucket"),
        ("gs://bucket/a%20b", GcsStorage, "gs://bucket/a b"),
        ({"type": "s3", "bucket": "bucket", "prefix": "/a/b/"}, S3Storage, "s3://bucket/a/b"),
        ({"type": "s3", "bucket": "bucket", "prefix": "./a//./b/"}, S3Storage, "s3://bucket/a/b"),
        ({"type": "gcs", "bucket": "bucket", "save_trial_best": 2}, GcsStorage, "gs://bucket"),
    ],
)
def test_urls_and_types(
    tmp_path: Path, plugins: PluginManager, spec: Any, kind: type, url: str
) -> None:
    storage = open_storage(spec, home=tmp_path, plugins=plugins)
    assert type(storage) is kind
    assert storage.url == url


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": "s3"}, r"bucket: .*Field required"),
        ({"type": "s3", "bucket": "b/c"}, r"bucket: .*match pattern"),
        ({"type": "s3", "bucket": "bucket", "prefix": "a/../b"}, r"holds '\.\.'"),
        ({"type": "s3", "bucket": "bucket", "access_key": "a"}, "one of them is missing"),
        ({"type": "s3", "bucket": "bucket", "endpoint_url": "s3.test"}, r"endpoint_url: .*pattern"),
        ({"type": "s3", "bucket": "bucket", "deadline_s": 0}, "greater than 0"),
        ({"type": "s3", "bucket": "bucket", "bukcet": "b"}, r"bukcet: .*not permitted"),
        ({"type": "gcs", "bucket": "bucket", "access_key": "a"}, r"access_key: .*not permitted"),
        ("s3://key:secret@bucket/a", "credentials do not belong in a URL"),
    ],
)
def test_invalid_storage_settings_are_rejected(
    tmp_path: Path, plugins: PluginManager, fields: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        open_storage(fields, home=tmp_path, plugins=plugins)


def test_secrets_are_not_shown() -> None:
    fields = {"bucket": "bucket", "access_key": "visible-key", "secret_key": "visible-secret"}
    settings = S3Settings.model_validate(fields)
    assert "visible" not in f"{settings!r} {settings.model_dump()} {settings.model_dump_json()}"
    assert settings.secret_key is not None
    assert settings.secret_key.get_secret_value() == "visible-secret"


def test_emulator_gets_no_credentials() -> None:
    settings = GcsSettings(bucket="bucket", endpoint_url="http://127.0.0.1:9/", project="mine")
    fs = GcsStorage(settings)._fs
    assert (fs.credentials.token, fs.project) == ("anon", "mine")
    assert fs._location == "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("endpoint_url", "is_unsigned"),
    [(None, True), ("https://s3.test", True), ("http://s3.test", False)],
)
def test_payload_is_signed_without_tls(endpoint_url: str | None, is_unsigned: bool) -> None:
    from detcore_storage.s3_clients import S3Clients

    fields = {"bucket": "bucket", "access_key": "a", "secret_key": "b", "region": "r"}
    settings = S3Settings.model_validate({**fields, "endpoint_url": endpoint_url})
    config = S3Clients(settings).store.config
    assert config["unsigned_payload"] == str(is_unsigned).lower()


def test_azure_requires_url(tmp_path: Path, plugins: PluginManager) -> None:
    with pytest.raises(StorageTypeError, match=r"(?s)'azure'.*abfs://CONTAINER"):
        open_storage({"type": "azure", "container": "c"}, home=tmp_path, plugins=plugins)
    storage = open_storage("abfs://container/prefix", home=tmp_path, plugins=plugins)
    assert storage.url == "abfs://container/prefix"


def test_rejected_setting_is_named_without_values(tmp_path: Path, plugins: PluginManager) -> None:
    spec = {"type": "s3", "bucket": "x", "secret_key": ["visible-secret"]}
    with pytest.raises(ConfigError) as caught:
        open_storage(spec, home=tmp_path, plugins=plugins)
    assert str(caught.value).startswith(
        "the checkpoint_storage of type 's3' cannot be used: bucket: String should have at least 3 "
        "characters; secret_key: "
    )
    assert not any(word in str(caught.value) for word in ("visible-secret", "http", "input"))
    assert caught.value.__suppress_context__
