"""The ledger: proofs, refutations, kill -9 and disk faults."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detcore.data import FrameKind, IdKind, IndexSampler, LedgerWriter, scan_frames
from detcore.data.ledger import pack_frame
from detcore.errors import DataError, LedgerError, StorageFullError
from detcore_replay import LedgerReport, verify_ledger
from detcore_replay.ledger_proof import _read_ids, _split_frame

NUM_RECORDS = 50
SAMPLER = IndexSampler(
    NUM_RECORDS, 8, shuffle=True, seed=1
)  # 7 batches per epoch, the last with 2 records


def open_writer(folder: Path, run_id: int = 1, start_step: int = 0) -> LedgerWriter:
    return LedgerWriter(folder / f"ledger-{run_id}.bin", run_id=run_id, start_step=start_step)


def write_run(
    folder: Path,
    run_id: int,
    *,
    start: int,
    stop: int,
    rank: int = 0,
    world_size: int = 1,
    joined: int = 0,
    change: Callable[[int, np.ndarray], np.ndarray] = lambda step, ids: ids,
) -> Path:
    """Log the batches of a `SAMPLER` run from step `start` to step `stop`.

    With `joined`, each frame has that many batches. Otherwise each batch has a frame.
    """
    name = f"ledger-{run_id}" + (f"-{rank}" if world_size > 1 else "") + ".bin"
    writer = LedgerWriter(
        folder / name, run_id=run_id, start_step=start, rank=rank, world_size=world_size
    )
    writer.describe(IdKind.RECORD_INDEX, num_records=NUM_RECORDS)
    sampler = IndexSampler(NUM_RECORDS, 8, shuffle=True, seed=1, rank=rank, world_size=world_size)
    for step in range(start + 1, stop + 1, joined or 1):
        if joined:
            ids, ends, epochs = sampler.joined_batches(step - 1, min(step - 1 + joined, stop))
            writer.log_batches(step, epochs, ends, change(step, ids))
        else:
            ids = sampler.batch(step - 1)
            writer.log(step, sampler.epoch(step - 1), change(step, ids))
            writer.flush()
    writer.close()
    return folder / name


# -- proofs ---------------------------------------------------------------------------------------


def test_complete_epochs_are_proved(tmp_path: Path) -> None:
    write_run(tmp_path, 1, start=0, stop=21)
    report = verify_ledger(tmp_path)
    assert report.is_proved
    assert report.sentence() == (
        "Proved (50 records): each of 3 complete epochs used every record once; "
        "none twice, none never."
    )
    assert [(e.epoch, e.num_records, e.num_twice, e.num_never) for e in report.epochs] == [
        (0, 50, 0, 0),
        (1, 50, 0, 0),
        (2, 50, 0, 0),
    ]


def test_joined_batches_are_read_like_single_frames(tmp_path: Path) -> None:
    """Calls with 10 steps, which start and end in the middle of epochs with 7 steps."""
    write_run(tmp_path, 1, start=0, stop=12)
    write_run(tmp_path, 2, start=10, stop=33, joined=10)
    for folder, size in ((tmp_path / "one", 0), (tmp_path / "joined", 10)):
        write_run(folder, 1, start=0, stop=12, joined=size)
        write_run(folder, 2, start=10, stop=33, joined=size)
    report = verify_ledger(tmp_path)
    assert report.is_proved
    assert report == verify_ledger(tmp_path / "one") == verify_ledger(tmp_path / "joined")
    assert (report.last_step, report.superseded_steps, len(report.epochs)) == (33, 2, 5)
    wrong = write_run(
        tmp_path, 3, start=33, stop=40, joined=7, change=lambda _, ids: ids[::-1] // 2
    )
    assert not verify_ledger(tmp_path).is_proved
    wrong.unlink()
    for rank in range(3):
        write_run(tmp_path / "ranks", 1, start=0, stop=9, rank=rank, world_size=3, joined=4)
    assert verify_ledger(tmp_path / "ranks").is_proved


def test_single_steps_are_joined_into_one_frame(tmp_path: Path) -> None:
    """A frame ends at a flush, a gap, a second epoch in a step, or a maximum size."""
    path = tmp_path / "ledger-1.bin"
    writer = open_writer(tmp_path)
    ids = np.arange(3)
    for step in (1, 2, 3):
        writer.log(step, 0, ids)
        ids += 10
    with pytest.raises(LedgerError, match="call it before log"):
        writer.describe(IdKind.RECORD_INDEX)
    writer.log(3, 1, [7])
    writer.log(4, 1, [])
    writer.log(6, 2, np.array([2**40, 5]))
    writer.flush()
    writer.log(7, 2, [8])
    size = path.stat().st_size
    writer.log(8, 2, np.arange(1 << 17))
    assert path.stat().st_size > size + (1 << 17)
    writer.close()
    frames = list(scan_frames(path, memoryview(path.read_bytes())))
    assert [frame.step for frame in frames] == [0, 1, 3, 6, 7]
    batches = [
        (batch.step, batch.epoch, _read_ids(batch).tolist())
        for frame in frames[1:]
        for batch in _split_frame(frame)
    ]
    assert batches[:-1] == [
        (1, 0, [0, 1, 2]), (2, 0, [10, 11, 12]), (3, 0, [20, 21, 22]), (3, 1, [7]), (4, 1, []),
        (6, 2, [2**40, 5]), (7, 2, [8]),
    ]  # fmt: skip
    assert batches[-1] == (8, 2, list(range(1 << 17)))


def test_later_ledger_format_is_rejected(tmp_path: Path) -> None:
    header = pack_frame(FrameKind.HEADER, 0, 0, b'{"format": 2}')
    (tmp_path / "ledger-1.bin").write_bytes(header)
    with pytest.raises(LedgerError, match="is not a data ledger that this release"):
        verify_ledger(tmp_path)


def test_steps_after_last_checkpoint_do_not_count(tmp_path: Path) -> None:
    write_run(tmp_path, 1, start=0, stop=12)
    write_run(tmp_path, 2, start=10, stop=16)
    write_run(tmp_path, 3, start=5, stop=14)  # an older checkpoint, because the newest was damaged
    report = verify_ledger(tmp_path)
    assert report.is_proved
    assert report.sentence().endswith("none twice, none never, across 2 restarts.")
    assert report.superseded_steps == 7 + 6
    assert (report.first_step, report.last_step, report.runs) == (1, 14, (1, 2, 3))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_kills_and_resumes_are_proved(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("chain")
    checkpoint, reached = 0, 0
    for run_id in range(1, data.draw(st.integers(2, 6))):
        reached = data.draw(st.integers(checkpoint + 1, checkpoint + 15))
        write_run(folder, run_id, start=checkpoint, stop=reached)
        checkpoint = data.draw(st.integers(checkpoint, reached))
    report = verify_ledger(folder)
    assert report.is_proved
    assert report.last_step == reached


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_single_mistake_in_epoch_is_found(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One id in one batch is replaced: one record occurs twice and one record never."""
    folder = tmp_path_factory.mktemp("mistake")
    wrong_step = data.draw(st.integers(1, 14))
    other = data.draw(st.integers(1, NUM_RECORDS - 1))

    def change(step: int, ids: np.ndarray) -> np.ndarray:
        return (
            np.where(np.arange(len(ids)) == 0, (ids + other) % NUM_RECORDS, ids)
            if (step == wrong_step)
            else ids
        )

    write_run(folder, 1, start=0, stop=15, change=change)
    report = verify_ledger(folder)
    assert not report.is_proved
    epoch = report.epochs[(wrong_step - 1) // 7]
    assert (epoch.num_twice, epoch.num_never) == (1, 1)
    first = int(SAMPLER.batch(wrong_step - 1)[0])
    assert epoch.examples == ((first + other) % NUM_RECORDS, first)
    assert report.sentence() == (
        "Refuted: 1 of the uses repeat a record within its epoch, and 1 record was never used in "
        "theirs."
    )


def test_restarted_epoch_is_refuted(tmp_path: Path) -> None:
    """A common fault of other systems: a resumed run restarts its data at batch 0."""
    write_run(tmp_path, 1, start=0, stop=4)
    writer = open_writer(tmp_path, 2, 4)
    writer.describe(IdKind.RECORD_INDEX, num_records=NUM_RECORDS)
    for step in range(5, 8):
        writer.log(step, 0, SAMPLER.batch(step - 5))
    writer.log(8, 1, SAMPLER.batch(7))
    writer.close()
    report = verify_ledger(tmp_path)
    assert (report.epochs[0].num_twice, report.epochs[0].num_never) == (24, 50 - 32)
    assert not report.is_proved


def test_repeated_record_in_partial_epoch_is_refuted(tmp_path: Path) -> None:
    write_run(tmp_path, 1, start=0, stop=3, change=lambda step, ids: SAMPLER.batch(0))
    report = verify_ledger(tmp_path)
    assert report.epochs[0].num_twice == 16
    assert report.epochs[0].num_never is None
    assert not report.is_proved


def test_ledgers_of_ranks_are_combined(tmp_path: Path) -> None:
    for rank in range(3):
        write_run(tmp_path, 1, start=0, stop=9, rank=rank, world_size=3)
    report = verify_ledger(tmp_path)  # 27 batches: three epochs and six batches
    assert report.is_proved
    assert [epoch.is_complete for epoch in report.epochs] == [True, True, True, False]
    for rank in range(2):  # a run that was killed before its third rank wrote a ledger
        write_run(tmp_path, 2, start=9, stop=12, rank=rank, world_size=3)
    report = verify_ledger(tmp_path)
    assert (report.missing_steps, report.is_proved) == (3, False)
    for rank in range(3):
        write_run(tmp_path, 3, start=9, stop=12, rank=rank, world_size=3)
    assert verify_ledger(tmp_path).is_proved
    for path in tmp_path.glob("ledger-*-1.bin"):
        path.unlink()
    with pytest.raises(LedgerError, match=r"ledger of rank \[1\] of 3"):
        verify_ledger(tmp_path)


def test_content_hashes_of_workers_are_rejected(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path / "ledger-1-0.bin", run_id=1, start_step=0, world_size=2)
    with pytest.raises(LedgerError, match=r"(?s)has 2 workers.*whose records have no indices"):
        writer.describe(IdKind.CONTENT_HASH)


def test_steps_without_ledger_are_not_proved(tmp_path: Path) -> None:
    write_run(tmp_path, 1, start=0, stop=10)
    report = verify_ledger(tmp_path, reported_steps={1: 12})
    assert report.missing_steps == 2
    assert report.sentence() == "Not proved: 2 of the steps 1 to 12 are in no ledger."
    assert not report.is_proved
    assert verify_ledger(tmp_path, reported_steps={1: 10}).is_proved
    # A killed run may have reported steps that its successor did not reach again.
    write_run(tmp_path, 2, start=7, stop=9)
    assert verify_ledger(tmp_path, reported_steps={1: 10, 2: 9}).is_proved
    # The ledger of a run after the newest ledger is lost.
    assert verify_ledger(tmp_path, reported_steps={3: 30}).missing_steps == 21


def test_dropped_last_batch_is_accepted(tmp_path: Path) -> None:
    sampler = IndexSampler(NUM_RECORDS, 8, shuffle=True, seed=1, drop_last=True)
    writer = open_writer(tmp_path)
    writer.describe(IdKind.RECORD_INDEX, num_records=NUM_RECORDS, left_over=sampler.left_over)
    for step in range(1, 13):
        writer.log(step, sampler.epoch(step - 1), sampler.batch(step - 1))
    writer.close()
    report = verify_ledger(tmp_path)
    assert report.is_proved
    assert "each of 2 complete epochs used every record but the 2 it drops once" in (
        report.sentence()
    )


def test_id_outside_of_data_is_rejected(tmp_path: Path) -> None:
    write_run(tmp_path, 1, start=0, stop=7, change=lambda step, ids: ids + 1)
    with pytest.raises(LedgerError, match="used ids from 1 to 50, but the data set has 50"):
        verify_ledger(tmp_path)


# -- content hashes -------------------------------------------------------------------------------


def hashes(ids: np.ndarray) -> np.ndarray:
    """64-bit ids, mostly above 2**63. Records 40 to 49 equal records 0 to 9."""
    scrambled: np.ndarray = np.multiply(
        ids % 40, 0x9E3779B97F4A7C15, dtype=np.uint64, casting="unsafe"
    )
    return scrambled


def write_hashes(folder: Path, *, census: np.ndarray | None, skip: int | None = None) -> None:
    writer = open_writer(folder)
    writer.describe(IdKind.CONTENT_HASH)
    if census is not None:
        for part in np.array_split(census, 3):
            writer.census(part)
    for step in range(1, 16):
        ids = SAMPLER.batch(step - 1)
        selected = ids[ids != skip] if skip is not None else ids
        writer.log(step, (step - 1) // 7, hashes(selected))
    writer.close()


def test_hashes_are_compared_as_multiset(tmp_path: Path) -> None:
    write_hashes(tmp_path, census=hashes(np.arange(NUM_RECORDS)))
    report = verify_ledger(tmp_path)
    assert report.is_proved
    assert report.num_records == 50
    assert report.ids is IdKind.CONTENT_HASH


@pytest.mark.parametrize("skip", [3, 43, 20])
def test_omitted_duplicate_record_is_found(tmp_path: Path, skip: int) -> None:
    write_hashes(tmp_path, census=hashes(np.arange(NUM_RECORDS)), skip=skip)
    report = verify_ledger(tmp_path)
    assert [epoch.num_never for epoch in report.epochs] == [1, 1, None]
    assert report.epochs[0].examples == (int(hashes(np.array([skip])).view(np.int64)[0]),)


def test_record_outside_census_is_found(tmp_path: Path) -> None:
    write_hashes(tmp_path, census=hashes(np.arange(1, NUM_RECORDS)))
    report = verify_ledger(tmp_path)
    assert (
        report.epochs[0].num_twice == 1
    )  # records 0 and 40 are equal, but the census has only one record
    assert not report.is_proved


def test_hashes_without_census_are_not_proved(tmp_path: Path) -> None:
    write_hashes(tmp_path, census=None)
    report = verify_ledger(tmp_path)
    assert not report.is_proved
    # Without a census, equal records cannot be distinguished from repeated records.
    assert report.epochs[0].num_twice == 10


def test_ledger_without_record_list_is_not_proved(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    writer.log(1, 0, [1, 2, 3])
    writer.close()
    report = verify_ledger(tmp_path)
    assert not report.is_proved
    assert report.sentence().startswith(
        "Not proved: no record was used twice, but the ledger does not"
    )


def test_runs_with_different_data_are_rejected(tmp_path: Path) -> None:
    for run_id, size in ((1, 5), (2, 6)):
        writer = open_writer(tmp_path, run_id, run_id)
        writer.describe(IdKind.CONTENT_HASH)
        writer.census(np.arange(size))
        writer.log(run_id + 1, 0, [1])
        writer.close()
    with pytest.raises(LedgerError, match="run 2 found other records in the data set"):
        verify_ledger(tmp_path)
    writer = open_writer(tmp_path, 3)
    writer.describe(IdKind.SEQUENCE_ITEM, num_records=5)
    writer.log(1, 0, [1])
    writer.close()
    with pytest.raises(LedgerError, match=r"belong to different data: ids is .*item index"):
        verify_ledger(tmp_path)


# -- kill -9, full disks, damage ------------------------------------------------------------------

KILLED = """
    import os, signal, sys
    from pathlib import Path
    from detcore.data import IdKind, IndexSampler, LedgerWriter

    folder, run_id, start, flushed, logged = Path(sys.argv[1]), *map(int, sys.argv[2:])
    sampler = IndexSampler(50, 8, shuffle=True, seed=1)
    writer = LedgerWriter(folder / f"ledger-{run_id}.bin", run_id=run_id, start_step=start)
    writer.describe(IdKind.RECORD_INDEX, num_records=50)
    for step in range(start + 1, logged + 1):
        writer.log(step, sampler.epoch(step - 1), sampler.batch(step - 1))
        if step == flushed:
            writer.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def run_until_killed(folder: Path, *numbers: int) -> None:
    script = textwrap.dedent(KILLED)
    result = subprocess.run(
        [sys.executable, "-c", script, str(folder), *map(str, numbers)], timeout=60
    )
    assert result.returncode == -signal.SIGKILL


def test_flushed_batches_survive_kill_9(tmp_path: Path) -> None:
    run_until_killed(tmp_path, 1, 0, 10, 13)
    assert verify_ledger(tmp_path).last_step == 10
    run_until_killed(tmp_path, 2, 5, 0, 9)  # never flushed, so no file exists
    run_until_killed(tmp_path, 3, 5, 21, 25)
    report = verify_ledger(tmp_path, reported_steps={1: 10, 3: 21})
    assert report.is_proved
    assert report.sentence() == (
        "Proved (50 records): each of 3 complete epochs used every record once; "
        "none twice, none never, across 1 restart."
    )


def _verify_if_any(folder: Path) -> LedgerReport | None:
    try:
        return verify_ledger(folder)
    except LedgerError as error:
        if "does not contain a data ledger" in str(error):
            return None
        raise


@pytest.mark.parametrize("joined", [0, 2])
def test_truncated_file_loses_only_last_frame(tmp_path: Path, joined: int) -> None:
    """Every file length that kill -9 during a write can leave."""
    content = write_run(tmp_path, 1, start=0, stop=3, joined=joined).read_bytes()
    lengths = {}
    for length in range(len(content) + 1):
        (tmp_path / "ledger-1.bin").write_bytes(content[:length])
        report = _verify_if_any(tmp_path)
        lengths[length] = -1 if report is None else report.last_step
        assert report is None or report.epochs == () or report.is_proved
    assert list(lengths.values()) == sorted(lengths.values())
    assert set(lengths.values()) == ({-1, 0, 2, 3} if joined else {-1, 0, 1, 2, 3})


@pytest.mark.parametrize("joined", [0, 2])
def test_changed_byte_is_reported_with_offset(tmp_path: Path, joined: int) -> None:
    path = write_run(tmp_path, 1, start=0, stop=3, joined=joined)
    content = path.read_bytes()
    for offset in range(len(content)):
        damaged = bytearray(content)
        damaged[offset] ^= 0x41
        path.write_bytes(damaged)
        pattern = rf"{re.escape(str(path))} is damaged at offset (\d+): .*"
        with pytest.raises(LedgerError, match=pattern) as caught:
            verify_ledger(tmp_path)
        match = re.search(r"offset (\d+)", str(caught.value))
        assert match is not None
        assert int(match[1]) <= offset < int(match[1]) + 40 + 300


def test_full_disk_keeps_complete_frames(tmp_path: Path) -> None:
    """A file size limit simulates a full disk: a short write, then an error."""
    script = f"""
        import resource, signal, sys
        from pathlib import Path
        from detcore.data import LedgerWriter
        from detcore.errors import StorageFullError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        import errno, os
        writer = LedgerWriter(Path({str(tmp_path / "ledger-1.bin")!r}), run_id=1, start_step=0)
        writer.log(1, 0, range(100))
        writer.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, resource.RLIM_INFINITY))
        writer.log(2, 0, range(100, 200))
        try:
            writer.flush()
        except OSError as error:
            assert error.errno == errno.EFBIG, error
        else:
            sys.exit("the limit did not hold")
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        writer.log(3, 0, range(200, 210))
        writer.close()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)
    report = verify_ledger(tmp_path)
    assert (report.last_step, report.missing_steps) == (3, 0)
    assert report.epochs[0].num_records == 210


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_full_disk_raises_storage_full_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_writer(tmp_path)
    writer.log(1, 0, range(100))
    writer.flush()
    full = os.open("/dev/full", os.O_WRONLY)
    write = os.write
    monkeypatch.setattr(os, "write", lambda _, content: write(full, content))
    writer.log(2, 0, range(100))
    with pytest.raises(
        StorageFullError, match=r"no space left for 272 more bytes of the data"
    ) as caught:
        writer.flush()
    assert caught.value.missing_bytes == 272
    monkeypatch.undo()
    os.close(full)
    writer.close()
    assert verify_ledger(tmp_path).last_step == 2


