"""Storage clauses on the requirements of checkpoints."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from detcore.checkpoint import MANIFEST_FILE, CheckpointContext, list_committed, verify_checkpoint
from detcore.distributed import DistributedContext
from detcore.environment import read_environment
from detcore.errors import ConfigError, StorageError
from detcore.plugins import PluginManager
from detcore.storage import Capabilities, Entry, StorageBackend, digest_bytes, open_storage
from detcore_testing.storage.storage_access import StorageAccess, write_files
from detcore_testing.suite_clauses import clause, expect_equal, expect_error, find_registered
from detcore_testing.torture import torture_storage

_DECLARED = {
    "atomic-create": "atomic_create",
    "byte-progress": "byte_progress",
    "durable": "durable",
    "fork-safe": "fork_safe",
}
_MODEL = {"weights.bin": bytes(range(256)) * 200, "variables/a[0]": b"zero", "none": b""}
# Keys with common prefixes. No file has the name of a directory.
_KEYS = tuple(
    f"{folder}/{name}" for folder in ("1", "10", "1-", "[1]*", "deep/1") for name in ("a", "?")
)
_CALLS = (
    *(2 * ("put_tree", "create", "replace")),
    *("delete", "delete_tree", "raw_write", "raw_delete"),
)
_CONTENTS = (b"", b"1", b"2", b"3", b"\r\n", b"some bytes")
_NUM_CALLS = 160


def _load_plugins() -> PluginManager:
    return PluginManager(read_environment())


def _save_checkpoint(storage: StorageBackend, folder: Path, steps: int) -> str:
    context = CheckpointContext(storage=storage, distributed=DistributedContext())
    with contextlib.closing(context):
        return context.upload(folder, {"steps_completed": steps})


class KeepingClauses(StorageAccess):
    """Clauses on capabilities, URL, secrets, registration, checkpoints and dict behaviour."""

    @clause(
        "capabilities-match-declined",
        "`capabilities` of the storage agrees with `declined` of the suite",
    )
    def test_capabilities_match_declined(self, tmp_path: Path) -> None:
        """Compare the storage's `capabilities` with the suite's `declined`."""
        with self.opened(tmp_path) as storage:
            capabilities = storage.capabilities
            assert isinstance(capabilities, Capabilities), f"capabilities is {capabilities!r}"
            for name, field in _DECLARED.items():
                is_declined = name in self.declined
                expect_equal(
                    getattr(capabilities, field),
                    not is_declined,
                    f"capabilities.{field}, if {name!r} is {'' if is_declined else 'not '}declined",
                )
            if "direct-path" in self.declined:
                expect_equal(storage.direct_path("run/a"), None, "direct_path if it is declined")

    @clause(
        "opening-writes-nothing",
        "creating a storage, reading its URL, and closing it once or twice write nothing",
    )
    def test_opening_writes_nothing(self, tmp_path: Path) -> None:
        """List files after opening the storage."""
        before = sorted(tmp_path.rglob("*"))
        storage = self.make_storage(tmp_path)
        new_paths = sorted(set(tmp_path.rglob("*")) - set(before))
        url = storage.url
        assert "://" in url, f"{url!r} is not a URL"
        storage.close()
        storage.close()
        self.expect_stored({})
        files = [path for path in new_paths if not path.is_dir()]
        expect_equal(files, [], "the files created by opening the storage")

    @clause("url-is-stable", "all handles of a location have the same url, before and after use")
    def test_url_is_stable(self, tmp_path: Path) -> None:
        """Compare the URLs of two handles, before and after use."""
        with self.opened(tmp_path) as storage:
            url = storage.url
            storage.replace("run/a", b"1")
            other = self.make_storage(tmp_path)
            expect_equal([storage.url, other.url], [url, url], "the URLs of one location")
            other.close()

    @clause(
        "url-reopens-storage",
        "open_storage(url) opens the same location",
        capability="reopened-by-url",
    )
    def test_url_reopens_storage(self, tmp_path: Path) -> None:
        """Open the URL, then read and write."""
        with self.opened(tmp_path) as storage:
            storage.replace("run/a b", b"1")
            home = tmp_path / "suite-home"
            with contextlib.closing(
                open_storage(storage.url, home=home, plugins=_load_plugins())
            ) as reopened:
                expect_equal(reopened.url, storage.url, "the URL of the reopened storage")
                expect_equal(reopened.read("run/a b"), b"1", "the content read there")
                reopened.replace("run/b", b"2")
            self.expect_stored({"run/a b": b"1", "run/b": b"2"})

    @clause("secrets-are-not-shown", "url, repr and error messages contain no secret")
    def test_secrets_are_not_shown(self, tmp_path: Path) -> None:
        """Search URL, repr and errors for the suite's secrets."""
        texts: list[str] = []

        def record_error(call: Callable[[], object]) -> None:
            try:
                call()
            except Exception as error:  # noqa: BLE001  (the message is checked below)
                texts.extend((str(error), repr(error), repr(error.__cause__)))

        with self.opened(tmp_path) as storage:
            texts += [storage.url, repr(storage), str(storage)]
            record_error(lambda: storage.read("absent"))
            record_error(lambda: storage.read("../x"))
            storage.create("run/a", b"")
            record_error(lambda: storage.create("run/a", b""))
        if "unusable" not in self.declined:
            with contextlib.closing(self.make_unusable(tmp_path)) as unusable:
                texts += [unusable.url, repr(unusable)]
                record_error(unusable.probe)
        for secret in self.secrets:
            for text in texts:
                assert secret not in text, f"a secret is in: {text.replace(secret, '<SECRET>')}"

    @clause("probe-leaves-no-files", "probe writes, reads and deletes a file, and leaves no files")
    def test_probe_leaves_no_files(self, tmp_path: Path) -> None:
        """Probe with and without other files."""
        with self.opened(tmp_path) as storage:
            storage.probe()
            self.expect_stored({})
            self.raw_write("run/a", b"1")
            storage.probe()
            self.expect_stored({"run/a": b"1"})

    @clause(
        "probe-detects-unusable-storage",
        "probe and all writes raise StorageError if the location is not writable",
        capability="unusable",
    )
    def test_probe_detects_unusable_storage(self, tmp_path: Path) -> None:
        """Use the location that is not writable."""
        pairs = write_files(tmp_path, {"run/a": b"1"})
        with contextlib.closing(self.make_unusable(tmp_path)) as storage:
            for name, call in (
                ("probe", storage.probe),
                ("put_tree", lambda: storage.put_tree(pairs)),
                ("create", lambda: storage.create("run/b", b"1")),
                ("replace", lambda: storage.replace("run/c", b"1")),
            ):
                with expect_error(StorageError, f"{name} in an unwritable location"):
                    call()

    @clause(
        "direct-path-locates-the-file",
        "direct_path returns the location of a file, and the storage sees files written there",
        capability="direct-path",
    )
    def test_direct_path_locates_the_file(self, tmp_path: Path) -> None:
        """Read and write through the paths."""
        with self.opened(tmp_path) as storage:
            storage.replace("run/a", b"1")
            root, path, new = (storage.direct_path(key) for key in ("", "run/a", "run/new/b"))
            if root is None or path is None or new is None:
                raise AssertionError("direct_path is None, but direct-path is not declined")
            expect_equal(path.read_bytes(), b"1", "the file that direct_path names")
            expect_equal(path, root / "run" / "a", "the path of run/a")
            new.parent.mkdir(parents=True)
            new.write_bytes(b"22")
            expect_equal(storage.read("run/new/b"), b"22", "the content written to direct_path")
            digest = storage.digest_tree(["run/new/b"], make_durable=True)["run/new/b"]
            expect_equal(digest.size, 2, "the size of the file written to direct_path")

    @clause(
        "storage-is-registered",
        "a plugin registers the storage, and its type and settings open the same location",
        capability="registered",
    )
    def test_storage_is_registered(self, tmp_path: Path) -> None:
        """Open the storage with the settings of an experiment file."""
        find_registered(PluginManager.storage_types, "storage", self.storage_type)
        with self.opened(tmp_path) as storage:
            spec = {"type": self.storage_type, **self.make_settings(tmp_path)}
            home = tmp_path / "suite-home"
            with contextlib.closing(
                open_storage(spec, home=home, plugins=_load_plugins())
            ) as opened:
                opened.replace("run/a", b"1")
                expect_equal(opened.url, storage.url, "the URL of the opened storage")
            self.expect_stored({"run/a": b"1"})

    @clause(
        "settings-reject-unknown-fields",
        "an unknown field in the settings raises a ConfigError that names the field",
        capability="registered",
    )
    def test_settings_reject_unknown_fields(self, tmp_path: Path) -> None:
        """Misspell a field."""
        with self.opened(tmp_path):
            spec = {"type": self.storage_type, **self.make_settings(tmp_path), "no_such_field": 1}
            with pytest.raises(ConfigError, match="no_such_field"):
                open_storage(spec, home=tmp_path / "suite-home", plugins=_load_plugins()).close()

    @clause("checkpoints-can-be-restored", "a saved checkpoint is complete and can be restored")
    def test_checkpoints_can_be_restored(self, tmp_path: Path) -> None:
        """Save, verify, list and download a checkpoint."""
        folder = _write_model(tmp_path)
        with self.opened(tmp_path) as storage:
            uuid = _save_checkpoint(storage, folder, 7)
            expect_equal(list_committed(storage), [uuid], "the committed checkpoints")
            expect_equal(verify_checkpoint(storage, uuid), [], "the faults of the checkpoint")
            assert self.raw_read(f"{uuid}/{MANIFEST_FILE}"), "no manifest is stored"
            context = CheckpointContext(storage=storage, distributed=DistributedContext())
            with contextlib.closing(context):
                context.download(uuid, tmp_path / "suite-got")
                for name, data in _MODEL.items():
                    content = (tmp_path / "suite-got" / name).read_bytes()
                    expect_equal(content, data, f"the downloaded file {name!r}")
                context.delete(uuid)
            self.expect_stored({})

    @clause(
        "failed-saves-keep-old-checkpoint",
        "a save that fails at any of its operations leaves the previous checkpoint intact",
    )
    def test_failed_saves_keep_old_checkpoint(self, tmp_path: Path) -> None:
        """Stop a save at each of its operations."""
        with self.opened(tmp_path) as storage:
            losses = torture_storage(storage, scenarios=["upload"]).losses
            expect_equal(losses, {}, "the losses")

    @clause(
        "storage-behaves-like-a-dict",
        "after any sequence of calls, including changes by another program, the storage contains "
        "what a dict would contain: create rejects existing keys, delete skips missing keys, and "
        "all other writes replace",
    )
    def test_storage_behaves_like_a_dict(self, tmp_path: Path) -> None:
        """Change and read the storage in a random but fixed order."""
        rng, model = random.Random(7), dict[str, bytes]()
        with self.opened(tmp_path) as storage:
            expect_equal(storage.list(), [], "the list of an empty storage")
            for _ in range(_NUM_CALLS):
                key, call = rng.choice(_KEYS), rng.choice(_CALLS)
                self._change(storage, model, key, (call, rng.choice(_CONTENTS)), tmp_path)
                self._expect_same(storage, model, key, f"after {call} of {key!r}", tmp_path)
            self.expect_stored(model)

    def _change(
        self,
        storage: StorageBackend,
        model: dict[str, bytes],
        key: str,
        change: tuple[str, bytes],
        tmp_path: Path,
    ) -> None:
        """Make a call and apply the same change to the model."""
        call, data = change
        folder = key.rpartition("/")[0]
        if call == "create" and key in model:
            with expect_error(FileExistsError, f"create of the existing key {key!r}"):
                storage.create(key, data)
        elif call == "delete_tree":
            storage.delete_tree(folder)
            for name in [name for name in model if name.startswith(f"{folder}/")]:
                del model[name]
        elif call == "raw_delete":
            if model.pop(key, None) is not None:
                self.raw_delete(key)
        elif call == "delete":
            storage.delete(["1/absent", key, "absent"])
            model.pop(key, None)
        else:
            model[key] = data
            if call == "put_tree":
                storage.put_tree(write_files(tmp_path, {key: data}))
            elif call == "raw_write":
                self.raw_write(key, data)
            else:
                getattr(storage, call)(key, data)

    def _expect_same(
        self,
        storage: StorageBackend,
        model: dict[str, bytes],
        key: str,
        when: str,
        tmp_path: Path,
    ) -> None:
        """Compare reads, digests and lists of the storage with the model."""
        if key in model:
            expect_equal(storage.read(key), model[key], f"the content read {when}")
            got = tmp_path / "suite-got"
            got.write_bytes(b"??")
            storage.get_tree([(got, key)])
            expect_equal(got.read_bytes(), model[key], f"the overwritten local file {when}")
            expect_equal(storage.list(f"{key}/x"), [], f"the list below a file {when}")
        else:
            with expect_error(FileNotFoundError, f"read {when}"):
                storage.read(key)
        for folder in ("", key.rpartition("/")[0]):
            names = sorted(n for n in model if n.startswith(f"{folder}/".lstrip("/")))
            entries = [Entry(name, len(model[name])) for name in names]
            expect_equal(storage.list(folder), entries, f"list({folder!r}) {when}")
        digests = {name: digest_bytes(model[name]) for name in names}
        expect_equal(storage.digest_tree(names), digests, f"digest_tree {when}")


def _write_model(tmp_path: Path) -> Path:
    folder = tmp_path / "suite-model"
    for name, data in _MODEL.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder
