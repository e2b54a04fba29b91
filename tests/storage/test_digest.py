"""Digests: what they find, and that checkpoints of earlier releases still verify."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import pytest

from detcore.checkpoint._manifest import decode_manifest, encode_manifest, read_manifest
from detcore.checkpoint._verify import verify_checkpoint
from detcore.errors import StorageError
from detcore.storage import Digester, FileDigest, LocalStorage, digest_file

UUID = "0d7e9a34-4ad4-4e7e-9f8c-0123456789ab"


@pytest.mark.parametrize("algorithm", ["xxh3_128", "sha256"])
def test_flips_truncations_swaps_and_repeats_change_it(algorithm: str, tmp_path: Path) -> None:
    chooser = random.Random(1)
    original = chooser.randbytes(3_000_001)
    path = tmp_path / "file"
    path.write_bytes(original)
    expected = digest_file(path, algorithm)
    assert expected.size == len(original)
    assert expected.algorithm == algorithm
    for attempt in range(120):
        data = bytearray(original)
        place = chooser.randrange(len(data) - 64)
        if attempt % 4 == 0:
            data[place] ^= 1 << chooser.randrange(8)
        elif attempt % 4 == 1:
            del data[-chooser.randrange(1, 1000) :]
        elif attempt % 4 == 2:
            other = chooser.randrange(len(data) - 64)
            data[place : place + 32], data[other : other + 32] = (
                data[other : other + 32],
                data[place : place + 32],
            )
        else:
            data[place : place + 32] = bytes(32)
        assert bytes(data) != original
        path.write_bytes(data)
        assert digest_file(path, algorithm) != expected


def test_pieces_make_no_difference() -> None:
    data = random.Random(2).randbytes(100_000)
    whole, pieces = Digester(), Digester()
    whole.update(data)
    for start in range(0, len(data), 777):
        pieces.update(memoryview(data)[start : start + 777])
    assert whole.result() == pieces.result()


def test_the_value_is_the_published_one() -> None:
    digester = Digester("xxh3_128")
    assert digester.result() == FileDigest(0, "99aa06d3014798d86001c324468d497f", "xxh3_128")


def test_an_algorithm_that_is_not_known() -> None:
    with pytest.raises(StorageError, match="'md4' is not known here; known: sha256, xxh3_128"):
        Digester("md4")


def old_manifest(content: bytes) -> bytes:
    """Return a manifest as releases before this one wrote them."""
    fields = {
        "format": "detcore-checkpoint", "version": 1, "uuid": UUID,
        "created": "2026-11-20T12:00:00.000000+00:00", "steps_completed": 3, "parent": None,
        "versions": {"detcore": "0.1.0"}, "metadata": {"steps_completed": 3}, "digest": "sha256",
        "files": {
            "weights": {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()},
        },
        "directories": [],
    }  # fmt: skip
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps({**fields, "checksum": checksum}).encode()


def test_a_checkpoint_with_sha256_still_verifies(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.replace(f"{UUID}/weights", b"0123456789")
    storage.create(f"{UUID}/manifest.json", old_manifest(b"0123456789"))
    manifest = read_manifest(storage, UUID)
    assert manifest.algorithm == "sha256"
    assert verify_checkpoint(storage, UUID) == []
    assert decode_manifest(encode_manifest(manifest), UUID, storage.url) == manifest
    storage.replace(f"{UUID}/weights", b"0123456780")
    assert [fault.name for fault in verify_checkpoint(storage, UUID)] == ["weights"]
