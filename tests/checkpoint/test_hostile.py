"""Malicious checkpoints are refused with the reason, and change nothing outside of their directory.

Every manifest here has a matching checksum, because an attacker can compute it. The cases: names
that leave the directory or clash, numbers out of range, sizes that lie, unknown or malformed
digests, malformed JSON, terminal escape sequences, references that are paths, links and special
files in a local storage, pickles in place of data, and patterns for deletion.

Not detected: hard links, and files that change while a local checkpoint is read in place.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoint_damage import _with_checksum as with_checksum

from detcore.checkpoint import delete_checkpoint, repair_checkpoint, verify_checkpoint
from detcore.errors import (
    CheckpointCorruptError,
    CheckpointError,
    InvalidCheckpointError,
    StorageFullError,
    UnsafePathError,
)
from detcore.storage import LocalStorage

Fields = dict[str, Any]
META = {"steps_completed": 3, "loss": 0.25}
DIGEST = "0" * 32
UUID = "00000000-0000-4000-8000-000000000000"


def named(name: str) -> Callable[[Fields], object]:
    """Name a file, with size and digest of one that is there."""
    return lambda fields: fields["files"].update({name: fields["files"]["part"]})


def entry(**changes: object) -> Callable[[Fields], object]:
    return lambda fields: fields["files"]["part"].update(changes)


def field(name: str, value: object) -> Callable[[Fields], object]:
    return lambda fields: fields.update({name: value})


def folder_called(name: object) -> Callable[[Fields], object]:
    return lambda fields: fields.update(directories=[name])


def tensor(**changes: object) -> Callable[[Fields], object]:
    valid_tensor = {"name": "w", "shape": [1], "dtype": "float32", "file": "part"}
    return lambda fields: fields.update(tensors=[{**valid_tensor, **changes}])


def without(*path: str) -> Callable[[Fields], object]:
    def forge(fields: Fields) -> None:
        for name in path[:-1]:
            fields = fields[name]
        del fields[path[-1]]

    return forge


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = {"a": value}
    return value


FORGED: dict[str, tuple[Callable[[Fields], object], str]] = {
    # Names
    "parent": (named("../escaped"), r"'\.\./escaped' is refused: it holds '\.\.'"),
    "parent within": (named("a/../../escaped"), r"it holds '\.\.', which leads out"),
    "parent at the end": (named("part/.."), r"'part/\.\.' is refused"),
    "absolute": (named("/tmp/escaped"), "'/tmp/escaped' is refused: it is absolute"),
    "empty part": (named("a//b"), r"'a//b' is refused: it holds an empty or '\.' part"),
    "only a dot": (named("."), r"'\.' is refused"),
    "trailing slash": (named("part/"), "'part/' is refused"),
    "no name": (named(""), "'' is refused: it is empty"),
    "parent by backslashes": (named("..\\escaped"), "where a backslash is taken for a slash"),
    "another checkpoint by backslashes": (
        named(f"..\\{UUID}\\manifest.json"), "where a backslash is taken for a slash"),
    "drive": (named("C:/escaped"), "'C:/escaped' is refused: it begins with the letter of a drive"),
    "drive by a backslash": (named("c:\\escaped"), "it begins with the letter of a drive"),
    "NUL": (named("part\0.txt"), r"'part\\x00\.txt' is refused: it holds a NUL"),
    "escape sequence": (named("\x1b[2Jpart"), r"'\\x1b\[2Jpart' is refused: it holds a control"),
    "C1 control": (named("\x9b2Jpart"), "it holds a control character"),
    "half a character": (named("\ud800"), r"'\\ud800' is refused: it cannot be written in UTF-8"),
    "long part": (named("x" * 256), "more than the 255 bytes that file systems take"),
    "long name": (named("/".join(["x" * 200] * 6)), "it has 1205 bytes; stores take 1024"),
    "long part in bytes": (named("é" * 128), "more than the 255 bytes"),
    "itself": (named("manifest.json"), r"it names itself, manifest\.json, as a file"),
    "folder called as itself": (named("manifest.json/x"), r"'manifest\.json' is both a file and"),
    "file as a folder": (named("part/more"), "'part' is both a file and a directory: it also"),
    "folder parent": (folder_called("../escaped"), r"'\.\./escaped' is refused"),
    "folder for a file": (folder_called("part"), "'part' is both a file and a directory"),
    "folder in a file": (folder_called("part/x"), "'part' is both a file and a directory"),
    "folder for itself": (folder_called("manifest.json"), r"'manifest\.json' is both a file and"),
    "directory without a name": (folder_called(7), "'directories' holds a number, not a name"),
    # Sizes and digests
    "negative size": (entry(size=-1), r"says that its size is -1; expected a whole number"),
    "size with a fraction": (entry(size=1.5), r"its size is 1\.5; expected a whole number"),
    "size that is true": (entry(size=True), "its size is True; expected a whole number"),
    "size of 2**63": (entry(size=2**63), "its size is 9223372036854775808; expected"),
    "size of 3000 digits": (entry(size=10**3000), "its size is 1000.*; expected a whole number"),
    "size in a list": (entry(size=[1]), "its size is a list; expected a whole number"),
    "no size": (without("files", "part", "size"), "entry of the file 'part' has no 'size'"),
    "no digest": (without("files", "part", "xxh3_128"), "the file 'part' has no 'xxh3_128'"),
    "short digest": (entry(xxh3_128="00"), "has the digest '00'; xxh3_128 has 32 digits"),
    "capital digest": (entry(xxh3_128="A" * 32), "has the digest 'AAAA.*'; xxh3_128 has 32"),
    "digest null": (entry(xxh3_128=None), "has the digest None; xxh3_128 has 32 digits"),
    "weak digest": (field("digest", "md5"), "digested with 'md5'; this release knows xxh3_128"),
    "algorithm in a list": (field("digest", ["xxh3_128"]), "'digest' is a list, not a string"),
    "entry as a list": (
        lambda fields: fields["files"].update(part=[1]), "'part' is a list, not an object"),
    "files as a list": (field("files", ["part"]), "'files' is a list, not an object"),
    "folders as an object": (field("directories", {"a": 1}), "'directories' is an object, not"),
    # Other fields
    "version as a float": (field("version", 1.0), r"its version is 1\.0, and this release reads 1"),
    "version as a text": (field("version", "1\x1b[2J"), r"its version is '1\\x1b\[2J', and"),
    "format as a list": (field("format", []), "its format is a list"),
    "uuid as a path": (field("uuid", "../other"), r"it belongs to checkpoint '\.\./other'"),
    "parent as a path": (field("parent", "../../x"), r"'\.\./\.\./x' is not a checkpoint's UUID"),
    "parent as a number": (field("parent", 3), "3 is not a checkpoint's UUID"),
    "steps as a text": (field("steps_completed", "3"), "'steps_completed' is '3'; expected"),
    "steps beyond databases": (field("steps_completed", 2**64), "'steps_completed' is 18446744"),
    "no time": (field("created", "yesterday"), "'created' is 'yesterday', which is not a time"),
    "time without a zone": (field("created", "2026-01-01T00:00:00"), "not a time with a time zone"),
    "time as a number": (field("created", 0), "'created' is a number, not a string"),
    "metadata as a text": (field("metadata", "x"), "'metadata' is a string, not an object"),
    "metadata too deep": (field("metadata", nested(80)), "metadata is nested more than 66 times"),
    "versions as a list": (field("versions", []), "'versions' is a list, not an object"),
    "version of nothing": (field("versions", {"a": 1}), "'versions' holds 1, which is not a name"),
    "version that paints": (
        field("versions", {"a": "\x1b]0;x\x07"}), r"'versions' holds '\\x1b\]0;x\\x07'"),
    "long version": (field("versions", {"a": "1" * 5000}), "'versions' holds '1111"),
    "no versions": (without("versions"), "its field 'versions' is missing"),
    # Tensors
    "tensors as an object": (field("tensors", {}), "'tensors' is an object, not a list"),
    "tensor as a text": (field("tensors", ["w"]), "its tensor 0 is a string, not an object"),
    "tensor elsewhere": (tensor(file="../x"), r"tensor 0 is in '\.\./x', which is not one of its"),
    "tensor in no file": (tensor(file=None), "tensor 0 has the file None, which is not a short"),
    "negative axis": (tensor(shape=[2, -1]), "tensor 0 has an axis of length -1; expected"),
    "axis with a fraction": (tensor(shape=[0.5]), r"an axis of length 0\.5; expected"),
    "axis without end": (tensor(shape=[10**40]), "an axis of length 1000.*; expected"),
    "shape as a text": (tensor(shape="12"), "tensor 0 has the shape '12', which is not a list"),
    "100000 axes": (tensor(shape=[1] * 100_000), "tensor 0 has 100000 axes; no framework"),
    "type as a list": (tensor(dtype=["f"]), "tensor 0 has the dtype a list, which is not a short"),
}  # fmt: skip

RAW: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "key twice": (
        lambda data: data.replace(b'"parent"', b'"uuid": "x", "parent"', 1),
        "it has the key 'uuid' twice"),
    "file twice": (
        lambda data: data.replace(b'"part": {', b'"part": {"size": 1}, "part": {', 1),
        "it has the key 'part' twice"),
    "NaN": (lambda data: data.replace(b"0.25", b"NaN"), "it holds NaN, which is not valid JSON"),
    "Infinity": (lambda data: data.replace(b"0.25", b"-Infinity"), "it holds -Infinity, which"),
    "1e400": (lambda data: data.replace(b"0.25", b"1e400"), "the number '1e400', which is too la"),
    "100000 digits": (
        lambda data: data.replace(b"0.25", b"9" * 100_000), "it holds a number of 100000 digits"),
    "100000 deep": (
        lambda data: data.replace(b"0.25", b"[" * 100_000 + b"]" * 100_000), "nested too deeply"),
    "100000 objects deep": (
        lambda data: data.replace(b"0.25", b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        "nested too deeply"),
    "UTF-16": (lambda data: data.decode().encode("utf-16"), "it is not JSON"),
    "UTF-32": (lambda data: data.decode().encode("utf-32-le"), "it is not JSON"),
    "byte order mark": (lambda data: b"\xef\xbb\xbf" + data, "it is not JSON .*BOM"),
    "no UTF-8": (lambda data: data.replace(b"0.25", b'"\xff"'), "it is not JSON"),
    "overlong UTF-8": (lambda data: data.replace(b"0.25", b'"\xc0\xaf"'), "it is not JSON"),
    "a list": (lambda data: b"[" + data + b"]", "it holds a list where an object is expected"),
    "a number": (lambda data: b"1", "it holds a number where an object is expected"),
    "a pickle": (lambda data: pickle.dumps(Bomb("x")), "it is not JSON"),
    "comment": (lambda data: b"// mine\n" + data, "it is not JSON"),
    "more behind it": (lambda data: data + b"{}", "it is not JSON"),
}  # fmt: skip


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "work" / "model"
    root.mkdir(parents=True)
    (root / "part").write_bytes(b"0123456789")
    (root / "other").write_bytes(bytes(5000))
    return root


@pytest.fixture
def world(tmp_path: Path, folder: Path) -> Iterator[Path]:
    """A place to download to, several folders deep; nothing outside of it may change."""
    (tmp_path / "escaped").write_text("was there before")
    (tmp_path / "work" / "neighbour").mkdir()
    (tmp_path / "work" / "neighbour" / "mine").write_text("mine")
    deep = tmp_path / "work" / "a" / "b"
    deep.mkdir(parents=True)

    ours = {tmp_path / "checkpoints", deep}

    def outside() -> dict[str, Any]:
        reports: dict[str, Any] = {}
        for top, folders, names in os.walk(tmp_path):
            folders[:] = [name for name in folders if Path(top, name) not in ours]
            reports[top] = sorted(folders)
            paths = [Path(top, name) for name in names if not name.startswith("records.db")]
            reports.update((str(path), path.read_bytes()) for path in paths)
        return reports

    before = outside()
    beyond = sorted(path.name for path in Path("/tmp").glob("*escaped*"))
    yield deep
    assert outside() == before
    assert sorted(path.name for path in Path("/tmp").glob("*escaped*")) == beyond
    assert not list(tmp_path.rglob("executed*"))


def forge(desk: Any, uuid: str, change: Callable[[Fields], object]) -> None:
    """Change the manifest, and give it the checksum that fits."""
    key = f"{uuid}/manifest.json"
    fields = json.loads(desk.storage.read(key))
    change(fields)
    desk.storage.replace(key, with_checksum(fields))


def refused(desk: Any, uuid: str, folder: Path, message: str) -> None:
    """Check that every operation refuses a checkpoint with the message."""
    calls: list[Callable[[], object]] = [
        lambda: desk.get_manifest(uuid),
        lambda: desk.get_metadata(uuid),
        lambda: desk.download(uuid, folder / "back"),
        lambda: desk.download(uuid, folder / "back", selector=lambda name: name == "part"),
        lambda: desk.restore_path(uuid).__enter__(),
        lambda: desk.restore_path(uuid, selector=lambda name: True).__enter__(),
        lambda: desk.delete(uuid, globs=["other"]),
    ]
    for call in calls:
        with pytest.raises(CheckpointCorruptError, match=message) as caught:
            call()
        assert len(str(caught.value)) < 2000
        assert str(caught.value).replace("\n", "").isprintable()
    assert list(folder.iterdir()) == []
    (fault,) = verify_checkpoint(desk.storage, uuid)
    assert fault.name == "manifest.json"


@pytest.mark.soak
@pytest.mark.parametrize("name", FORGED)
def test_forged_manifest_is_refused(desk: Any, uuid: str, world: Path, name: str) -> None:
    change, message = FORGED[name]
    forge(desk, uuid, change)
    refused(desk, uuid, world, f"manifest.json cannot be used: .*{message}")


@pytest.mark.parametrize("name", RAW)
def test_invalid_manifest_is_refused(desk: Any, uuid: str, world: Path, name: str) -> None:
    change, message = RAW[name]
    key = f"{uuid}/manifest.json"
    data = desk.storage.read(key)
    new_data = change(data)
    assert new_data != data
    desk.storage.replace(key, new_data)
    refused(desk, uuid, world, f"manifest.json cannot be used: .*{message}")


class Unread(LocalStorage):
    """A storage of which nothing but listings and small manifests may be read."""

    def get_tree(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("files were read")

    def digest_tree(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("files were read")

    def read(self, key: str) -> bytes:
        assert (self.root / key).stat().st_size < 32 << 20, "a huge manifest was read"
        return super().read(key)


@pytest.fixture
def unread(database: Any, tmp_path: Path, make_desk: Any) -> Any:
    """The same checkpoints as those of `local_desk`."""
    return make_desk(database, Unread(tmp_path / "checkpoints"))


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (10_000_000_000, "part: has 10 bytes instead of 10000000000"),
        (2**63 - 1, "part: has 10 bytes instead of 9223372036854775807"),
        (9, "part: has 10 bytes instead of 9"),
        (0, "part: has 10 bytes instead of 0"),
    ],
)
def test_wrong_size_is_found_before_reading(
    local_desk: Any, unread: Any, local_uuid: str, world: Path, size: int, message: str
) -> None:
    forge(local_desk, local_uuid, entry(size=size))
    for selector in (None, lambda name: name == "part"):
        with pytest.raises(CheckpointCorruptError, match=message):
            unread.download(local_uuid, world / "back", selector=selector)
    with pytest.raises(CheckpointCorruptError, match=message):
        unread.restore_path(local_uuid, selector=lambda name: name == "part").__enter__()
    assert list(world.iterdir()) == []
    faults = verify_checkpoint(local_desk.storage, local_uuid)
    assert [str(fault) for fault in faults] == [message]


def test_huge_file_is_not_read(local_desk: Any, unread: Any, local_uuid: str, world: Path) -> None:
    os.truncate(local_desk.storage.root / local_uuid / "part", 10_000_000_000)
    with pytest.raises(CheckpointCorruptError, match="part: has 10000000000 bytes instead of 10"):
        unread.download(local_uuid, world / "back")
    assert list(world.iterdir()) == []


def test_download_that_does_not_fit_is_refused(
    local_desk: Any, unread: Any, local_uuid: str, world: Path
) -> None:
    """File and manifest agree on four terabytes, of which the store holds none."""
    os.truncate(local_desk.storage.root / local_uuid / "part", 1 << 42)
    forge(local_desk, local_uuid, entry(size=1 << 42))
    for target in ("back", "."):
        with pytest.raises(StorageFullError, match=r"has 4398046516\d+ bytes, but only") as got:
            unread.download(local_uuid, world / target)
        assert got.value.missing_bytes
    assert list(world.iterdir()) == []


def test_huge_manifest_is_not_read(
    local_desk: Any, unread: Any, local_uuid: str, world: Path
) -> None:
    os.truncate(local_desk.storage.root / local_uuid / "manifest.json", 10_000_000_000)
    refused(unread, local_uuid, world, "it has 10000000000 bytes; the maximum is 67108864")


def test_unreadable_manifest_is_not_written(
    desk: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detcore.checkpoint.manifest.MAX_MANIFEST_BYTES", 700)
    with pytest.raises(InvalidCheckpointError, match=r"would have .* bytes; the maximum is 700"):
        desk.upload(folder, {**META, "text": "x" * 700})
    assert desk.storage.list() == []


def test_many_missing_files_are_one_error(
    local_desk: Any, unread: Any, local_uuid: str, world: Path
) -> None:
    """None is fetched, and the message stays short."""
    one = {"size": 0, "xxh3_128": DIGEST}
    forge(local_desk, local_uuid, field("files", {f"{index:x}": one for index in range(20_000)}))
    local_desk.storage.delete([f"{local_uuid}/part", f"{local_uuid}/other"])
    with pytest.raises(CheckpointCorruptError, match=r"is missing \(and 19999 more\)") as caught:
        unread.download(local_uuid, world / "back")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("change_name", [lambda _: "one", str.upper], ids=["files", "folder"])
def test_names_that_collide_in_target_are_refused(
    desk: Any, uuid: str, world: Path, monkeypatch: pytest.MonkeyPatch, change_name: Any
) -> None:
    """Stands for a file system that takes ``A`` for ``a``, which cannot be had without root."""
    forge(desk, uuid, folder_called("PART"))
    get_tree = desk.storage.get_tree

    def fold(pairs: Any, **options: Any) -> Any:
        folded = [(path.with_name(change_name(path.name)), key) for path, key in pairs]
        return get_tree(folded, **options)

    monkeypatch.setattr(desk.storage, "get_tree", fold)
    with pytest.raises(UnsafePathError, match="does not distinguish names that differ"):
        desk.download(uuid, world / "back")
    assert list(world.iterdir()) == []


def test_links_out_of_target_are_not_followed(
    desk: Any, uuid: str, world: Path, tmp_path: Path
) -> None:
    forge(desk, uuid, lambda fields: fields.update(directories=["out/new"]))
    (world / "back").mkdir()
    (world / "back" / "out").symlink_to(tmp_path / "work" / "neighbour")
    with pytest.raises(
        InvalidCheckpointError, match=r"a link leads out of the directory, to .*neigh"
    ):
        desk.download(uuid, world / "back")
    assert [path.name for path in (world / "back").iterdir()] == ["out"]


def test_link_to_a_file_in_target_is_replaced(
    desk: Any, uuid: str, world: Path, tmp_path: Path
) -> None:
    (world / "back").mkdir()
    (world / "back" / "part").symlink_to(tmp_path / "escaped")
    desk.download(uuid, world / "back")
    assert (world / "back" / "part").read_bytes() == b"0123456789"
    assert not (world / "back" / "part").is_symlink()


def link_twice(path: Path, outside: Path) -> None:
    (path.parent / "hop").symlink_to(outside / "mine")
    path.symlink_to("hop")


LINKS: dict[str, Callable[[Path, Path], object]] = {
    "to a file": lambda path, outside: path.symlink_to(outside / "mine"),
    "to a folder": lambda path, outside: path.symlink_to(outside),
    "to a device": lambda path, outside: path.symlink_to("/dev/zero"),
    "relative": lambda path, outside: path.symlink_to(os.path.relpath(outside, path.parent)),
    "over another link": link_twice,
    "to its own root": lambda path, outside: path.symlink_to(path.parents[1]),
}


@pytest.mark.parametrize("kind", LINKS)
def test_links_out_of_checkpoint_are_refused(
    local_desk: Any, local_uuid: str, world: Path, tmp_path: Path, kind: str
) -> None:
    path = local_desk.storage.root / local_uuid / "part"
    path.unlink()
    LINKS[kind](path, tmp_path / "work" / "neighbour")
    message = "part: is a link that leads out of the checkpoint, to '"
    for selector in (None, lambda name: name == "part"):
        with pytest.raises(CheckpointCorruptError, match=message):
            local_desk.download(local_uuid, world / "back", selector=selector)
        with pytest.raises(CheckpointCorruptError, match=message):
            local_desk.restore_path(local_uuid, selector=selector).__enter__()
    assert list(world.iterdir()) == []
    delete_checkpoint(local_desk.storage, local_uuid)
    assert not (local_desk.storage.root / local_uuid).exists()


@pytest.mark.parametrize("kind", ["folder", "manifest", "manifest pipe"])
def test_checkpoint_that_is_a_link_is_refused(
    local_desk: Any, local_uuid: str, world: Path, kind: str
) -> None:
    root = local_desk.storage.root / local_uuid
    if kind == "folder":
        root.rename(world / "moved")
        root.symlink_to(world / "moved")
        message = "leads out of"
    elif kind == "manifest":
        (root / "manifest.json").rename(world / "moved")
        (root / "manifest.json").symlink_to(world / "moved")
        message = "manifest.json cannot be used: .* leads out of"
    else:
        (root / "manifest.json").unlink()
        os.mkfifo(root / "manifest.json")
        message = "no committed checkpoint|cannot be used: it is empty"
    calls: list[Callable[[], object]] = [
        lambda: local_desk.download(local_uuid, world / "back"),
        lambda: local_desk.restore_path(local_uuid).__enter__(),
        lambda: local_desk.get_manifest(local_uuid),
    ]
    for call in calls:
        with pytest.raises(CheckpointError, match=message):
            call()
    assert [fault.name for fault in verify_checkpoint(local_desk.storage, local_uuid)] == [
        "manifest.json"
    ]
    assert not (world / "back").exists()


def test_no_code_of_a_checkpoint_is_executed(
    desk: Any, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pickles in the place of arrays and metadata, and code that Python would import."""
    bomb = pickle.dumps(Bomb(str(tmp_path / "executed")))
    code = f"import os; os.mkdir({str(tmp_path / 'executed by import')!r})"
    pickle_bytes = {"weights.npy": bomb, "weights.npz": bomb, "metadata.json": bomb, "x.pkl": bomb}
    names = ["code/__init__.py", "sitecustomize.py", "conftest.py", "json.py", "code/model_def.py"]
    source = world / "source"
    for name, data in {**pickle_bytes, **dict.fromkeys(names, code.encode())}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    uuid = desk.upload(source, META)
    monkeypatch.chdir(source)
    assert desk.get_metadata(uuid) == META
    desk.download(uuid, world / "back")
    with desk.restore_path(uuid) as path:
        assert (path / "weights.npy").read_bytes() == bomb
    assert verify_checkpoint(desk.storage, uuid) == []
    repair_checkpoint(desk.database, desk.storage, desk.database.get_checkpoint(uuid))
    desk.delete(uuid, globs=["*.pkl"])
    assert not list(tmp_path.glob("executed*"))
    (tmp_path / "executed").mkdir()
    with pytest.raises(FileExistsError):
        pickle.loads(bomb)  # noqa: S301  (shows that the bomb is live)
    (tmp_path / "executed").rmdir()


