"""Storage clauses on unchanged transfer of files."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from detcore.storage import Pair, Progress, digest_bytes
from detcore_testing.storage.storage_access import StorageAccess, write_files
from detcore_testing.suite_clauses import clause, expect_equal, expect_error

_FILES = {
    "run/empty.bin": b"",
    "run/one": b"\0",
    "run/text.txt": b"a\r\nb\n\xff\xfe",
    "run/deep/er/and/deeper/still": bytes(range(256)) * 40,
    "run/with space, \u00fcmlaut and 100%41": b"name",
    "run/[1]*?.txt": b"a name that is not a pattern",
    "run/middle.bin": bytes(range(251)) * 5000,
}
_DIGESTS = {key: digest_bytes(data) for key, data in _FILES.items()}


def _make_targets(tmp_path: Path, pairs: list[Pair]) -> list[Pair]:
    folder = tmp_path / "suite-got"
    return [(folder / str(index) / "file", key) for index, (_, key) in enumerate(pairs)]


class MovingClauses(StorageAccess):
    """Clauses on `put_tree`, `get_tree`, `digest_tree` and `read` with one user."""

    @clause(
        "put-stores-source-content",
        "put_tree stores each file byte for byte under its key, returns sizes and digests, and "
        "leaves the local file unchanged",
    )
    def test_put_stores_source_content(self, tmp_path: Path) -> None:
        """Compare with the content that the raw accessors read."""
        pairs = write_files(tmp_path, _FILES)
        with self.opened(tmp_path) as storage:
            expect_equal(storage.put_tree(pairs), _DIGESTS, "the result of put_tree")
            storage.put_tree([])
            self.expect_stored(_FILES)
            digests = storage.digest_tree(list(_FILES), make_durable=True)
            expect_equal(digests, _DIGESTS, "the result of digest_tree(make_durable=True)")
            for path, key in pairs:
                content = path.read_bytes() if path.is_file() else None
                expect_equal(content, _FILES[key], "a local file after put_tree")

    @clause(
        "missing-sources-are-errors",
        "put_tree of a missing local file raises an error and stores nothing for it",
    )
    def test_missing_sources_are_errors(self, tmp_path: Path) -> None:
        """Put a missing file together with an existing file, to a new and to an existing key."""
        (pair,) = write_files(tmp_path, {"run/there": b"1"})
        absent = tmp_path / "suite-files" / "absent"
        with self.opened(tmp_path) as storage:
            self.raw_write("run/kept", b"before")
            for key in ("run/absent", "run/kept"):
                with expect_error(Exception, f"put_tree of a missing file to {key!r}"):
                    storage.put_tree([pair, (absent, key)])
            expect_equal(self.raw_read("run/absent"), None, "the content stored for a missing file")

    @clause(
        "get-writes-stored-content",
        "get_tree writes the stored content, creates parent directories, and returns sizes and "
        "digests by key",
    )
    def test_get_writes_stored_content(self, tmp_path: Path) -> None:
        """Get files written by the raw accessors."""
        with self.opened(tmp_path) as storage:
            for key, data in _FILES.items():
                self.raw_write(key, data)
            targets = _make_targets(tmp_path, [(tmp_path, key) for key in _FILES])
            expect_equal(storage.get_tree(targets), _DIGESTS, "the result of get_tree")
            for path, key in targets:
                expect_equal(path.read_bytes(), _FILES[key], f"the local file of {key!r}")

    @clause(
        "many-files-are-transferred",
        "many files, and one file of many parts, are transferred without being lost, exchanged or "
        "changed",
    )
    def test_many_files_are_transferred(self, tmp_path: Path) -> None:
        """Put and get many different files, including a large file."""
        contents = {f"run/{i % 7}/{i}": b"%d " % i * (i % 50) for i in range(self.num_files)}
        contents["run/large"] = random.Random(7).randbytes(self.large_bytes + 1)
        pairs = write_files(tmp_path, contents)
        targets = _make_targets(tmp_path, pairs)
        with self.opened(tmp_path) as storage:
            digests = storage.put_tree(pairs)
            self.expect_stored(contents)
            expect_equal(storage.get_tree(targets), digests, "the digests from get_tree")
            for path, key in targets:
                expect_equal(path.read_bytes(), contents[key], f"the local file of {key!r}")

    @clause(
        "missing-keys-are-errors",
        "a missing key raises FileNotFoundError, and get_tree creates no local file for it",
    )
    def test_missing_keys_are_errors(self, tmp_path: Path) -> None:
        """Read missing keys, alone and among existing keys."""
        got = tmp_path / "suite-got"
        contents = {f"run/{index}": b"x" for index in range(4)}
        all_keys = [*contents, "run/absent"]
        with self.opened(tmp_path) as storage:
            with expect_error(FileNotFoundError, "read of a missing key in an empty storage"):
                storage.read("run/absent")
            storage.put_tree(write_files(tmp_path, contents))
            with expect_error(FileNotFoundError, "read of a prefix"):
                storage.read("ru")
            for keys in (["run/absent"], all_keys):
                with expect_error(FileNotFoundError, f"get_tree of {keys}"):
                    storage.get_tree([(got / key, key) for key in keys])
                assert not (got / "run/absent").exists(), "a missing key created a local file"
                with expect_error(FileNotFoundError, f"digest_tree of {keys}"):
                    storage.digest_tree(keys)
            self.expect_stored(contents)

    @clause(
        "progress-counts-bytes-once",
        "progress reports every byte once, in several steps for a large file unless byte-progress "
        "is declined",
    )
    def test_progress_counts_bytes_once(self, tmp_path: Path) -> None:
        """Sum the byte counts passed to `progress`."""
        contents = {**_FILES, "run/large": bytes(self.large_bytes)}
        pairs = write_files(tmp_path, contents)
        total = sum(map(len, contents.values()))
        with self.opened(tmp_path) as storage:
            put, get, digest = storage.put_tree, storage.get_tree, storage.digest_tree
            targets = _make_targets(tmp_path, pairs)
            calls: list[tuple[str, Callable[[Progress], object]]] = [
                ("put_tree", lambda report: put(pairs, progress=report)),
                ("get_tree", lambda report: get(targets, progress=report)),
                ("digest_tree", lambda report: digest(list(contents), progress=report)),
            ]
            for name, transfer in calls:
                counts: list[int] = []
                transfer(counts.append)
                expect_equal(sum(counts), total, f"the number of bytes reported by {name}")
                assert min(counts) >= 0, f"{name} reported a negative number of bytes"
                assert "byte-progress" in self.declined or max(counts) < self.large_bytes, (
                    f"{name} reported {self.large_bytes} bytes in one step"
                )
