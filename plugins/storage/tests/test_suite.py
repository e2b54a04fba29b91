"""All storage types of the plugin run the suite, with real object store servers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import boto3
import pytest
from botocore.exceptions import ClientError
from storage_servers import (
    ACCESS_KEY,
    BUCKET,
    SECRET_KEY,
    gcs_server,
    gcs_settings,
    s3_settings,
)

from detcore.storage import StorageBackend
from detcore.storage.directory_settings import SharedFsSettings, open_shared_fs
from detcore_storage import GcsStorage, S3Storage
from detcore_testing import FolderAccess, StorageSuite

_ELSEWHERE = "files are in a bucket"
_ENDPOINT = "the URL contains the bucket, but not the test server"


@pytest.fixture(scope="session")
def gcs_url() -> Iterator[str]:
    with gcs_server() as url:
        yield url


class _Bucket(StorageSuite):
    """S3, read and written by boto3."""

    storage_type = "s3"
    secrets = (SECRET_KEY,)

    @pytest.fixture(autouse=True)
    def _connected(self, request: pytest.FixtureRequest) -> Iterator[None]:
        self.url = request.getfixturevalue(self.server)
        self.prefix = f"{uuid.uuid4().hex}/runs"
        self.client = boto3.client(
            "s3", endpoint_url=self.url, region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
        )  # fmt: skip
        yield
        self.client.close()

    server = ""

    def make_storage(self, tmp_path: Path) -> StorageBackend:
        return S3Storage(s3_settings(self.url, self.prefix))

    def make_unusable(self, tmp_path: Path) -> StorageBackend:
        return S3Storage(s3_settings(self.url, self.prefix, bucket="absent", deadline_s=3))

    def make_settings(self, tmp_path: Path) -> dict[str, Any]:
        return {
            "bucket": BUCKET, "prefix": self.prefix, "endpoint_url": self.url,
            "access_key": ACCESS_KEY, "secret_key": SECRET_KEY,
        }  # fmt: skip

    def _place(self, key: str) -> dict[str, str]:
        return {"Bucket": BUCKET, "Key": f"{self.prefix}/{key}"}

    def raw_read(self, key: str) -> bytes | None:
        try:
            return self.client.get_object(**self._place(key))["Body"].read()
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchKey":
                return None
            raise

    def raw_write(self, key: str, data: bytes) -> None:
        self.client.put_object(**self._place(key), Body=data)

    def raw_list(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=BUCKET, Prefix=f"{self.prefix}/"
        )
        result = [item["Key"] for page in pages for item in page.get("Contents", [])]
        return [key[len(self.prefix) + 1 :] for key in result if not key.endswith("/")]

    def raw_delete(self, key: str) -> None:
        self.client.delete_object(**self._place(key))


class TestS3(_Bucket):
    """SeaweedFS."""

    server = "weed_url"
    declined = {
        "backslash": "SeaweedFS converts a backslash to a slash",
        "direct-path": _ELSEWHERE,
        "fork-safe": "obstore waits forever in a child of a process that used it",
        "reopened-by-url": _ENDPOINT,
    }


class TestGcs(StorageSuite):
    """fake-gcs-server, read and written by plain HTTP."""

    storage_type = "gcs"
    declined = {"direct-path": _ELSEWHERE, "reopened-by-url": _ENDPOINT}

    @pytest.fixture(autouse=True)
    def _connected(self, gcs_url: str) -> None:
        self.url = gcs_url
        self.prefix = f"{uuid.uuid4().hex}/runs"

    def make_storage(self, tmp_path: Path) -> StorageBackend:
        return GcsStorage(gcs_settings(self.url, self.prefix))

    def make_unusable(self, tmp_path: Path) -> StorageBackend:
        return GcsStorage(gcs_settings(self.url, self.prefix, bucket="absent", deadline_s=3))

    def make_settings(self, tmp_path: Path) -> dict[str, Any]:
        return {"bucket": BUCKET, "prefix": self.prefix, "endpoint_url": self.url}

    def _call(self, method: str, path: str, data: bytes | None = None) -> bytes:
        headers = {"Content-Type": "application/octet-stream"}
        request = urllib.request.Request(f"{self.url}/{path}", data, headers, method=method)
        with urllib.request.urlopen(request) as answer:
            result: bytes = answer.read()
        return result

    def _object(self, key: str) -> str:
        return f"storage/v1/b/{BUCKET}/o/{quote(f'{self.prefix}/{key}', safe='')}"

    def raw_read(self, key: str) -> bytes | None:
        try:
            return self._call("GET", f"{self._object(key)}?alt=media")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def raw_write(self, key: str, data: bytes) -> None:
        name = quote(f"{self.prefix}/{key}", safe="")
        self._call("POST", f"upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={name}", data)

    def raw_list(self) -> list[str]:
        result: list[str] = []
        token = ""
        while True:
            query = f"prefix={quote(self.prefix, safe='')}%2F&pageToken={quote(token, safe='')}"
            page = json.loads(self._call("GET", f"storage/v1/b/{BUCKET}/o?{query}"))
            result += [item["name"] for item in page.get("items", [])]
            token = page.get("nextPageToken", "")
            if not token:
                return [key[len(self.prefix) + 1 :] for key in result]

    def raw_delete(self, key: str) -> None:
        self._call("DELETE", self._object(key))


class TestSharedFs(FolderAccess, StorageSuite):
    """A directory below a mounted directory."""

    storage_type = "shared_fs"

    def make_storage(self, tmp_path: Path) -> StorageBackend:
        self.root = tmp_path / "shared" / "runs"
        self.root.parent.mkdir(exist_ok=True)
        return open_shared_fs(SharedFsSettings(**self.make_settings(tmp_path)))

    def make_settings(self, tmp_path: Path) -> dict[str, Any]:
        return {"host_path": str(self.root.parent), "storage_path": "runs"}

    def make_unusable(self, tmp_path: Path) -> StorageBackend:
        (tmp_path / "file").write_text("in the way")
        return open_shared_fs(SharedFsSettings(host_path=str(tmp_path), storage_path="file/below"))
