"""Storage clauses on threads, processes and several handles of one location."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from detcore.storage import Entry, StorageBackend
from detcore_testing.processes import fork_call, num_descriptors, wait_for_child
from detcore_testing.storage.storage_access import StorageAccess, write_files
from detcore_testing.suite_clauses import clause, expect_equal, unchanged_process

_NUM_RACERS = 6
_NUM_ROUNDS = 4
_WON, _LOST = 0, 1


class SharingClauses(StorageAccess):
    """Clauses on races, forks, descriptors and random generators."""

    @clause(
        "create-has-one-winning-thread",
        "if several threads create a key concurrently, exactly one succeeds, and its complete "
        "content is stored",
        capability="atomic-create",
    )
    def test_create_has_one_winning_thread(self, tmp_path: Path) -> None:
        """Let threads race in several rounds."""
        with self.opened(tmp_path) as storage, ThreadPoolExecutor(_NUM_RACERS) as pool:
            for turn in range(_NUM_ROUNDS):
                barrier = threading.Barrier(_NUM_RACERS)
                key = f"run/{turn}/marker"
                race = [
                    pool.submit(_try_create, storage, key, number, barrier.wait)
                    for number in range(_NUM_RACERS)
                ]
                winners = [number for number, future in enumerate(race) if future.result() == _WON]
                self._expect_winner(key, winners)

    @clause(
        "create-has-one-winning-process",
        "if several processes create a key concurrently, exactly one succeeds",
        capability="fork-safe",
    )
    def test_create_has_one_winning_process(self, tmp_path: Path) -> None:
        """Let forked processes race, each with its own handle."""
        if "atomic-create" in self.declined:
            pytest.skip(f"atomic-create is declined: {self.declined['atomic-create']}")
        with self.opened(tmp_path):
            for turn in range(_NUM_ROUNDS):
                key = f"run/{turn}/marker"
                codes = self._race_processes(tmp_path, key)
                assert set(codes) <= {_WON, _LOST}, f"the processes exited with codes {codes}"
                self._expect_winner(key, [n for n, code in enumerate(codes) if code == _WON])

    def _race_processes(self, tmp_path: Path, key: str) -> list[int]:
        """Let processes create a key concurrently, and return their exit codes."""
        read_end, write_end = os.pipe()

        def run_racer(number: int) -> int:
            os.close(write_end)
            storage = self.make_storage(tmp_path)
            return _try_create(storage, key, number, lambda: os.read(read_end, 1))

        pids = [fork_call(functools.partial(run_racer, number)) for number in range(_NUM_RACERS)]
        os.close(read_end)
        os.close(write_end)  # all racers continue when the last write end is closed
        return [wait_for_child(pid) for pid in pids]

    def _expect_winner(self, key: str, winners: list[int]) -> None:
        expect_equal(len(winners), 1, f"the number of {_NUM_RACERS} writers that created {key}")
        expect_equal(
            self.raw_read(key), _make_content(winners[0]), f"the content stored under {key}"
        )

    @clause(
        "replace-is-atomic",
        "a reader sees the complete old or the complete new content while a file is replaced",
        capability="atomic-replace",
    )
    def test_replace_is_atomic(self, tmp_path: Path) -> None:
        """Read a file in one thread while another thread replaces it."""
        contents = [b"a" * 300_000, b"b" * 200_000]
        with self.opened(tmp_path) as storage:
            storage.replace("run/f", contents[0])
            is_done = threading.Event()

            def replace_repeatedly() -> None:
                try:
                    for turn in range(40):
                        storage.replace("run/f", contents[turn % 2])
                finally:
                    is_done.set()

            with ThreadPoolExecutor(1) as pool:
                writer = pool.submit(replace_repeatedly)
                while not is_done.is_set():
                    content = storage.read("run/f")
                    assert content in contents, f"a reader saw {len(content)} bytes of neither file"
                writer.result()

    @clause("threads-can-share-storage", "several threads can call methods concurrently")
    def test_threads_can_share_storage(self, tmp_path: Path) -> None:
        """Let each thread put, read, list and delete separate files."""

        def use_storage(number: int) -> None:
            top = f"run-{number}"
            contents = {f"{top}/{index}": b"%d" % number * (index + 1) for index in range(12)}
            folder = tmp_path / f"thread-{number}"
            folder.mkdir()
            pairs = write_files(folder, contents)
            storage.put_tree(pairs)
            storage.create(f"{top}/marker", b"1")
            for key, data in contents.items():
                expect_equal(storage.read(key), data, f"the content a thread read from {key!r}")
            keys = [entry.key for entry in storage.list(top)]
            expect_equal(keys, sorted([*contents, f"{top}/marker"]), "the keys a thread listed")
            storage.delete(list(contents))
            expect_equal(storage.list(top), [Entry(f"{top}/marker", 1)], "the files of a thread")

        with self.opened(tmp_path) as storage, ThreadPoolExecutor(_NUM_RACERS) as pool:
            for future in [pool.submit(use_storage, number) for number in range(_NUM_RACERS)]:
                future.result()
            self.expect_stored({f"run-{number}/marker": b"1" for number in range(_NUM_RACERS)})

    @clause(
        "forked-children-can-use-storage",
        "the storage works in a child forked after its first use, and in the parent afterwards",
        capability="fork-safe",
    )
    def test_forked_children_can_use_storage(self, tmp_path: Path) -> None:
        """Use the storage before the fork, in the child, and after the child has exited."""
        with self.opened(tmp_path) as storage:
            storage.replace("run/a", b"parent")
            pairs = write_files(tmp_path, {"run/put": b"put"})
            targets = [(tmp_path / "suite-got", "run/put")]

            def use_all() -> None:
                storage.put_tree(pairs)
                storage.get_tree(targets)
                storage.digest_tree(["run/put"])
                storage.read("run/a")
                storage.list("run")

            def run_child() -> None:
                expect_equal(storage.read("run/a"), b"parent", "the content that the child read")
                storage.replace("run/b", b"child")
                use_all()
                expect_equal(len(storage.list("run")), 3, "the number of files the child listed")

            use_all()

            expect_equal(wait_for_child(fork_call(run_child)), 0, "the exit code of the child")
            expect_equal(storage.read("run/b"), b"child", "the content the parent read")
            storage.delete_tree("run")

    @clause(
        "process-state-is-unchanged",
        "no method changes the working directory, the environment or the global random generators, "
        "or leaks a descriptor or thread with each call or handle",
    )
    def test_process_state_is_unchanged(self, tmp_path: Path) -> None:
        """Open, use and close the storage several times, as during training."""
        pairs = write_files(tmp_path, {f"run/{index}": b"x" * 1000 for index in range(5)})
        targets = [(tmp_path / "suite-got" / key, key) for _, key in pairs]

        def use_storage(num_turns: int) -> None:
            with self.opened(tmp_path) as storage:
                for _ in range(num_turns):
                    storage.put_tree(pairs)
                    storage.get_tree(targets)
                    storage.digest_tree([key for _, key in pairs])
                    storage.replace("run/marker", b"1")
                    storage.read("run/marker")
                    storage.list("run")
                storage.probe()
                storage.create("run/other", b"1")
                storage.delete_tree("run")
                counts.append((num_descriptors(), threading.active_count()))

        counts: list[tuple[int, int]] = []
        with unchanged_process():
            for num_turns in (3, 3, 23, 3, 3):  # connection pools are filled by the first calls
                use_storage(num_turns)
        for name, limit, numbers in zip(
            ("descriptors", "threads"), (15, 3), zip(*counts, strict=True), strict=True
        ):
            num_extra = max(numbers[2:]) - max(numbers[:2])
            assert num_extra < limit, f"{num_extra} additional {name} are open"


def _make_content(number: int) -> bytes:
    return b"%d" % number * 20_000


def _try_create(storage: StorageBackend, key: str, number: int, wait: Callable[[], object]) -> int:
    wait()
    try:
        storage.create(key, _make_content(number))
    except FileExistsError:
        with contextlib.suppress(FileNotFoundError):  # the winner's file may not exist yet
            content = storage.read(key)
            assert content in map(_make_content, range(_NUM_RACERS)), (
                f"a loser of the race read {len(content)} incomplete bytes from {key}"
            )
        return _LOST
    return _WON
