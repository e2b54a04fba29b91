"""Event files, read back byte by byte; and by TensorBoard itself where it is installed."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing import event_accumulator, event_file_loader
from toy_command import MODEL_DIR, Detcore

from detcore import core
from detcore.core._tensorboard import EventFile
from detcore.errors import StorageError


def crc32c(data: bytes) -> int:
    """Bit by bit, unlike the code under test."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 * (crc & 1))
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(path: Path) -> list[bytes]:
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12])[0] == masked(data[:8])
        body = data[12 : 12 + length]
        assert struct.unpack("<I", data[12 + length : 16 + length])[0] == masked(body)
        found.append(body)
        data = data[16 + length :]
    return found


def fields(message: bytes) -> list[tuple[int, Any]]:
    """Parse a protocol buffer message: field numbers and raw values."""
    found, at = [], 0

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = message[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(message):
        key = varint()
        field, wire = key >> 3, key & 7
        if wire == 0:
            found.append((field, varint()))
            continue
        size = {1: 8, 5: 4}.get(wire) or varint()
        raw = message[at : at + size]
        at += size
        value: Any = raw
        if wire != 2:
            value = struct.unpack("<d" if wire == 1 else "<f", raw)[0]
        found.append((field, value))
    return found


def scalars(path: Path) -> list[tuple[int, dict[str, float]]]:
    first, *rest = records(path)
    assert dict(fields(first))[3] == b"brain.Event:2"
    found = []
    for record in rest:
        event = dict(fields(record))
        values = [dict(fields(value)) for field, value in fields(event[5]) if field == 1]
        found.append((event[2], {value[1].decode(): value[2] for value in values}))
    return found


def test_the_published_checksum() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_reports_become_events(alone: Callable[..., core.Context]) -> None:
    with alone() as context:
        folder = context.train.get_tensorboard_path()
        assert list(folder.iterdir()) == []
        assert context.train.get_tensorboard_path() == folder
        context.train.report_training_metrics(
            128, {"loss": 0.5, "größe": 2.0}, [{"loss": 1.0}] * 100
        )
        context.train.report_validation_metrics(
            300, {"accuracy": 0.25, "val_loss": float("inf"), "big": 1e300}
        )
        context.train.report_training_metrics(400, {})
    (path,) = folder.iterdir()
    assert path.name.startswith("events.out.tfevents.")
    assert scalars(path) == [
        (128, {"detcore/loss": 0.5, "detcore/größe": 2.0}),
        (300, {"detcore/val_accuracy": 0.25, "detcore/val_loss": float("inf"),
               "detcore/val_big": float("inf")}),
    ]  # fmt: skip


def test_tensorboard_reads_them(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    file.add_scalars(7, {"loss": 0.5})
    file.close()
    (path,) = tmp_path.iterdir()
    version, event = event_file_loader.EventFileLoader(str(path)).Load()
    assert version.file_version == "brain.Event:2"
    assert event.step == 7
    assert event.summary.value[0].tag == "loss"


def accumulated(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what TensorBoard shows: tags, and their steps and values."""
    events = event_accumulator.EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_shows_a_script_that_was_killed(home: Any) -> None:
    process = home.start(
        "import os, signal\nfrom detcore import core\n"
        "with core.init() as context:\n"
        "    for step in range(1, 51):\n"
        "        context.train.report_training_metrics(step, {'loss': 1 / 2**(step % 5)})\n"
        "    context.train.report_validation_metrics(50, {'accuracy': 0.5})\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    process.communicate(timeout=60)
    (folder,) = home.path.glob("experiments/1/trials/1/tensorboard")
    assert accumulated(folder) == {
        "detcore/loss": [(step, 1 / 2 ** (step % 5)) for step in range(1, 51)],
        "detcore/val_accuracy": [(50, 0.5)],
    }


def test_tensorboard_shows_a_trial_of_a_framework_it_does_not_know(tmp_path: Path) -> None:
    with Detcore(tmp_path) as detcore:
        done = detcore("run", detcore.config(), MODEL_DIR, "--json")
        assert done.code == 0, done.stderr
        (folder,) = detcore.home.glob("experiments/1/trials/1/tensorboard")
        shown = accumulated(folder)
    assert [step for step, _ in shown["detcore/loss"]] == list(range(5, 41, 5))
    assert [step for step, _ in shown["detcore/val_loss"]] == [10, 20, 30, 40]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot be written.*\n.*TensorboardMode.MANUAL"):
        EventFile(tmp_path / "file" / "x").add_scalars(1, {"loss": 1.0})


def test_a_record_that_does_not_fit_leaves_the_file_whole(tmp_path: Path) -> None:
    code = f"""
import resource
from pathlib import Path
from detcore.core._tensorboard import EventFile
from detcore.errors import StorageFullError
file = EventFile(Path({str(tmp_path)!r}))
file.add_scalars(1, {{"loss": 1.0}})
resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))
try:
    file.add_scalars(2, {{f"metric-{{index}}": 1.0 for index in range(50)}})
except StorageFullError:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    file.add_scalars(3, {{"loss": 3.0}})
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    (path,) = tmp_path.iterdir()
    assert scalars(path) == [(1, {"loss": 1.0}), (3, {"loss": 3.0})]
