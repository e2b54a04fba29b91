"""Input that is refused before any file is written."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detcore.errors import InvalidCheckpointError, UnsafePathError

LOOP: dict[str, Any] = {"steps_completed": 1}
LOOP["self"] = LOOP


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, r"no 'steps_completed' \(it has: nothing\)"),
        ({"steps": 3}, r"no 'steps_completed' \(it has: 'steps'\)"),
        ({"steps_completed": 3.0}, r"is 3.0; expected a whole number"),
        ({"steps_completed": True}, "is True; expected a whole number"),
        ({"steps_completed": -1}, "is -1; expected a whole number, 0 to 2"),
        ({"steps_completed": 2**63}, "is 9223372036854775808; expected a whole number, 0 to 2"),
        ({"steps_completed": 1, "seed": 10**5000}, r"metadata\['seed'\].*more than 13000 bits"),
        ({"steps_completed": 1, "a": {"b": [0, {1}]}}, r"metadata\['a'\]\['b'\]\[1\] is \{1\}"),
        ({"steps_completed": 1, "a": {2: 3}}, r"metadata\['a'\]\[2\].*keys must be strings"),
        ({"steps_completed": 1, "loss": float("nan")}, r"metadata\['loss'\] is nan"),
        ({"steps_completed": 1, "a": np.zeros(3)}, r"metadata\['a'\].*a ndarray is not JSON"),
        (LOOP, "nested too deeply, or contains itself"),
        ([1], "metadata is a list"),
    ],
)
def test_metadata(desk: Any, folder: Path, metadata: Any, message: str) -> None:
    with pytest.raises(InvalidCheckpointError, match=message):
        desk.upload(folder, metadata)
    with pytest.raises(InvalidCheckpointError, match=message):
        desk.store_path(metadata).__enter__()
    assert desk.states() == {}
    assert desk.storage.list() == []


def test_metadata_converts_numpy_and_tuples(desk: Any, folder: Path) -> None:
    metadata = {
        "steps_completed": np.int64(5),
        "loss": np.float32(0.5),
        "flag": np.bool_(True),
        "shape": (1, 2),
        "zero": np.array(3),
    }
    uuid = desk.upload(folder, metadata)
    assert desk.get_metadata(uuid) == {
        "steps_completed": 5, "loss": 0.5, "flag": True, "shape": [1, 2], "zero": 3,
    }  # fmt: skip


def refused(desk: Any, folder: Path, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        desk.upload(folder, {"steps_completed": 1})
    assert desk.storage.list() == []
    assert desk.states() == {}


def test_link_out_of_folder_is_refused(desk: Any, folder: Path) -> None:
    (folder / "variables" / "out").symlink_to("/etc/passwd")
    refused(desk, folder, UnsafePathError, r"'variables/out' is a link that leads out.*passwd")


def test_links_to_no_file_are_refused(desk: Any, folder: Path) -> None:
    (folder / "dangling").symlink_to("absent")
    refused(desk, folder, InvalidCheckpointError, "'dangling' is a link whose target is missing")
    (folder / "dangling").unlink()
    (folder / "loop").symlink_to(".")
    refused(desk, folder, InvalidCheckpointError, "'loop' is a link to a directory")


def test_special_files_are_refused(
    desk: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(folder / "pipe")
    refused(desk, folder, InvalidCheckpointError, "pipe is a named pipe")
    (folder / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(folder)  # a socket's path is short
        server.bind("sock")
        refused(desk, folder, InvalidCheckpointError, "sock is a socket")


def test_name_that_is_not_utf8_is_refused(desk: Any, folder: Path) -> None:
    (folder / os.fsdecode(b"\xff\xfe")).write_text("")
    refused(desk, folder, UnsafePathError, "cannot be written in UTF-8")


def test_manifest_name_is_reserved(desk: Any, folder: Path) -> None:
    (folder / "manifest.json").write_text("{}")
    refused(desk, folder, InvalidCheckpointError, "holds a file called manifest.json")


def test_manifest_name_is_allowed_in_subfolder(desk: Any, folder: Path) -> None:
    (folder / "variables" / "manifest.json").write_text("{}")
    uuid = desk.upload(folder, {"steps_completed": 1})
    assert "variables/manifest.json" in desk.get_manifest(uuid).files


def test_missing_folder_is_refused(desk: Any, folder: Path) -> None:
    refused(desk, folder / "absent", InvalidCheckpointError, "absent does not exist")
    refused(desk, folder / "weights.bin", InvalidCheckpointError, "weights.bin is not a directory")


def test_files_of_store_path_are_checked(desk: Any) -> None:
    def save() -> None:
        with desk.store_path({"steps_completed": 1}) as (path, _):
            (path / "out").symlink_to("/etc/passwd")

    with pytest.raises(UnsafePathError, match="'out' is a link that leads out"):
        save()
    assert desk.storage.list() == []
