"""Known pitfalls of object store clients."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from storage_servers import ACCESS_KEY, BUCKET, SECRET_KEY, gcs_settings, s3_settings

from detcore.errors import StorageError
from detcore.storage import StorageBackend
from detcore_storage import FsspecStorage, GcsStorage, S3Storage
from detcore_storage.store_check import check_storage

Open = Callable[..., StorageBackend]
NETWORK = ["s3", "gcs"]
IMPORTS = "from detcore_storage import GcsSettings, GcsStorage, S3Settings, S3Storage"


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex


def opening(kind: str, url: str, prefix: str) -> str:
    """Return a line of Python that opens a storage in another process."""
    if kind == "gcs":
        fields = {"bucket": BUCKET, "prefix": prefix, "endpoint_url": url, "deadline_s": 20}
        return f"storage = GcsStorage(GcsSettings.model_validate({fields!r}))"
    fields = {
        "bucket": BUCKET, "prefix": prefix, "endpoint_url": url, "access_key": ACCESS_KEY,
        "secret_key": SECRET_KEY, "deadline_s": 20,
    }  # fmt: skip
    return f"storage = S3Storage(S3Settings.model_validate({fields!r}))"


def python(code: str, *arguments: str, timeout: float = 90.0, **environment: str) -> str:
    """Run code in a new process, without variables that change the behaviour of clients."""
    removed = ("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "NO_GCE_CHECK", "AWS_EC2_METADATA_DISABLED")
    env = {name: value for name, value in os.environ.items() if name not in removed}
    script = f"{IMPORTS}\n{textwrap.dedent(code)}"
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=timeout,
        env={**env, **environment}, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.soak
def test_forked_child_can_use_storage(gcs_url: str, prefix: str) -> None:
    code = f"""
    import os, signal
    {opening("gcs", gcs_url, prefix)}
    storage.replace("parent", b"1")
    for used in (storage, type(storage)(storage._settings)):
        child = os.fork()
        if not child:
            signal.alarm(40)
            used.replace("child", used.read("parent") + b"2")
            os._exit(0 if len(used.list()) == 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert storage.read("child") == b"12"
    """
    python(code)


def test_s3_in_forked_child_is_rejected_after_use(weed_url: str, prefix: str) -> None:
    code = f"""
    import os, signal
    {opening("s3", weed_url, prefix)}
    storage.replace("parent", b"1")
    for used in (storage, type(storage)(storage._settings)):
        child = os.fork()
        if not child:
            signal.alarm(40)  # obstore would wait forever
            calls = [used.list, used.probe, lambda: used.read("parent")]
            for call in calls:
                try:
                    call()
                except OSError as error:
                    assert "forked after S3 was used" in str(error), error
                else:
                    os._exit(2)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert storage.read("parent") == b"1"
    """
    python(code)


def test_create_has_one_winner_among_forks(weed_url: str, prefix: str) -> None:
    """Children that were forked before S3 was used may use it."""
    code = f"""
    import os, signal
    {opening("s3", weed_url, prefix)}
    read_end, write_end = os.pipe()
    children = []
    for number in range(6):
        child = os.fork()
        if not child:
            signal.alarm(40)
            os.close(write_end)
            os.read(read_end, 1)
            try:
                storage.create("marker", b"%d" % number)
            except FileExistsError:
                os._exit(1)
            os._exit(0)
        children.append(child)
    os.close(write_end)  # now all of them continue
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sorted(codes) == [0, 1, 1, 1, 1, 1], codes
    assert storage.read("marker") == b"%d" % codes.index(0)
    """
    python(code)


@pytest.mark.soak
def test_interpreter_exits_cleanly(
    weed_url: str, gcs_url: str, prefix: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(bytes(9 << 20))
    lines = [
        "import sys",
        "from pathlib import Path",
        f"path, number = Path({str(tmp_path)!r}), sys.argv[1]",
        "keys = [f'{number}/0', f'{number}/1']",
    ]
    for kind, url in zip(NETWORK, (weed_url, gcs_url), strict=True):
        lines += [
            opening(kind, url, prefix),
            "storage.put_tree([(path / 'file', key) for key in keys])",
            "storage.get_tree([(path / 'back' / key, key) for key in keys])",
            "storage.delete_tree(number)",
        ]
    code = "\n".join(lines)
    # obstore's asynchronous calls abort in a quarter of such runs; all clients in one process.
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda number: python(code, str(number)), range(8)))


def test_gcs_emulator_skips_metadata_probe(gcs_url: str, prefix: str) -> None:
    start = time.monotonic()
    python(f"{opening('gcs', gcs_url, prefix)}\nstorage.probe()")
    code = f"""
    storage = GcsStorage(GcsSettings.from_url("gs://{BUCKET}/{prefix}"))
    storage.probe()
    """
    python(code, STORAGE_EMULATOR_HOST=gcs_url)
    assert time.monotonic() - start < 58  # with two starts of Python


@pytest.mark.parametrize("kind", ["local", "memory", "moto", *NETWORK])
def test_check_detects_store_capabilities(kind: str, open_kind: Open) -> None:
    storage = open_kind(kind)
    findings = {finding.name: finding for finding in check_storage(storage)}
    assert len(findings) == 9
    faulty = {name for name, finding in findings.items() if not finding.is_ok}
    # SeaweedFS treats a backslash as a slash, and memory:// has no atomic create.
    expected = {
        "memory": {"conditional put, raced"}, "s3": {"names are taken literally"},
    }  # fmt: skip
    assert faulty <= expected.get(kind, set()), [findings[name].text for name in faulty]
    assert storage.list() == []


def kill_upload(folder: Path, size_mib: int, opening_line: str, num_parts: int) -> None:
    """Upload a file in another process, which is killed after a number of parts."""
    with open(folder / "large", "wb") as file:
        file.truncate(size_mib << 20)
    code = f"""
import time
from pathlib import Path
{IMPORTS}
{opening_line}

def tell(size):
    told.append(size)
    print(size, flush=True)
    if len(told) >= {num_parts}:
        time.sleep(600)

told = []
storage.put_tree([(Path({str(folder / "large")!r}), "run/large")], progress=tell)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(num_parts):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)


