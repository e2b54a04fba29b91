"""The digest file, which the core writes and this plugin reads."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from detcore.data import DigestedRun, StepDigests, read_digests
from detcore.errors import LedgerError


def write(folder: Path, run_id: int, start: int, stop: int, **options: Any) -> Path:
    """Write a run whose step N has the record N and the weight N."""
    path = folder / f"digests-{run_id}.bin"
    digests = StepDigests(path, run_id=run_id, start_step=start, **options)
    weight = np.array([float(start)])
    digests.watch(lambda: {"model.weight": weight})
    for step in range(start + 1, stop + 1):
        weight[:] = step
        digests.log(step, [step], [np.full((2, 3), step, np.float32), np.array([step]).T])
        digests.log_metrics(step, [{"loss": 1 / step}])
        digests.log_state(step)
    digests.flush()
    digests.close()
    digests.close()
    return path


def open_digests(folder: Path) -> StepDigests:
    return StepDigests(folder / "digests-1.bin", run_id=1, start_step=0)


def read(folder: Path) -> DigestedRun:
    digests = read_digests(folder)
    assert digests is not None
    return digests


def test_steps_have_digests_of_ids_content_and_metrics(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, 120)
    result = read(tmp_path)
    assert sorted(result.steps) == list(range(1, 121))
    assert len({row for rows in result.steps.values() for row in rows}) == 360
    assert list(result.states) == [0, 50, 100]
    assert len({state["model.weight"] for state in result.states.values()}) == 3
    assert result.facts["has_state"] is True
    assert result.facts["versions"]["numpy"] == np.__version__
    assert result.facts["machine"]["cpus"] >= 1


def test_state_digests_are_rarer_in_long_runs(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, 2000)
    expected = [*range(0, 200, 50), *range(200, 400, 100), *range(400, 800, 200)]
    assert list(read(tmp_path).states) == [*expected, *range(800, 2001, 400)]


def test_digests_do_not_depend_on_layout(tmp_path: Path) -> None:
    rows = []
    array = np.arange(12.0).reshape(3, 4)
    for index, content in enumerate([array, np.asfortranarray(array), array.T.copy().T]):
        folder = tmp_path / str(index)
        digests = open_digests(folder)
        # The string is a new object each time.
        text = "".join(["a", "b"])
        digests.log(1, None, [content, np.array([text, None], object)])
        digests.close()
        rows.append(read(folder).steps[1])
    assert len(set(rows)) == 1
    assert (rows[0][0], rows[0][2]) == (0, 0)  # unknown
    assert rows[0][1]


def test_logged_batch_may_change(tmp_path: Path) -> None:
    digests = open_digests(tmp_path)
    ids, small, large = np.arange(4), np.ones(8, np.float32), np.ones(1 << 15)
    for step in range(1, 9):
        digests.log(step, ids, [small] if step % 2 else [small, large])
        for array in (ids, small, large):
            array += 1
    digests.close()
    for step, row in read(tmp_path).steps.items():
        batch = np.arange(4) + step - 1, np.full(8, step, np.float32), np.full(1 << 15, float(step))
        content = batch[1].tobytes() + (b"" if step % 2 else batch[2].tobytes())
        assert row[:2] == (
            xxhash.xxh3_64_intdigest(batch[0].tobytes()), xxhash.xxh3_64_intdigest(content)
        )  # fmt: skip


def test_first_and_every_kth_step_is_recorded(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, 12, every=5)
    assert sorted(read(tmp_path).steps) == [1, 5, 10]


def test_later_start_replaces_steps(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, 70)
    before = read(tmp_path)
    write(tmp_path, 2, 40, 60)
    result = read(tmp_path)
    assert sorted(result.steps) == list(range(1, 61))
    assert result.steps == {step: before.steps[step] for step in range(1, 61)}
    assert sorted(result.states) == [0, 40, 50]
    assert result.facts["run_id"] == 2


def test_truncated_digests_are_read_but_not_damaged(tmp_path: Path) -> None:
    path = write(tmp_path, 1, 0, 3)
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        result = read_digests(tmp_path)
        assert result is None or result.steps == {}  # the rows are in the last frame
    for offset in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[offset] ^= 16
        path.write_bytes(damaged)
        with pytest.raises(LedgerError, match=r"is damaged at offset \d+: .*\n.*\n.*by replays"):
            read_digests(tmp_path)


def test_digest_file_of_other_version_is_rejected(tmp_path: Path) -> None:
    digests = open_digests(tmp_path)
    digests.describe(format=2)
    digests.log(1, [1])
    digests.close()
    with pytest.raises(LedgerError, match="written by another version of detcore"):
        read_digests(tmp_path)


def test_directory_without_digests(tmp_path: Path) -> None:
    assert read_digests(tmp_path) is None


def test_versions_do_not_import_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = types.ModuleType("lazy")
    lazy.__getattr__ = lambda name: pytest.fail(f"{name} was computed")  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    write(tmp_path, 1, 0, 1)
    assert "lazy" not in read(tmp_path).facts["versions"]


def test_full_disk_ends_only_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    digests = open_digests(tmp_path)
    digests.log(1, [1])
    digests.flush()
    write = os.write
    with open("/dev/full", "wb") as full:
        monkeypatch.setattr(os, "write", lambda _, content: write(full.fileno(), content))
        for step in (2, 3):
            digests.log(step, [step])
            digests.flush()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no space left for" in caplog.text
    digests.close()
    assert list(read(tmp_path).steps) == [1]
