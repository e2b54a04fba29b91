"""Digests detect any change of a file."""

from __future__ import annotations

import random
from pathlib import Path

from detcore.storage import Digester, FileDigest, digest_file


def test_digest_changes_with_any_damage(tmp_path: Path) -> None:
    chooser = random.Random(1)
    original = chooser.randbytes(3_000_001)
    path = tmp_path / "file"
    path.write_bytes(original)
    expected = digest_file(path)
    assert expected.size == len(original)
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
        assert digest_file(path) != expected


def test_digest_does_not_depend_on_pieces() -> None:
    data = random.Random(2).randbytes(100_000)
    digest, pieces = Digester(), Digester()
    digest.update(data)
    for start in range(0, len(data), 777):
        pieces.update(memoryview(data)[start : start + 777])
    assert digest.result() == pieces.result()


def test_digest_equals_published_value() -> None:
    digester = Digester()
    assert digester.result() == FileDigest(0, "99aa06d3014798d86001c324468d497f")