def assert_not_listed(storage: StorageBackend, folder: Path) -> None:
    assert storage.list() == []
    with pytest.raises(FileNotFoundError):
        storage.get_tree([(folder / "back", "run/large")])


def test_killed_upload_is_removed_and_not_listed(
    weed_url: str, prefix: str, tmp_path: Path
) -> None:
    kill_upload(tmp_path, 256, opening("s3", weed_url, prefix), 11)
    storage = S3Storage(s3_settings(weed_url, prefix))
    assert_not_listed(storage, tmp_path)
    storage.probe()  # other processes may be writing recent uploads
    assert storage.clear_uploads("run", older_than_s=3600) == 0
    assert storage.clear_uploads("ru", older_than_s=0) == 0
    assert storage.clear_uploads("run", older_than_s=0) == 1
    assert storage.clear_uploads(older_than_s=0) == 0


def test_killed_gcs_upload_is_not_listed(gcs_url: str, prefix: str, tmp_path: Path) -> None:
    kill_upload(tmp_path, 160, opening("gcs", gcs_url, prefix), 3)
    assert_not_listed(GcsStorage(gcs_settings(gcs_url, prefix)), tmp_path)


def test_conditional_create_of_client_is_used(weed_url: str, gcs_url: str, prefix: str) -> None:
    """Some write methods of these clients accept ``mode="create"`` and still overwrite."""
    gcs = GcsStorage(gcs_settings(gcs_url, prefix))
    for number, storage in enumerate([S3Storage(s3_settings(weed_url, prefix)), gcs]):
        key = f"{number}/marker"
        storage.create(key, b"first")
        if storage is gcs:
            gcs._call_file_system = _without_exists(gcs)  # type: ignore[method-assign]
        with pytest.raises(FileExistsError):  # also where the server's 412 names no condition
            storage.create(key, b"second")
        assert storage.read(key) == b"first"