# -- misuse ---------------------------------------------------------------------------------------


def test_missing_ledger_names_setting(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"does not contain a data ledger.*\n.*data_ledger: true"):
        verify_ledger(tmp_path)


def test_steps_start_at_one_and_increase(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, start_step=5)
    with pytest.raises(DataError, match="step 5 is logged after step 5 in a run that started at"):
        writer.log(5, 0, [1])
    writer.log(6, 0, [1])
    writer.log(6, 1, [2])  # a batch that spans two epochs
    with pytest.raises(DataError, match="step 4 is logged after step 6"):
        writer.log(4, 0, [1])
    writer.log_batches(6, [1, 2], [1, 3], [3, 1, 2])
    with pytest.raises(DataError, match="step 6 is logged after step 7"):
        writer.log_batches(6, 2, [1], [1])
    with pytest.raises(DataError, match=r"the batches end at \[2\], but there are 3 ids"):
        writer.log_batches(8, 2, [1, 2], [1, 2, 3])


def test_ids_are_integers(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    with pytest.raises(DataError, match="integers of at most 64 bits, got float64"):
        writer.log(1, 0, [0.5])


def test_second_writer_of_ledger_is_rejected(tmp_path: Path) -> None:
    write_run(tmp_path, 1, start=0, stop=3)
    writer = open_writer(tmp_path)
    writer.log(1, 0, [1])
    with pytest.raises(LedgerError, match="exists already"):
        writer.flush()


def test_writer_constructor_does_no_io(tmp_path: Path) -> None:
    LedgerWriter(tmp_path / "deep" / "ledger-1.bin", run_id=1, start_step=0).close()
    assert list(tmp_path.iterdir()) == []
