"""Damage to a checkpoint is found and named, on every back end."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from detcore.checkpoint._download import download_checkpoint
from detcore.checkpoint._manifest import Manifest, encode_manifest
from detcore.checkpoint._verify import verify_checkpoint
from detcore.errors import CheckpointCorruptError
from detcore.storage import StorageBackend

UUID = "0d7e9a34-4ad4-4e7e-9f8c-0123456789ab"
FILES = {"a/weights": 70_000, "a/optimizer": 70_000, "state": 33, "empty": 0, "large": 9_000_000}
FLIPS = 40


@pytest.fixture
def committed(storage: StorageBackend, tmp_path: Path) -> dict[str, bytes]:
    """A checkpoint; gives what is in it."""
    chooser = random.Random(3)
    contents = {name: chooser.randbytes(size) for name, size in FILES.items()}
    pairs = []
    for name, content in contents.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        pairs.append((path, f"{UUID}/{name}"))
    digests = storage.put_tree(pairs)
    manifest = Manifest(
        uuid=UUID,
        steps_completed=1,
        metadata={"steps_completed": 1},
        created=datetime.datetime.now(datetime.timezone.utc),
        files={key[len(UUID) + 1 :]: digest for key, digest in digests.items()},
    )
    storage.create(f"{UUID}/manifest.json", encode_manifest(manifest))
    assert verify_checkpoint(storage, UUID) == []
    return contents


def faulty(storage: StorageBackend) -> set[str]:
    return {fault.name for fault in verify_checkpoint(storage, UUID)}


def test_all_damage_is_found_and_named(
    storage: StorageBackend, committed: dict[str, bytes], tmp_path: Path
) -> None:
    chooser = random.Random(4)
    small = [name for name, size in FILES.items() if 0 < size < 100_000]
    for attempt in range(FLIPS):
        # The large file is stored anew each time: a few of it will do.
        name = "large" if attempt < 3 else chooser.choice(small)
        data = bytearray(committed[name])
        data[chooser.randrange(len(data))] ^= 1 << chooser.randrange(8)
        storage.replace(f"{UUID}/{name}", bytes(data))
        assert faulty(storage) == {name}
        if attempt % 10 == 0:
            with pytest.raises(CheckpointCorruptError, match=name):
                download_checkpoint(storage, UUID, tmp_path / "out")
            assert not (tmp_path / "out").exists()
        storage.replace(f"{UUID}/{name}", committed[name])
    for name in ("a/weights", "state"):
        storage.replace(f"{UUID}/{name}", committed[name][:-1])
        assert faulty(storage) == {name}
        storage.replace(f"{UUID}/{name}", b"")
        assert faulty(storage) == {name}
        storage.delete([f"{UUID}/{name}"])
        assert faulty(storage) == {name}
        storage.replace(f"{UUID}/{name}", committed[name])
    storage.replace(f"{UUID}/a/weights", committed["a/optimizer"])
    storage.replace(f"{UUID}/a/optimizer", committed["a/weights"])
    assert faulty(storage) == {"a/weights", "a/optimizer"}
    storage.replace(f"{UUID}/a/weights", committed["a/weights"])
    storage.replace(f"{UUID}/a/optimizer", committed["a/optimizer"])
    storage.replace(f"{UUID}/empty", b"x")
    storage.replace(f"{UUID}/added", b"x")
    assert faulty(storage) == {"empty", "added"}
    storage.delete([f"{UUID}/added"])
    storage.replace(f"{UUID}/empty", b"")
    assert faulty(storage) == set()
    download_checkpoint(storage, UUID, tmp_path / "out")
    assert {
        path.relative_to(tmp_path / "out").as_posix(): path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    } == committed


def test_damage_to_the_manifest_is_found(
    storage: StorageBackend, committed: dict[str, bytes]
) -> None:
    assert committed
    key = f"{UUID}/manifest.json"
    original = storage.read(key)
    chooser = random.Random(5)
    damages: list[Callable[[bytearray], None]] = [
        *[lambda data: _flip(data, chooser)] * 20,
        lambda data: data.__delitem__(slice(-40, None)),
        lambda data: data.__setitem__(slice(0, 4), bytes(4)),
    ]
    for damage in damages:
        data = bytearray(original)
        damage(data)
        storage.replace(key, bytes(data))
        assert faulty(storage) == {"manifest.json"}, data.decode("latin-1")


def _flip(data: bytearray, chooser: random.Random) -> None:
    """Flip a bit of a letter or digit: white space between fields means nothing."""
    while True:
        place = chooser.randrange(len(data))
        if chr(data[place]).isalnum():
            data[place] ^= 1
            return