def _without_exists(storage: FsspecStorage) -> Callable[..., object]:
    """Return a call for a storage whose existence check comes too early."""
    call = storage._call_file_system
    return lambda name, *args, **fields: name != "exists" and call(name, *args, **fields)


def test_wrong_credentials_fail_immediately(weed_url: str, prefix: str) -> None:
    settings = s3_settings(weed_url, prefix, secret_key="wrong", deadline_s=60)
    start = time.monotonic()
    with pytest.raises(StorageError) as caught:
        S3Storage(settings).probe()
    assert time.monotonic() - start < 55
    assert "wrong" not in str(caught.value) + repr(settings)


@pytest.mark.parametrize("kind", NETWORK)
def test_missing_bucket_is_named(kind: str, request: pytest.FixtureRequest) -> None:
    storage: StorageBackend
    if kind == "gcs":
        settings = gcs_settings(request.getfixturevalue("gcs_url"), "x", bucket="absent")
        storage = GcsStorage(settings)
    else:
        url = request.getfixturevalue("weed_url")
        storage = S3Storage(s3_settings(url, "x", bucket="absent"))
    with pytest.raises(StorageError, match=r"the bucket 'absent' .* does not exist"):
        storage.probe()


@pytest.mark.parametrize("place", ["profile", "environment"])
def test_credentials_and_address_from_environment(
    weed_url: str, prefix: str, tmp_path: Path, place: str
) -> None:
    (tmp_path / "config").write_text(
        f"[profile here]\nregion = us-east-1\naws_access_key_id = {ACCESS_KEY}\n"
        f"aws_secret_access_key = {SECRET_KEY}\nendpoint_url = {weed_url}\n"
    )
    variables: dict[str, dict[str, Any]] = {
        "profile": {"AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_PROFILE": "here"},
        "environment": {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_ENDPOINT_URL_S3": weed_url, "AWS_REGION": "us-east-1",
        },
    }  # fmt: skip
    code = f"""
    storage = S3Storage(S3Settings(bucket={BUCKET!r}, prefix={prefix!r}))
    storage.probe()
    print(storage.url)
    """
    assert python(code, **variables[place]) == f"s3://{BUCKET}/{prefix}\n"


@pytest.mark.parametrize("package", ["obstore", "botocore"])
def test_missing_package_names_the_install(package: str) -> None:
    code = f"""
    import sys
    sys.modules[{package!r}] = None
    storage = S3Storage(S3Settings(bucket="bucket"))
    try:
        storage.probe()
    except OSError as error:
        print(error)
    """
    assert python(code).endswith("Install it with: pip install 'detcore-storage[s3]'\n")


@pytest.mark.soak
@pytest.mark.parametrize("kind", NETWORK)
def test_memory_does_not_grow_with_files(
    kind: str, request: pytest.FixtureRequest, prefix: str, tmp_path: Path
) -> None:
    url = request.getfixturevalue("gcs_url" if kind == "gcs" else "weed_url")
    for number in range(6):
        with open(tmp_path / f"{number}", "wb") as file:
            file.truncate(48 << 20)
    code = f"""
    import re
    from pathlib import Path
    {opening(kind, url, prefix)}
    path = Path({str(tmp_path)!r})
    names = [f"{{n}}" for n in range(6)]
    put = storage.put_tree([(path / name, name) for name in names])
    assert storage.get_tree([(path / "back" / name, name) for name in names]) == put
    # Not getrusage, which starts with the peak of the parent process.
    print(int(re.search("VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024)
    """
    assert int(python(code)) < 200  # MB, of which Python and the client take up to 95
