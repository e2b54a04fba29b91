"""A storage next to a dict: both receive the same operations, and must hold the same content."""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from detcore.storage import Entry, StorageBackend, digest_bytes
from detcore_testing._expect import expect_equal, expect_error
from detcore_testing._storage_access import StorageAccess

__all__ = ["machine_for"]

# Neighbours whose names begin alike; no file has the name of a folder.
_FOLDERS = ("1", "10", "1-", "[1]*", "deep/1", "deep/10")
_KEYS = tuple(f"{folder}/{name}" for folder in _FOLDERS for name in ("a", "b.bin", "?", "a b"))

_KEY = st.sampled_from(_KEYS)
_FOLDER = st.sampled_from((*_FOLDERS, "deep", "absent"))
_DATA = st.binary(max_size=40)


def machine_for(
    suite: StorageAccess, storage: StorageBackend, tmp_path: Path
) -> type[RuleBasedStateMachine]:
    """Return a state machine whose every run uses a new prefix of a storage.

    Args:
        suite: Has the raw accessors.
        storage: The storage that is tested.
        tmp_path: Where local files go.
    """
    return type("Machine", (_DictMachine,), {"_suite": suite, "_storage": storage,
                                             "_folder": tmp_path / "suite-machine"})  # fmt: skip


class _DictMachine(RuleBasedStateMachine):
    _suite: StorageAccess
    _storage: StorageBackend
    _folder: Path

    def __init__(self) -> None:
        super().__init__()
        self._top = f"top-{uuid.uuid4().hex}"
        self._model: dict[str, bytes] = {}
        self._folder.mkdir(exist_ok=True)

    def _at(self, name: str) -> str:
        return f"{self._top}/{name}"

    @rule(contents=st.dictionaries(_KEY, _DATA, max_size=4))
    def put_tree(self, contents: dict[str, bytes]) -> None:
        pairs = []
        for index, (name, data) in enumerate(contents.items()):
            path = self._folder / f"put-{index}"
            path.write_bytes(data)
            pairs.append((path, self._at(name)))
        found = self._storage.put_tree(pairs)
        wanted = {self._at(name): digest_bytes(data) for name, data in contents.items()}
        expect_equal(found, wanted, "what put_tree returned")
        self._model |= contents

    @rule(name=_KEY, data=_DATA)
    def create(self, name: str, data: bytes) -> None:
        if name in self._model:
            with expect_error(FileExistsError, f"create({name!r})"):
                self._storage.create(self._at(name), data)
        else:
            self._storage.create(self._at(name), data)
            self._model[name] = data

    @rule(name=_KEY, data=_DATA)
    def replace(self, name: str, data: bytes) -> None:
        self._storage.replace(self._at(name), data)
        self._model[name] = data

    @rule(name=_KEY, data=_DATA)
    def another_one_writes(self, name: str, data: bytes) -> None:
        self._suite.raw_write(self._at(name), data)
        self._model[name] = data

    @rule(names=st.lists(_KEY, max_size=3))
    def delete(self, names: list[str]) -> None:
        self._storage.delete([self._at(name) for name in names])
        for name in names:
            self._model.pop(name, None)

    @rule(folder=_FOLDER)
    def delete_tree(self, folder: str) -> None:
        self._storage.delete_tree(self._at(folder))
        for name in [name for name in self._model if name.startswith(f"{folder}/")]:
            del self._model[name]

    @rule(name=_KEY)
    def read(self, name: str) -> None:
        if name in self._model:
            found = self._storage.read(self._at(name))
            expect_equal(found, self._model[name], f"what was read of {name!r}")
        else:
            with expect_error(FileNotFoundError, f"read({name!r})"):
                self._storage.read(self._at(name))

    @rule(names=st.lists(_KEY, max_size=4, unique=True))
    def get_tree(self, names: list[str]) -> None:
        folder = self._folder / uuid.uuid4().hex
        pairs = [(folder / str(index), self._at(name)) for index, name in enumerate(names)]
        if not set(names) <= set(self._model):
            with expect_error(FileNotFoundError, f"get_tree({names!r})"):
                self._storage.get_tree(pairs)
            return
        self._storage.get_tree(pairs)
        for (path, _), name in zip(pairs, names, strict=True):
            expect_equal(path.read_bytes(), self._model[name], f"what was got of {name!r}")

    @rule(folder=_FOLDER | st.just(""))
    def list_files(self, folder: str) -> None:
        prefix = self._at(folder) if folder else self._top
        wanted = [
            Entry(self._at(name), len(data))
            for name, data in self._model.items()
            if not folder or name.startswith(f"{folder}/")
        ]
        found = self._storage.list(prefix)
        expect_equal(found, sorted(wanted, key=lambda entry: entry.key), f"list({folder!r})")

    def teardown(self) -> None:
        for name in self._model:
            found = self._suite.raw_read(self._at(name))
            expect_equal(found, self._model[name], f"what is stored under {name!r} at the end")
            with contextlib.suppress(FileNotFoundError):
                self._suite.raw_delete(self._at(name))
