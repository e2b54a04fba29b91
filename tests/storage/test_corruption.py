"""Damage to a checkpoint is detected and named on every back end."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from checkpoint_damage import DAMAGES, check_damage, check_whole, save

from detcore.checkpoint import verify_checkpoint
from detcore.storage import FileDigest, LocalStorage, StorageBackend

ANYWHERE = {damage.name: damage for damage in DAMAGES if not damage.in_folder}
IN_FOLDER = {damage.name: damage for damage in DAMAGES if damage.in_folder}
FLIPS = 40


@pytest.mark.soak
@pytest.mark.parametrize("name", ANYWHERE)
def test_damage_is_detected_and_named(storage: StorageBackend, name: str, tmp_path: Path) -> None:
    checkpoint = save(storage, tmp_path / "to" / "source", large=ANYWHERE[name].large)
    check_damage(checkpoint, ANYWHERE[name], tmp_path / "to")


@pytest.mark.parametrize("name", ANYWHERE)
def test_damage_in_directory_is_named(name: str, tmp_path: Path) -> None:
    checkpoint = save(
        LocalStorage(tmp_path / "root"), tmp_path / "to" / "source", large=ANYWHERE[name].large
    )
    check_damage(checkpoint, ANYWHERE[name], tmp_path / "to")


@pytest.mark.parametrize("name", IN_FOLDER)
def test_damage_of_local_directories(tmp_path: Path, name: str) -> None:
    checkpoint = save(LocalStorage(tmp_path / "root"), tmp_path / "to" / "source")
    check_damage(checkpoint, IN_FOLDER[name], tmp_path / "to")


def test_intact_checkpoint_is_returned(storage: StorageBackend, tmp_path: Path) -> None:
    check_whole(save(storage, tmp_path / "to" / "source", large=True), tmp_path / "to")


@pytest.mark.soak
def test_bit_flips_are_detected(storage: StorageBackend, tmp_path: Path) -> None:
    checkpoint = save(storage, tmp_path / "source")
    chooser = random.Random(4)
    names = [name for name, content in checkpoint.contents.items() if content]
    for _ in range(FLIPS):
        name = chooser.choice(names)
        data = bytearray(checkpoint.contents[name])
        place = chooser.randrange(len(data))
        while name == "manifest.json" and not chr(data[place]).isalnum():
            place = chooser.randrange(len(data))  # whitespace between fields has no meaning
        data[place] ^= 1 << chooser.randrange(5)
        checkpoint.put(name, bytes(data))
        reported = [fault.name for fault in verify_checkpoint(storage, checkpoint.uuid)]
        assert reported == [name], (name, place)
        checkpoint.put(name, checkpoint.contents[name])
    assert verify_checkpoint(storage, checkpoint.uuid) == []


class Blind(LocalStorage):
    """A storage without digests: each file keeps the digest with which it was saved."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.known: dict[str, str] = {}

    def put_tree(self, pairs: Sequence[Any], **options: Any) -> dict[str, FileDigest]:
        return self._unchanged(super().put_tree(pairs, **options))

    def get_tree(self, pairs: Sequence[Any], **options: Any) -> dict[str, FileDigest]:
        return self._unchanged(super().get_tree(pairs, **options))

    def digest_tree(self, keys: Sequence[str], **options: Any) -> dict[str, FileDigest]:
        return self._unchanged(super().digest_tree(keys, **options))

    def _unchanged(self, digests: dict[str, FileDigest]) -> dict[str, FileDigest]:
        return {
            key: FileDigest(reported.size, self.known.setdefault(key, reported.value))
            for key, reported in digests.items()
        }


def test_corpus_check_can_fail(tmp_path: Path) -> None:
    """Damage that changes no size is only detected by digests, so it must go unnoticed here."""
    unnoticed = set()
    for index, damage in enumerate(DAMAGES):
        folder = tmp_path / str(index)
        checkpoint = save(Blind(folder / "root"), folder / "to" / "source", large=damage.large)
        try:
            check_damage(checkpoint, damage, folder / "to")
        except AssertionError:
            unnoticed.add(damage.name)
    told_by_digests = {
        damage.name
        for damage in DAMAGES
        if any("digest" in reason for reason in damage.faults.values())
    }
    # An older manifest has digests that the files never had.
    assert unnoticed == told_by_digests - {"manifest of before"}
    assert len(unnoticed) >= 20
