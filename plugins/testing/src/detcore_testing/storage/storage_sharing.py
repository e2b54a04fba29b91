"""Clauses for storages: several users of one place: threads, processes and other handles."""

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
from detcore_testing.processes import forked, num_descriptors, wait_for_child
from detcore_testing.storage.storage_access import StorageAccess, write_files
from detcore_testing.suite_clauses import clause, expect_equal, unchanged_process

_RACERS = 6
_ROUNDS = 4
_WON, _LOST = 0, 1


class SharingClauses(StorageAccess):
    """Races, forks, descriptors and random generators."""

    @clause(
        "create-has-one-winning-thread",
        "if several threads create a key concurrently, exactly one succeeds, and its complete "
        "content is stored",
        capability="atomic-create",
    )
    def test_create_has_one_winning_thread(self, tmp_path: Path) -> None:
        """Let threads race, some rounds."""
        with self.opened(tmp_path) as storage, ThreadPoolExecutor(_RACERS) as pool:
            for turn in range(_ROUNDS):
                barrier = threading.Barrier(_RACERS)
                key = f"run/{turn}/marker"
                race = [
                    pool.submit(_create, storage, key, number, barrier.wait)
                    for number in range(_RACERS)
                ]
                winners = [number for number, it in enumerate(race) if it.result() == _WON]
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
            for turn in range(_ROUNDS):
                key = f"run/{turn}/marker"
                codes = self._race(tmp_path, key)
                assert set(codes) <= {_WON, _LOST}, f"the processes ended with codes {codes}"
                self._expect_winner(key, [n for n, code in enumerate(codes) if code == _WON])

    def _race(self, tmp_path: Path, key: str) -> list[int]:
        """Let processes create a key at one time; return their exit codes."""
        read_end, write_end = os.pipe()

        def race(number: int) -> int:
            os.close(write_end)
            storage = self.make_storage(tmp_path)
            return _create(storage, key, number, lambda: os.read(read_end, 1))

        pids = [forked(functools.partial(race, number)) for number in range(_RACERS)]
        os.close(read_end)
        os.close(write_end)  # they all continue when no process holds it any more
        return [wait_for_child(pid) for pid in pids]

    def _expect_winner(self, key: str, winners: list[int]) -> None:
        expect_equal(len(winners), 1, f"writers of {_RACERS} who believe that they created {key}")
        expect_equal(self.raw_read(key), _content(winners[0]), f"what is stored under {key}")

    @clause(
        "replace-is-atomic",
        "a reader sees the complete old or the complete new content while a file is replaced",
        capability="atomic-replace",
    )
    def test_replace_is_atomic(self, tmp_path: Path) -> None:
        """Read in one thread what another one replaces."""
        contents = [b"a" * 300_000, b"b" * 200_000]
        with self.opened(tmp_path) as storage:
            storage.replace("run/f", contents[0])
            over = threading.Event()

            def replace() -> None:
                try:
                    for turn in range(40):
                        storage.replace("run/f", contents[turn % 2])
                finally:
                    over.set()

            with ThreadPoolExecutor(1) as pool:
                writing = pool.submit(replace)
                while not over.is_set():
                    found = storage.read("run/f")
                    assert found in contents, f"a reader saw {len(found)} bytes of neither content"
                writing.result()

    @clause("threads-can-share-storage", "several threads can call methods concurrently")
    def test_threads_can_share_storage(self, tmp_path: Path) -> None:
        """Let each thread put, read, list and delete its own files."""

        def work(number: int) -> None:
            top = f"run-{number}"
            contents = {f"{top}/{index}": b"%d" % number * (index + 1) for index in range(12)}
            folder = tmp_path / f"thread-{number}"
            folder.mkdir()
            pairs = write_files(folder, contents)
            storage.put_tree(pairs)
            storage.create(f"{top}/marker", b"1")
            for key, data in contents.items():
                expect_equal(storage.read(key), data, f"what a thread read of {key!r}")
            found = [entry.key for entry in storage.list(top)]
            expect_equal(found, sorted([*contents, f"{top}/marker"]), "what a thread listed")
            storage.delete(list(contents))
            expect_equal(storage.list(top), [Entry(f"{top}/marker", 1)], "what a thread left")

        with self.opened(tmp_path) as storage, ThreadPoolExecutor(_RACERS) as pool:
            for done in [pool.submit(work, number) for number in range(_RACERS)]:
                done.result()
            self.expect_stored({f"run-{number}/marker": b"1" for number in range(_RACERS)})

    @clause(
        "forked-children-can-use-storage",
        "the storage works in a child forked after its first use, and in the parent afterwards",
        capability="fork-safe",
    )
    def test_forked_children_can_use_storage(self, tmp_path: Path) -> None:
        """Use it before, in, and after a child."""
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

            def child() -> None:
                expect_equal(storage.read("run/a"), b"parent", "what the child read")
                storage.replace("run/b", b"child")
                use_all()
                expect_equal(len(storage.list("run")), 3, "what the child listed")

            use_all()

            expect_equal(wait_for_child(forked(child)), 0, "the exit code of the child")
            expect_equal(storage.read("run/b"), b"child", "what the parent read afterwards")
            storage.delete_tree("run")

    @clause(
        "process-state-is-unchanged",
        "no method changes the working directory, the environment or the global random generators, "
        "or leaks a descriptor or thread with each call or handle",
    )
    def test_process_state_is_unchanged(self, tmp_path: Path) -> None:
        """Open, use and close it several times: training continues in the same process."""
        pairs = write_files(tmp_path, {f"run/{index}": b"x" * 1000 for index in range(5)})
        targets = [(tmp_path / "suite-got" / key, key) for _, key in pairs]

        def use(num_turns: int) -> None:
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
            for num_turns in (3, 3, 23, 3, 3):  # at first pools open the connections they need
                use(num_turns)
        for name, limit, numbers in zip(
            ("descriptors", "threads"), (15, 3), zip(*counts, strict=True), strict=True
        ):
            more = max(numbers[2:]) - max(numbers[:2])
            assert more < limit, f"{more} more {name} are open"


def _content(number: int) -> bytes:
    return b"%d" % number * 20_000


def _create(storage: StorageBackend, key: str, number: int, wait: Callable[[], object]) -> int:
    wait()
    try:
        storage.create(key, _content(number))
    except FileExistsError:
        with contextlib.suppress(FileNotFoundError):  # the winner's file may not be there yet
            found = storage.read(key)
            assert found in map(_content, range(_RACERS)), (
                f"who lost the race found {len(found)} bytes under {key}, which are not whole"
            )
        return _LOST
    return _WON
