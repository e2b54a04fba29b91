"""Long transfers are shown on a terminal, and nowhere else unasked."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import FaultProxy, fault_proxy
from processes import wait_until
from rich.console import Console
from storage_servers import ACCESS_KEY, BUCKET, SECRET_KEY, moto
from terminal import on_a_terminal, without_colour

from detcore.checkpoint import CheckpointContext, repair_checkpoint, verify_checkpoint
from detcore.distributed import DistributedContext
from detcore.storage.transfer_progress import TransferBars, watch_transfers

META = {"steps_completed": 1}
SIZE = 12_000_000
SCRIPT = """
import sys
from pathlib import Path
from detcore import core

folder = Path("model")
folder.mkdir()
with open(folder / "weights", "wb") as file:
    file.truncate(SIZE)
with core.init(checkpoint_storage=sys.argv[1]) as context:
    uuid = context.checkpoint.upload(folder, {"steps_completed": 1})
    print("uploaded")
    with context.checkpoint.store_path({"steps_completed": 2}) as (path, _):
        (folder / "weights").rename(path / "weights")
    print("stored")
    context.checkpoint.download(uuid, "back")
    print("downloaded")
    with context.checkpoint.restore_path(uuid) as path:
        pass
    print("restored", uuid)
""".replace("SIZE", str(SIZE))


class Recorder:
    """Records the progress of transfers."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.totals: list[int] = []
        self.told: list[int] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def transfer(self, name: str, size_bytes: int) -> Iterator[Any]:
        self.names.append(name)
        self.totals.append(size_bytes)
        self.told.append(0)

        def advance(num_bytes: int) -> None:
            with self._lock:
                self.told[-1] += num_bytes

        yield advance


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_progress_covers_every_byte(desk: Any, folder: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    context = CheckpointContext(
        storage=desk.storage, distributed=DistributedContext(), observer=recorder
    )
    uuid = context.upload(folder, META)
    with context.store_path(META) as (path, stored):
        (path / "weights").write_bytes(bytes(5000))
    context.download(uuid, tmp_path / "back")
    context.download(uuid, tmp_path / "part", selector=lambda name: name == "weights.bin")
    with context.restore_path(uuid):
        pass
    assert verify_checkpoint(desk.storage, uuid, observer=recorder) == []
    size = size_of(tmp_path / "back")
    assert recorder.totals == [
        size_of(folder), 5000, size, size_of(tmp_path / "part"), size, size,
    ]  # fmt: skip
    assert recorder.told == recorder.totals
    start = uuid[:8]
    in_place = desk.storage.direct_path(uuid) is not None
    assert recorder.names == [
        f"saving {start}", f"saving {stored[:8]}", f"downloading {start}", f"downloading {start}",
        f"checking {start}" if in_place else f"downloading {start}", f"checking {start}",
    ]  # fmt: skip


def test_repair_reports_progress(desk: Any, uuid: str) -> None:
    recorder = Recorder()
    record = desk.database.get_checkpoint(uuid)
    repair_checkpoint(desk.database, desk.storage, record, observer=recorder)
    assert recorder.told == recorder.totals == [record.size_bytes]


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_short_transfer_has_no_progress_bar() -> None:
    console = terminal()
    with TransferBars(console, delay_s=3600.0).transfer("saving", 100) as advance:
        advance(100)
    assert text_of(console) == ""


def test_stalled_transfer_has_progress_bar() -> None:
    console = terminal()
    with TransferBars(console, delay_s=0.0).transfer("saving", 100):
        wait_until(lambda: "saving" in text_of(console))
        assert "0/100 bytes" in text_of(console)


def test_progress_bar_ends_at_100_percent() -> None:
    console = terminal()

    def transfer() -> None:
        with TransferBars(console, delay_s=0.0).transfer("saving", 100) as advance:
            wait_until(lambda: "saving" in text_of(console))
            advance(150)  # a part was sent twice
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        transfer()
    assert "100/100 bytes" in text_of(console)
    assert "150/100" not in text_of(console)
    assert text_of(console).endswith("\x1b[1A\x1b[2K")  # the line is empty again


def test_progress_bar_requires_a_terminal() -> None:
    assert watch_transfers(io.StringIO()) is None


@pytest.fixture(scope="module")
def slow() -> Iterator[FaultProxy]:
    """An S3 server where each part of a large file takes longer than the bar's delay."""

    def wait(method: str, target: str) -> None:
        if "/weights" in target and method in ("GET", "PUT"):
            threading.Event().wait(1.3)

    with moto() as url, fault_proxy(url) as proxy:
        proxy.choose = wait
        yield proxy


@pytest.fixture
def variables(slow: FaultProxy, tmp_path: Path) -> dict[str, str]:
    return {
        "DETCORE_HOME": str(tmp_path / "home"),
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_ENDPOINT_URL": slow.url,
    }


def run_script(folder: Path, variables: dict[str, str], **options: Any) -> tuple[str, str]:
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", f"s3://{BUCKET}/{folder.name}"]
    code, terminal_text, piped = on_a_terminal(
        command, variables=variables, folder=folder, **options
    )
    assert code == 0, terminal_text
    # The script's first and last line, which are about the trial.
    terminal_text = re.sub(r"experiment 1[:,][^\n]*\n", "", without_colour(terminal_text))
    return terminal_text, piped


@pytest.mark.soak
def test_terminal_shows_progress_of_scripts(tmp_path: Path, variables: dict[str, str]) -> None:
    terminal_text, _ = run_script(tmp_path, variables)
    uuid = terminal_text.split()[-1]
    before, _, remainder = terminal_text.partition("uploaded")
    assert f"saving {uuid[:8]}" in before
    assert "/12.0 MB" in before
    stored, _, remainder = remainder.partition("stored")
    assert "saving" in stored
    downloaded, _, restored = remainder.partition("downloaded")
    assert f"downloading {uuid[:8]}" in downloaded
    assert f"downloading {uuid[:8]}" in restored.partition("restored")[0]

    for arguments, verb in (
        (["download", uuid, "-o", "got"], "downloading"),
        (["verify", uuid], "checking"),
        (["repair", uuid], "checking"),
    ):
        code, terminal_text, piped = on_a_terminal(
            [sys.executable, "-m", "detcore", "checkpoint", *arguments],
            variables=variables,
            folder=tmp_path,
            width=70,
            stdout_too=False,
        )
        assert code == 0, terminal_text
        lines = without_colour(terminal_text).replace("\r", "\n").splitlines()
        bars = [line for line in lines if f"{verb} {uuid[:8]}" in line]
        assert bars, terminal_text
        assert all(len(line) <= 70 for line in lines), lines
        assert verb not in piped
    assert (tmp_path / "got" / "weights").stat().st_size == SIZE


@pytest.mark.soak
def test_dumb_terminal_has_no_progress_bar(tmp_path: Path, variables: dict[str, str]) -> None:
    terminal_text, piped = run_script(tmp_path, {**variables, "TERM": "dumb"}, stdout_too=False)
    assert terminal_text == ""
    assert piped.split()[:4] == ["uploaded", "stored", "downloaded", "restored"]
