"""Kinds of damage to a committed checkpoint, and the faults that must be detected.

The damage is done through `StorageBackend`, so every back end is tested. Damage that is possible
only on a file system is marked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from detcore.checkpoint import CheckpointContext, verify_checkpoint
from detcore.distributed import DistributedContext
from detcore.errors import CheckpointCorruptError, CheckpointError, CheckpointNotFoundError
from detcore.storage import StorageBackend

SIZES = {"a/weights": 70_000, "a/optimizer": 70_000, "state": 33, "empty": 0}
LARGE_BYTES = 9_000_000  # object stores return it in several parts
MANIFEST_NAME = "manifest.json"
OTHER_UUID = "11111111-2222-4333-8444-555555555555"
PAGE = 4096


@dataclasses.dataclass(frozen=True)
class Saved:
    """A committed checkpoint.

    Attributes:
        storage: Storage of the checkpoint.
        uuid: UUID of the checkpoint.
        contents: Content of each file, including the manifest.
    """

    storage: StorageBackend
    uuid: str
    contents: Mapping[str, bytes]

    @property
    def context(self) -> CheckpointContext:
        return CheckpointContext(storage=self.storage, distributed=DistributedContext())

    def put(self, name: str, data: bytes) -> None:
        self.storage.replace(f"{self.uuid}/{name}", data)

    def remove(self, *names: str) -> None:
        self.storage.delete([f"{self.uuid}/{name}" for name in names])

    def path(self, name: str) -> Path:
        """Return the path of a file in a local storage."""
        root = self.storage.direct_path(self.uuid)
        assert root is not None
        return root / name


def save(storage: StorageBackend, folder: Path, *, large: bool = False) -> Saved:
    """Save a checkpoint for all kinds of damage."""
    chooser = random.Random(3)
    sizes = {**SIZES, **({"large": LARGE_BYTES} if large else {})}
    (folder / "hollow").mkdir(parents=True)
    for name, size in sizes.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(chooser.randbytes(size))
    context = CheckpointContext(storage=storage, distributed=DistributedContext())
    uuid = context.upload(folder, {"steps_completed": 1, "text": "some words"})
    assert verify_checkpoint(storage, uuid) == []
    names = [*sizes, "metadata.json", MANIFEST_NAME]
    return Saved(storage, uuid, {name: storage.read(f"{uuid}/{name}") for name in names})


def flip(place: float, bit: int = 0) -> Callable[[bytes], bytes]:
    """Flip a bit at a fraction of the length."""

    def damage(data: bytes) -> bytes:
        index = min(int(place * len(data)), len(data) - 1)
        return data[:index] + bytes([data[index] ^ 1 << bit]) + data[index + 1 :]

    return damage


def _repeat_block(data: bytes) -> bytes:
    size = len(data) // 4
    return data[:size] + data[:size] + data[2 * size :]


def _zero_page(data: bytes) -> bytes:
    start = len(data) // 2 // PAGE * PAGE
    return data[:start] + bytes(PAGE) + data[start + PAGE :]


SAME_SIZE: dict[str, Callable[[bytes], bytes]] = {
    "first bit": flip(0.0),
    "last bit": flip(1.0, 7),
    "middle bit": flip(0.5, 3),
    "zeroed page": _zero_page,
    "zeroed": lambda data: bytes(len(data)),
    "repeated block": _repeat_block,
    "reversed": lambda data: data[::-1],
    "shifted by one": lambda data: b"\0" + data[:-1],
    "two bytes exchanged": lambda data: data[1:2] + data[0:1] + data[2:],
    "of another save": lambda data: random.Random(9).randbytes(len(data)),
}
"""Changes to a file that keep its size."""

CONTENT: dict[str, Callable[[bytes], bytes]] = {
    **SAME_SIZE,
    "cut by one byte": lambda data: data[:-1],
    "cut to half": lambda data: data[: len(data) // 2],
    "cut to nothing": lambda data: b"",
    "a byte appended": lambda data: data + b"\0",
    "itself appended": lambda data: data + data,
    "read as text": lambda data: data.replace(b"\n", b"\r\n"),
}
"""Changes to a file of several thousand random bytes."""


def _change_field(name: str, value: object) -> Callable[[bytes], bytes]:
    return lambda data: json.dumps({**json.loads(data), name: value}, indent=1).encode()


def _other_digest(data: bytes) -> bytes:
    match = re.search(rb'"xxh3_128": "(\w)', data)
    assert match is not None
    digit = b"1" if match[1] == b"0" else b"0"
    return data[: match.start(1)] + digit + data[match.end(1) :]


def _without_a_file(data: bytes) -> bytes:
    fields = json.loads(data)
    del fields["files"]["a/weights" if "a/weights" in fields["files"] else "metadata.json"]
    return json.dumps(fields, indent=1).encode()


MANIFEST: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "it is empty"),
    "cut to half": (lambda data: data[: len(data) // 2], "it is not JSON"),
    "cut by its checksum": (lambda data: data[:-40], "it is not JSON"),
    "zeroed": (lambda data: bytes(len(data)), "it is not JSON"),
    "random": (lambda data: b"\xff" + random.Random(1).randbytes(99), "it is not JSON"),
    "twice": (lambda data: data + data, "it is not JSON"),
    "an object without fields": (lambda data: b"{}", "its format is None"),
    "another digest": (_other_digest, "its checksum does not match its content"),
    "a file less": (_without_a_file, "its checksum does not match its content"),
    "other steps": (_change_field("steps_completed", 7), "its checksum does not match"),
    "another checksum": (_change_field("checksum", "0" * 64), "its checksum does not match"),
    "no checksum": (_change_field("checksum", None), "its field 'checksum' is missing"),
    "of a later release": (_change_field("version", 2), "its version is 2"),
}
"""Changes to the manifest, and the expected fault of each."""


@dataclasses.dataclass(frozen=True)
class Damage:
    """A kind of damage to a checkpoint.

    Attributes:
        name: Name of the damage.
        apply: Function that does the damage.
        faults: Expected faults, as patterns of the reason by file name.
        large: Whether the damage requires the large file.
        in_folder: Whether the damage is possible only on a file system.
    """

    name: str
    apply: Callable[[Saved], None]
    faults: Mapping[str, str]
    large: bool = False
    in_folder: bool = False


CHANGED = "has changed: its digest is"
SIZE = r"has \d+ bytes instead of \d+"
MISSING = "is missing"
STRAY = "is not in the manifest"


def _content(name: str, kind: str, *, large: bool = False) -> Damage:
    change = CONTENT[kind]

    def apply(saved: Saved) -> None:
        saved.put(name, change(saved.contents[name]))

    return Damage(f"{name} {kind}", apply, {name: CHANGED if kind in SAME_SIZE else SIZE}, large)


def _manifest(kind: str) -> Damage:
    change, reason = MANIFEST[kind]

    def apply(saved: Saved) -> None:
        saved.put(MANIFEST_NAME, change(saved.contents[MANIFEST_NAME]))

    return Damage(f"manifest {kind}", apply, {MANIFEST_NAME: reason})


def _gone(*names: str) -> Damage:
    faults = dict.fromkeys(names, MISSING)
    return Damage(f"{' and '.join(names)} gone", lambda saved: saved.remove(*names), faults)


def _swapped(first: str, second: str, reason: str) -> Damage:
    def apply(saved: Saved) -> None:
        saved.put(first, saved.contents[second])
        saved.put(second, saved.contents[first])

    return Damage(f"{first} and {second} swapped", apply, {first: reason, second: reason})


def _added(name: str, data: bytes = b"x") -> Damage:
    return Damage(f"{name} added", lambda saved: saved.put(name, data), {name: STRAY})


def _renamed(old: str, new: str) -> Damage:
    def apply(saved: Saved) -> None:
        saved.put(new, saved.contents[old])
        saved.remove(old)

    return Damage(f"{old} renamed to {new}", apply, {old: MISSING, new: STRAY})


def _manifest_gone(saved: Saved) -> None:
    saved.remove(MANIFEST_NAME)


def _manifest_of_another(saved: Saved) -> None:
    fields = json.loads(saved.contents[MANIFEST_NAME])
    saved.put(MANIFEST_NAME, _with_checksum({**fields, "uuid": OTHER_UUID}))


def _manifest_of_before(saved: Saved) -> None:
    """Replace the manifest by an intact manifest of an earlier save."""
    fields = json.loads(saved.contents[MANIFEST_NAME])
    fields["files"]["state"]["xxh3_128"] = "0" * 32
    saved.put(MANIFEST_NAME, _with_checksum(fields))


def _with_checksum(fields: dict[str, object]) -> bytes:
    from detcore.checkpoint.manifest import _compute_checksum

    fields.pop("checksum", None)
    return json.dumps({**fields, "checksum": _compute_checksum(fields)}, indent=1).encode()


def _several(saved: Saved) -> None:
    saved.put("a/weights", flip(0.1)(saved.contents["a/weights"]))
    saved.remove("state")
    saved.put("empty", b"x")


def _in_folder(name: str, file: str, act: Callable[[Path], None], **faults: str) -> Damage:
    def apply(saved: Saved) -> None:
        path = saved.path(file)
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
        act(path)

    return Damage(name, apply, {key.replace("__", "/"): faults[key] for key in faults} or {
        file: MISSING}, in_folder=True)  # fmt: skip


def _link_elsewhere(path: Path) -> None:
    target = path.parents[2] / "elsewhere"
    target.write_bytes(b"x" * 33)
    path.symlink_to(target)


def _make_socket(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, socket.socket(socket.AF_UNIX) as server:
        patch.chdir(path.parent)  # the path of a socket must be short
        server.bind(path.name)


def _folder_is_a_link(saved: Saved) -> None:
    outside = saved.path("").parent.parent / "outside"
    saved.path("a").rename(outside)
    saved.path("a").symlink_to(outside)


def _manifest_is_a_folder(saved: Saved) -> None:
    saved.path(MANIFEST_NAME).unlink()
    saved.path(MANIFEST_NAME).mkdir()


DAMAGES: tuple[Damage, ...] = (
    *[_content("a/weights", kind) for kind in CONTENT],
    *[_content("state", kind) for kind in ("first bit", "middle bit", "last bit", "cut to half")],
    *[_content("metadata.json", kind) for kind in ("first bit", "last bit", "cut by one byte")],
    *[
        _content("large", kind, large=True)
        for kind in ("first bit", "middle bit", "last bit", "zeroed page", "repeated block")
    ],
    *[_content("large", kind, large=True) for kind in ("cut by one byte", "a byte appended")],
    Damage("empty grows", lambda saved: saved.put("empty", b"x"), {"empty": SIZE}),
    _gone("a/weights"),
    _gone("empty"),
    _gone("metadata.json"),
    _gone("a/weights", "a/optimizer"),
    _gone("a/weights", "a/optimizer", "state", "empty", "metadata.json"),
    _swapped("a/weights", "a/optimizer", CHANGED),
    _swapped("a/weights", "state", SIZE),
    _swapped("state", "empty", SIZE),
    _added("new"),
    _added("a/new", b""),
    _added("deep/er/new"),
    _added("manifest.json.bak"),
    _added(".hidden"),
    _renamed("a/weights", "a/weights.old"),
    _renamed("state", "State"),
    _renamed("a/weights", "weights"),
    Damage("several", _several, {"a/weights": CHANGED, "state": MISSING, "empty": SIZE}),
    Damage("manifest gone", _manifest_gone, {MANIFEST_NAME: "no committed checkpoint"}),
    Damage("manifest of another", _manifest_of_another,
           {MANIFEST_NAME: f"it belongs to checkpoint '{OTHER_UUID}'"}),
    Damage("manifest of before", _manifest_of_before, {"state": CHANGED}),
    *[_manifest(kind) for kind in MANIFEST],
    _in_folder("link to nothing", "state", lambda path: path.symlink_to("absent"),
               state="is a link whose target is not a file"),
    _in_folder("link to itself", "state", lambda path: path.symlink_to(path.name),
               state="is a link whose target is not a file"),
    _in_folder("link that leads out", "state", _link_elsewhere,
               state="is a link that leads out of the checkpoint, to"),
    _in_folder("link to another file", "a/weights", lambda path: path.symlink_to("optimizer"),
               a__weights=CHANGED),
    _in_folder("folder for a file", "state", Path.mkdir),
    _in_folder("pipe for a file", "empty", os.mkfifo, empty="is a named pipe, not a file"),
    _in_folder("socket for a file", "empty", _make_socket, empty="is a socket, not a file"),
    _in_folder("file for a folder", "hollow", Path.touch, **{"hollow": STRAY, "hollow/": MISSING}),
    _in_folder("empty folder gone", "hollow", lambda path: None, **{"hollow/": MISSING}),
    Damage("folder is a link", _folder_is_a_link,
           {"a": STRAY, "a/weights": MISSING, "a/optimizer": MISSING}, in_folder=True),
    Damage("manifest is a folder", _manifest_is_a_folder,
           {MANIFEST_NAME: "no committed checkpoint"}, in_folder=True),
)  # fmt: skip


def check_damage(saved: Saved, damage: Damage, folder: Path) -> None:
    """Damage a checkpoint, and check that all readers detect and name the damage.

    Args:
        saved: An intact checkpoint.
        damage: The damage.
        folder: Directory for downloads.

    Raises:
        AssertionError: If the damage is not detected or named, or a damaged file is returned.
    """
    damage.apply(saved)
    faults = verify_checkpoint(saved.storage, saved.uuid)
    assert {fault.name for fault in faults} == set(damage.faults), faults
    for fault in faults:
        assert re.search(damage.faults[fault.name], fault.reason), str(fault)
        assert fault.is_stray == (damage.faults[fault.name] == STRAY), str(fault)
    bad = {fault.name for fault in faults if not fault.is_stray and not fault.name.endswith("/")}
    good = set(saved.contents) - bad - {MANIFEST_NAME}
    if not bad:
        check_whole(saved, folder)
        return
    _check_refused(saved, bad, folder, None)
    if MANIFEST_NAME in bad:
        _check_refused(saved, bad, folder, good.__contains__)
        return
    for name in sorted(bad):
        _check_refused(saved, {name}, folder, {name}.__contains__)
        _check_refused(saved, {name}, folder, {name, "a/optimizer", "state"}.__contains__, bad)
    _check_part(saved, good, folder)


def check_whole(saved: Saved, folder: Path) -> None:
    """Check that a checkpoint can be read."""
    saved.context.download(saved.uuid, folder / "whole")
    with saved.context.restore_path(saved.uuid) as path:
        for name, content in saved.contents.items():
            if name != MANIFEST_NAME:
                assert (path / name).read_bytes() == content
                assert (folder / "whole" / name).read_bytes() == content


def _check_refused(
    saved: Saved,
    named: set[str],
    folder: Path,
    selector: Callable[[str], bool] | None,
    or_named: set[str] | None = None,
) -> None:
    """Check that a damaged file is never returned and that the error names it."""
    expected = (CheckpointCorruptError, CheckpointNotFoundError)
    names = "|".join(map(re.escape, sorted({*named, *(or_named or ())})))
    pattern = rf"is damaged: ({names}): |manifest\.json cannot be used|no committed checkpoint"
    (folder / "there").mkdir(exist_ok=True)
    (folder / "there" / "mine").write_bytes(b"mine")
    for target in ("absent", "there"):
        with pytest.raises(CheckpointError, match=pattern) as caught:
            saved.context.download(saved.uuid, folder / target, selector=selector)
        assert isinstance(caught.value, expected), repr(caught.value)
    assert sorted(path.name for path in folder.iterdir() if path.name != "source") == ["there"]
    assert [path.name for path in (folder / "there").iterdir()] == ["mine"]
    entered = False
    with (
        contextlib.suppress(*expected),
        saved.context.restore_path(saved.uuid, selector=selector),
    ):
        entered = True
    assert not entered, "restore_path handed out a damaged checkpoint"


def _check_part(saved: Saved, good: set[str], folder: Path) -> None:
    """Check that intact files can be downloaded."""
    saved.context.download(saved.uuid, folder / "part", selector=good.__contains__)
    with saved.context.restore_path(saved.uuid, selector=good.__contains__) as path:
        for name in good:
            assert (path / name).read_bytes() == saved.contents[name]
            assert (folder / "part" / name).read_bytes() == saved.contents[name]
    there = {
        path.relative_to(folder / "part").as_posix()
        for path in (folder / "part").rglob("*")
        if path.is_file()
    }
    assert there == good