@pytest.mark.parametrize(
    "uuid",
    ["../neighbour", "/etc", "a/b", "", "..", "a\0b", "~", "%2e%2e", "x" * 200, "a\nb", ".hid", 3],
)
def test_path_as_uuid_is_refused(desk: Any, world: Path, uuid: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: desk.download(uuid, world / "back"),
        lambda: desk.restore_path(uuid).__enter__(),
        lambda: desk.get_manifest(uuid),
        lambda: desk.get_metadata(uuid),
        lambda: desk.delete(uuid),
        lambda: desk.delete(uuid, globs=["*"]),
        lambda: verify_checkpoint(desk.storage, uuid),
    ]
    for call in calls:
        with pytest.raises(UnsafePathError, match="is not a checkpoint's UUID"):
            call()
    assert list(world.iterdir()) == []


@pytest.mark.parametrize("glob", ["../*", "a/../../*", "/etc/*", ".", "", "**/../../x"])
def test_globs_out_of_checkpoint_are_refused(desk: Any, uuid: str, world: Path, glob: str) -> None:
    with pytest.raises(UnsafePathError, match="patterns are relative to the checkpoint"):
        desk.delete(uuid, globs=[glob])
    assert verify_checkpoint(desk.storage, uuid) == []
    assert world.exists()


def test_globs_take_no_exponential_time(desk: Any, folder: Path) -> None:
    deep = folder / "/".join("d" * 60)
    deep.mkdir(parents=True)
    (deep / "file").write_text("")
    uuid = desk.upload(folder, META)
    assert "part" in desk.delete(uuid, globs=["**/" * 40 + "nothing", "*d" * 30 + "x"])
