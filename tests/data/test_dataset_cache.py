"""The dataset cache: complete or absent, written once, even with kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from detcore.data import CacheKey, DatasetCache, key_order, with_key_order
from detcore.errors import DataError, UnsafePathError

KEY = CacheKey.checked("numbers", "1", part="train")


def writer(text: str = "data", num_records: int = 3, structure: Any = None) -> Any:
    def write(folder: Path) -> tuple[int, Any]:
        folder.mkdir()
        (folder / "data").write_text(text)
        return num_records, structure

    return write


def refuse(folder: Path) -> tuple[int, Any]:
    raise AssertionError("written again")


def names(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "datasets" / "numbers").iterdir())


def test_dataset_is_written_once(tmp_path: Path) -> None:
    cache = DatasetCache(tmp_path)
    assert cache.find(KEY) is None
    first = cache.open(KEY, writer(structure={"b": 1, "a": (2,)}))
    assert first.folder == tmp_path / "datasets" / "numbers" / "1_train"
    assert (first.num_records, (first.folder / "data").read_text()) == (3, "data")
    assert DatasetCache(tmp_path).open(KEY, refuse) == first
    assert first.keys == [["b", None], ["a", [None]]]
    cache.open(CacheKey.checked("numbers", "1", part="val"), writer())
    cache.open(CacheKey.checked("numbers", "2", part="train"), writer())
    assert names(tmp_path) == ["1_train", "1_val", "2_train"]


def test_failed_write_leaves_no_files(tmp_path: Path) -> None:
    def fail(folder: Path) -> tuple[int, Any]:
        writer()(folder)
        raise RuntimeError("disk on fire")

    cache = DatasetCache(tmp_path)
    with pytest.raises(RuntimeError, match="disk on fire"):
        cache.open(KEY, fail)
    with pytest.raises(DataError, match="'numbers' is empty: it has 0 records"):
        cache.open(KEY, writer(num_records=0))
    assert names(tmp_path) == []
    assert cache.open(KEY, writer()).num_records == 3


def test_first_of_two_writers_wins(tmp_path: Path) -> None:
    cache = DatasetCache(tmp_path)

    def slow(folder: Path) -> tuple[int, Any]:
        writer("mine", 5)(folder)
        folder.rename(folder.with_name("aside"))
        # The directory of this process id. Other processes have separate directories.
        cache.open(KEY, writer("theirs", 4))
        folder.with_name("aside").rename(folder)
        return 5, None

    cached = cache.open(KEY, slow)
    assert cached.num_records == 4
    assert (cached.folder / "data").read_text() == "theirs"
    assert names(tmp_path) == ["1_train"]


def test_cache_removes_files_of_killed_process(tmp_path: Path) -> None:
    script = f"""
import os, signal
from pathlib import Path
from detcore.data import CacheKey, DatasetCache
def write(folder):
    folder.mkdir()
    os.kill(os.getpid(), signal.SIGKILL)
DatasetCache(Path({str(tmp_path)!r})).open(CacheKey.checked("numbers", "1", part="train"), write)
"""
    result = subprocess.run([sys.executable, "-c", script], check=False)
    assert result.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 1
    assert names(tmp_path) != ["1_train"]
    cache = DatasetCache(tmp_path)
    assert cache.find(KEY) is None

    leftover = tmp_path / "datasets" / "numbers" / names(tmp_path)[0]
    alive = leftover.with_name(
        leftover.name.replace(leftover.name.split(".")[-2], str(os.getppid()))
    )
    other_host = leftover.with_name("1_train.another-host.1.tmp")
    alive.mkdir()
    other_host.mkdir()
    assert cache.open(KEY, writer()).num_records == 3
    assert names(tmp_path) == sorted(["1_train", alive.name, other_host.name])


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"version": 2, "num_records": 3}',
        '{"version": 1, "num_records": 0}',
        '{"version": 1, "num_records": "3"}',
    ],
)
def test_damaged_record_raises_with_path(tmp_path: Path, text: str) -> None:
    cache = DatasetCache(tmp_path)
    record = cache.open(KEY, writer()).folder / "detcore-records.json"
    record.write_text(text)
    with pytest.raises(DataError, match=r"(?s)'numbers' cannot be read.*Remove the directory"):
        cache.open(KEY, refuse)


@pytest.mark.parametrize("name", ["../up", "", ".hidden", "-x", "a/b", "a b", "a\n", "é", None, 3])
def test_invalid_file_names_are_rejected(name: Any) -> None:
    with pytest.raises(UnsafePathError, match="dataset_id is"):
        CacheKey.checked(name, "1", part="train")
    with pytest.raises(UnsafePathError, match="dataset_version is"):
        CacheKey.checked("a", name, part="train")


def test_key_order_survives_json() -> None:
    Pair = namedtuple("Pair", "x y")
    structure = ({"z": 1, "a": {"k": [2, {"d": 3, "c": 4}], "b": 5}}, Pair({"n": 6, "m": 7}, 8))
    order = json.loads(json.dumps(key_order(structure)))
    mixed = ({"a": {"b": 5, "k": [2, {"c": 4, "d": 3}]}, "z": 1}, Pair({"m": 7, "n": 6}, 8))
    restored = with_key_order(mixed, order)
    assert restored == structure
    assert repr(restored) == repr(structure)


def test_keys_are_sorted_without_order() -> None:
    assert list(with_key_order({"z": 1, "a": 2, "m": 3}, None)) == ["a", "m", "z"]
    assert list(with_key_order({"z": 1, "a": 2, "m": 3}, [["m", None]])) == ["m", "a", "z"]
    assert with_key_order(3, None) == 3
