"""Clauses for storages: files that are put are stored unchanged, and come back unchanged."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from detcore.storage import Pair, Progress, digest_bytes
from detcore_testing.clauses import clause, expect, expect_equal, expect_error
from detcore_testing.storage.storage_access import StorageAccess, write_files

_FILES = {
    "run/empty.bin": b"",
    "run/one": b"\0",
    "run/text.txt": b"a\r\nb\n\xff\xfe",
    "run/deep/er/and/deeper/still": bytes(range(256)) * 40,
    "run/with space, \u00fcmlaut and 100%41": b"name",
    "run/[1]*?.txt": b"a name that is no pattern",
    "run/middle.bin": bytes(range(251)) * 5000,
}


def _targets(tmp_path: Path, pairs: list[Pair]) -> list[Pair]:
    folder = tmp_path / "suite-got"
    return [(folder / str(index) / "file", key) for index, (_, key) in enumerate(pairs)]


class MovingClauses(StorageAccess):
    """`put_tree`, `get_tree`, `digest_tree`, `create`, `replace` and `read` of one user."""

    @clause(
        "put-stores-what-is-there",
        "put_tree stores each file byte for byte under its key, and leaves the local file as it is",
    )
    def test_put_stores_what_is_there(self, tmp_path: Path) -> None:
        """Compare with the content that the raw accessors read."""
        pairs = write_files(tmp_path, _FILES)
        with self.opened(tmp_path) as storage:
            storage.put_tree(pairs)
            storage.put_tree([])
            self.expect_stored(_FILES)
            for path, key in pairs:
                found = path.read_bytes() if path.is_file() else None
                expect_equal(found, _FILES[key], "a local file after put_tree")

    @clause("put-replaces", "put_tree replaces what is stored under its keys, longer or shorter")
    def test_put_replaces(self, tmp_path: Path) -> None:
        """Put other contents of other sizes over stored ones."""
        with self.opened(tmp_path) as storage:
            for contents in (
                {"a": b"long" * 999, "b/c": b"1"},
                {"a": b"LONG" * 999, "b/c": b"2"},  # of the same size
                {"a": b"", "b/c": b"22"},
            ):
                storage.put_tree(write_files(tmp_path, contents))
                self.expect_stored(contents)

    @clause(
        "absent-sources-are-errors",
        "put_tree of a local file that does not exist raises; nothing is stored for it",
    )
    def test_absent_sources_are_errors(self, tmp_path: Path) -> None:
        """Put one beside a file that is there, and instead of one that is stored."""
        (pair,) = write_files(tmp_path, {"run/there": b"1"})
        absent = tmp_path / "suite-files" / "absent"
        with self.opened(tmp_path) as storage:
            self.raw_write("run/kept", b"before")
            for key in ("run/absent", "run/kept"):
                with expect_error(Exception, f"put_tree of an absent file to {key!r}"):
                    storage.put_tree([pair, (absent, key)])
            expect_equal(self.raw_read("run/absent"), None, "what is stored for an absent file")

    @clause("get-brings-what-is-there", "get_tree writes what is stored, and makes the folders")
    def test_get_brings_what_is_there(self, tmp_path: Path) -> None:
        """Get files that only the raw accessors wrote."""
        with self.opened(tmp_path) as storage:
            for key, data in _FILES.items():
                self.raw_write(key, data)
            targets = _targets(tmp_path, [(tmp_path, key) for key in _FILES])
            storage.get_tree(targets)
            for path, key in targets:
                expect_equal(path.read_bytes(), _FILES[key], f"the file that {key!r} went to")
            storage.get_tree(targets[:1])  # over the one that is there

    @clause("get-overwrites", "get_tree replaces the local files that are there, longer or shorter")
    def test_get_overwrites(self, tmp_path: Path) -> None:
        """Get files to where there are others: longer, shorter, and of the same size."""
        got = tmp_path / "suite-got"
        got.mkdir()
        data = b"what is stored"
        with self.opened(tmp_path) as storage:
            self.raw_write("run/a", data)
            for size in (3 * len(data), len(data), 0):
                (got / "a").write_bytes(b"x" * size)
                storage.get_tree([(got / "a", "run/a")])
                expect_equal(
                    (got / "a").read_bytes(), data, f"what came over a local file of {size} bytes"
                )

    @clause("digests-are-right", "put_tree, get_tree and digest_tree tell size and digest by key")
    def test_digests_are_right(self, tmp_path: Path) -> None:
        """Compare with digests that are made here."""
        pairs = write_files(tmp_path, _FILES)
        wanted = {key: digest_bytes(data) for key, data in _FILES.items()}
        with self.opened(tmp_path) as storage:
            expect_equal(storage.put_tree(pairs), wanted, "what put_tree returned")
            targets = _targets(tmp_path, pairs)
            expect_equal(storage.get_tree(targets), wanted, "what get_tree returned")
            expect_equal(storage.digest_tree(list(_FILES)), wanted, "what digest_tree returned")
            found = storage.digest_tree(list(_FILES), make_durable=True)
            expect_equal(found, wanted, "what digest_tree(make_durable=True) returned")
            expect_equal(storage.digest_tree([]), {}, "the digests of no keys")

    @clause("digests-are-of-what-is-stored", "digest_tree reads what is stored now")
    def test_digests_are_of_what_is_stored(self, tmp_path: Path) -> None:
        """Change a byte behind the storage's back."""
        with self.opened(tmp_path) as storage:
            storage.put_tree(write_files(tmp_path, {"run/a": b"aaaa"}))
            self.raw_write("run/a", b"aaba")
            found = storage.digest_tree(["run/a"])["run/a"]
            expect_equal(found, digest_bytes(b"aaba"), "the digest of a changed file")

    @clause("large-files-come-back", "a file of many parts comes back as it was")
    def test_large_files_come_back(self, tmp_path: Path) -> None:
        """Put and get one large file beside small ones."""
        data = random.Random(7).randbytes(self.large_bytes + 1)
        pairs = write_files(tmp_path, {"run/small": b"1", "run/large": data, "run/none": b""})
        targets = _targets(tmp_path, pairs)
        with self.opened(tmp_path) as storage:
            put = storage.put_tree(pairs)
            expect_equal(put["run/large"], digest_bytes(data), "the digest of a large file")
            expect(self.raw_read("run/large") == data, "the large file is not stored as it was")
            expect_equal(storage.get_tree(targets), put, "the digests of what came back")
            expect(targets[1][0].read_bytes() == data, "the large file came back changed")

    @clause("many-files-come-back", "many files at once come back, none lost and none exchanged")
    def test_many_files_come_back(self, tmp_path: Path) -> None:
        """Put and get files each of which differs from all others."""
        contents = {f"run/{i % 7}/{i}": b"%d " % i * (i % 50) for i in range(self.num_files)}
        pairs = write_files(tmp_path, contents)
        targets = _targets(tmp_path, pairs)
        with self.opened(tmp_path) as storage:
            storage.put_tree(pairs)
            expect_equal(sorted(self.raw_list()), sorted(contents), "the stored keys")
            storage.get_tree(targets)
            for path, key in targets:
                expect_equal(path.read_bytes(), contents[key], f"the file that {key!r} went to")

    @clause("create-stores", "create stores the bytes that it is given, also none")
    def test_create_stores(self, tmp_path: Path) -> None:
        """Create files beside and below each other."""
        contents = {
            "marker": b"", "run/marker": b"\0\xff\r\n" * 50_000, "run/1/marker": b"x\r\n\n",
        }  # fmt: skip
        with self.opened(tmp_path) as storage:
            for key, data in contents.items():
                storage.create(key, data)
                expect_equal(storage.read(key), data, f"what was read of {key!r}")
            self.expect_stored(contents)

    @clause("create-refuses-what-exists", "create raises FileExistsError and changes nothing")
    def test_create_refuses_what_exists(self, tmp_path: Path) -> None:
        """Create over files of each origin."""
        contents = {"a/created": b"first", "a/put": b"put", "a/raw": b"raw", "a/empty": b""}
        with self.opened(tmp_path) as storage:
            storage.create("a/created", b"first")
            storage.put_tree(write_files(tmp_path, {"a/put": b"put"}))
            self.raw_write("a/raw", b"raw")
            self.raw_write("a/empty", b"")
            for key in contents:
                with expect_error(FileExistsError, f"create({key!r}), which exists,"):
                    storage.create(key, b"second")
            self.expect_stored(contents)

    @clause("replace-overwrites", "replace stores the bytes whether there was a file or not")
    def test_replace_overwrites(self, tmp_path: Path) -> None:
        """Replace by shorter, longer and empty contents."""
        with self.opened(tmp_path) as storage:
            for data in (b"a long first content", b"second", b"", b"and the last"):
                storage.replace("run/marker", data)
                expect_equal(storage.read("run/marker"), data, "what was read after a replace")
                self.expect_stored({"run/marker": data})

    @clause(
        "absent-keys-are-errors",
        "what does not exist is a FileNotFoundError; get_tree makes no local file for it",
    )
    def test_absent_keys_are_errors(self, tmp_path: Path) -> None:
        """Ask for absent keys, alone and among others."""
        got = tmp_path / "suite-got"
        there = {f"run/{index}": b"x" for index in range(4)}
        keys = [*there, "run/absent"]
        with self.opened(tmp_path) as storage:
            with expect_error(FileNotFoundError, "read of an absent key in an empty storage"):
                storage.read("run/absent")
            storage.put_tree(write_files(tmp_path, there))
            with expect_error(FileNotFoundError, "read of a prefix"):
                storage.read("ru")
            for asked in (["run/absent"], keys):
                with expect_error(FileNotFoundError, f"get_tree of {asked}"):
                    storage.get_tree([(got / key, key) for key in asked])
                expect(not (got / "run/absent").exists(), "an absent key left a file behind")
                with expect_error(FileNotFoundError, f"digest_tree of {asked}"):
                    storage.digest_tree(asked)
            self.expect_stored(there)

    @clause(
        "progress-counts-bytes-once",
        "progress is told of every byte once, and several times within a large file unless "
        "byte-progress is declined",
    )
    def test_progress_counts_bytes_once(self, tmp_path: Path) -> None:
        """Add up the bytes reported to `progress`."""
        contents = {**_FILES, "run/large": bytes(self.large_bytes)}
        pairs = write_files(tmp_path, contents)
        total = sum(map(len, contents.values()))
        with self.opened(tmp_path) as storage:
            put, get, digest = storage.put_tree, storage.get_tree, storage.digest_tree
            targets = _targets(tmp_path, pairs)
            calls: list[tuple[str, Callable[[Progress], object]]] = [
                ("put_tree", lambda tell: put(pairs, progress=tell)),
                ("get_tree", lambda tell: get(targets, progress=tell)),
                ("digest_tree", lambda tell: digest(list(contents), progress=tell)),
            ]
            for what, move in calls:
                moved: list[int] = []
                move(moved.append)
                expect_equal(sum(moved), total, f"the bytes that {what} told of")
                expect(min(moved) >= 0, f"{what} told of a negative number of bytes")
                expect(
                    "byte-progress" in self.declined or max(moved) < self.large_bytes,
                    f"{what} told of {self.large_bytes} bytes all at once",
                )
