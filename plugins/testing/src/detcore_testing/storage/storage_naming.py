"""Storage clauses on keys, listing and deleting."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcore.errors import StorageError, UnsafePathError
from detcore.storage import Entry, StorageBackend, check_key, is_safe_key
from detcore_testing.hypothesis_settings import quick
from detcore_testing.storage.storage_access import FolderAccess, StorageAccess, write_files
from detcore_testing.suite_clauses import clause, expect_equal, expect_error

UNSAFE_KEYS = (
    "", "/", "/etc/passwd", "..", "../x", "a/../../x", "a/..", "a//b", ".", "./a", "a/./b", "a/",
    "a\0b", "a\nb", "\x1b[2J", "a\x9b1m", "a\udcff", "a\\..\\..\\x", "\\x", "C:\\x", "c:/x",
    "a" * 256, "\u00fc" * 128, "/".join(["a" * 200] * 6),
)  # fmt: skip
"""Keys that `detcore.storage.check_key` rejects, one of each kind."""

_ALIKE = (
    ("caf\u00e9", "cafe\u0301"), ("Model", "model"), ("a", "a "), ("a", " a"), ("a", "a."),
    ("a b", "a+b"), ("a b", "a%20b"), ("1", "01"), ("x" * 240 + "1", "x" * 240 + "2"),
)  # fmt: skip
"""Pairs of names that some stores confuse."""

_STRANGE_PARTS = (
    "1", "10", "run", "run-1", ".hidden", "a b", "[1]*?", "100%41", "weights.bin", "~", "#",
)  # fmt: skip


class NamingClauses(StorageAccess):
    """Clauses on `list`, `delete`, `delete_tree`, and on unsafe or unusual keys."""

    @clause(
        "delete-is-literal",
        "delete treats each key literally, without patterns, and keeps neighbouring and hidden "
        "files",
    )
    def test_delete_is_literal(self, tmp_path: Path) -> None:
        """Delete keys that look like patterns, and the last visible file of a directory."""
        remaining = ("r/1", "r/2", "run/.b", "run-1", "other/c/.d")
        names = ("[1]", "*", "?", "%31", "**", "{1,2}", "~")
        keys = ("run/a", "other/a", *(f"r/{name}" for name in names))
        with self.opened(tmp_path) as storage:
            for key in (*remaining, *keys):
                self.raw_write(key, b"1")
            storage.delete(key for key in keys)
            storage.delete([])
            self.expect_stored(dict.fromkeys(remaining, b"1"))

    @clause(
        "links-are-not-followed",
        "deleting a link in the storage directory leaves its target unchanged",
    )
    def test_links_are_not_followed(self, tmp_path: Path) -> None:
        """Add links to an outside directory and an outside file."""
        if not isinstance(self, FolderAccess):
            pytest.skip("only a local directory can contain links (FolderAccess)")
        outside = tmp_path / "suite-outside"
        (outside / "below").mkdir(parents=True)
        for path in (outside / "file", outside / "below" / "file"):
            path.write_bytes(b"precious")
        with self.opened(tmp_path) as storage:
            self.raw_write("run/a", b"1")
            (self.root / "run" / "folder").symlink_to(outside)
            (self.root / "run" / "file").symlink_to(outside / "file")
            calls: tuple[Callable[[], None], ...] = (
                lambda: storage.delete(["run/file"]),
                lambda: storage.delete_tree("run"),
            )
            for call in calls:
                with contextlib.suppress(StorageError):  # an error is also allowed
                    call()
                for path in (outside / "file", outside / "below" / "file"):
                    assert path.exists(), f"the link target {path.name} was deleted"

    @clause(
        "long-listings-are-complete",
        "list and delete_tree cover more files than the store returns in one page",
    )
    def test_long_listings_are_complete(self, tmp_path: Path) -> None:
        """Store more files than the store lists or deletes in one request."""
        ((source, _),) = write_files(tmp_path, {"x": b"1"})
        keys = [f"run/{index:05}" for index in range(self.num_listed)]
        with self.opened(tmp_path) as storage:
            self.raw_write("run-1", b"1")
            storage.put_tree([(source, key) for key in keys])
            listed_keys = [entry.key for entry in storage.list("run")]
            expect_equal(len(listed_keys), len(keys), "the number of listed files")
            assert listed_keys == keys, "the listed files differ"
            storage.delete_tree("run")
            self.expect_stored({"run-1": b"1"})

    @clause("unsafe-keys-are-rejected", "every method rejects unsafe keys with UnsafePathError")
    def test_unsafe_keys_are_rejected(self, tmp_path: Path) -> None:
        """Pass each kind of unsafe key to every method."""
        ((source, _),) = write_files(tmp_path, {"x": b"new"})
        got = tmp_path / "suite-got"
        with self.opened(tmp_path) as storage:
            self.raw_write("keep/me", b"1")
            for key in UNSAFE_KEYS:
                for name, call in _list_calls(storage, key, source, got):
                    with expect_error(UnsafePathError, f"{name} with the key {key!r:.80}"):
                        call()
            self.expect_stored({"keep/me": b"1"})
            assert not got.exists(), "an unsafe key created a local file or directory"

    @clause(
        "unsafe-keys-stop-the-whole-call",
        "a call with one unsafe key among safe keys does nothing",
    )
    def test_unsafe_keys_stop_the_whole_call(self, tmp_path: Path) -> None:
        """Put an unsafe key last."""
        ((source, _),) = write_files(tmp_path, {"x": b"new"})
        got = tmp_path / "suite-got"
        with self.opened(tmp_path) as storage:
            self.raw_write("keep/me", b"1")
            with expect_error(UnsafePathError, "put_tree with an unsafe key"):
                storage.put_tree([(source, "keep/me"), (source, "new"), (source, "../x")])
            with expect_error(UnsafePathError, "get_tree with an unsafe key"):
                storage.get_tree([(got / "a", "keep/me"), (got / "b", "../x")])
            with expect_error(UnsafePathError, "delete with an unsafe key"):
                storage.delete(["keep/me", "../x"])
            self.expect_stored({"keep/me": b"1"})
            assert not got.exists(), "get_tree created files although one key is unsafe"

    @clause("safe-keys-keep-their-content", "each key that check_key accepts names a separate file")
    def test_safe_keys_keep_their_content(self, tmp_path: Path) -> None:
        """Store files under keys from hypothesis."""
        excluded = "/\\" if "backslash" in self.declined else "/"
        text = st.text(
            st.characters(
                codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters=excluded
            ),
            min_size=1,
            max_size=8,
        )
        parts = st.lists(st.sampled_from(_STRANGE_PARTS) | text, min_size=1, max_size=3)
        names = parts.map("/".join).filter(is_safe_key)
        with self.opened(tmp_path) as storage:

            @quick(self.num_examples)
            @given(name=names, data=st.binary(max_size=50))
            def check_key_content(name: str, data: bytes) -> None:
                top = f"top-{uuid.uuid4()}"  # some stores keep the directories of deleted files
                key = check_key(f"{top}/{name}")
                storage.replace(key, data)
                expect_equal(self.raw_read(key), data, f"the content stored under {key!r}")
                expect_equal(storage.read(key), data, f"the content read from {key!r}")
                expect_equal(storage.list(top), [Entry(key, len(data))], f"the listing of {top!r}")
                storage.delete([key])
                expect_equal(storage.list(top), [], f"the listing after {key!r} was deleted")

            check_key_content()

    @clause(
        "similar-keys-are-distinct",
        "keys that differ only in case, spaces or the form of an accent name different files",
    )
    def test_similar_keys_are_distinct(self, tmp_path: Path) -> None:
        """Store files under pairs of similar names that the store itself can distinguish."""
        with self.opened(tmp_path) as storage:
            for number, names in enumerate(_ALIKE):
                pair = [check_key(f"pair-{number}/{name}") for name in names]
                contents = dict(zip(pair, (b"1", b"22"), strict=True))
                if not self._can_distinguish(contents):
                    continue
                storage.put_tree(write_files(tmp_path, contents))
                for key, data in contents.items():
                    expect_equal(self.raw_read(key), data, f"the content stored under {key!r:.80}")
                    expect_equal(storage.read(key), data, f"the content read from {key!r:.80}")
                keys = [entry.key for entry in storage.list(f"pair-{number}")]
                expect_equal(keys, sorted(pair), "the listed keys")
                storage.delete(pair[:1])
                expect_equal(self.raw_read(pair[1]), b"22", "the content of the remaining file")
                storage.delete(pair[1:])

    def _can_distinguish(self, contents: Mapping[str, bytes]) -> bool:
        """Whether the raw accessors can store these files together."""
        try:
            for key, data in contents.items():
                self.raw_write(key, data)
            return all(self.raw_read(key) == data for key, data in contents.items())
        except Exception:  # noqa: BLE001  (the store does not accept such a name)
            return False
        finally:
            for key in contents:
                with contextlib.suppress(Exception):
                    self.raw_delete(key)


def _list_calls(
    storage: StorageBackend, key: str, source: Path, got: Path
) -> list[tuple[str, Callable[[], object]]]:
    calls: list[tuple[str, Callable[[], object]]] = [
        ("put_tree", lambda: storage.put_tree([(source, key)])),
        ("get_tree", lambda: storage.get_tree([(got, key)])),
        ("digest_tree", lambda: storage.digest_tree([key])),
        ("create", lambda: storage.create(key, b"")),
        ("replace", lambda: storage.replace(key, b"")),
        ("read", lambda: storage.read(key)),
        ("delete", lambda: storage.delete([key])),
        ("delete_tree", lambda: storage.delete_tree(key)),
    ]
    if key:  # "" means all files
        calls.append(("list", lambda: storage.list(key)))
        calls.append(("direct_path", lambda: storage.direct_path(key)))
    return calls
