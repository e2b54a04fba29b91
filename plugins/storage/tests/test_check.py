"""Results of ``check_storage`` for correct and faulty stores."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from detcore.storage import Entry, LocalStorage
from detcore_storage.store_check import check_storage

NAMES = [
    "write and read", "list", "overwrite", "names are taken literally", "conditional put",
    "conditional put, raced", "large file", "small files", "delete",
]  # fmt: skip


def test_correct_store_passes_all_checks(tmp_path: Path) -> None:
    findings = list(check_storage(LocalStorage(tmp_path / "store")))
    assert [finding.name for finding in findings] == NAMES
    assert all(finding.is_ok for finding in findings)
    texts = {finding.name: finding.text for finding in findings}
    assert re.fullmatch(r"\d+ ms for both", texts["write and read"])
    assert re.fullmatch(r"\d+ MB/s up, \d+ MB/s down", texts["large file"])
    assert re.fullmatch(r"\d+ files/s up, \d+ files/s down", texts["small files"])
    assert texts["conditional put, raced"] == "exactly one of 8 concurrent writers succeeded"
    assert list((tmp_path / "store").rglob("*")) == []


class Overwrites(LocalStorage):
    """Overwrites existing files in `create`."""

    def create(self, key: str, data: bytes) -> None:
        self.replace(key, data)


class Forgets(LocalStorage):
    """Lists nothing."""

    def list(self, prefix: str = "") -> list[Entry]:
        return []


class TakesNeighbours(LocalStorage):
    """Deletes files of a similar prefix."""

    def delete_tree(self, prefix: str) -> None:
        super().delete_tree(prefix)
        super().delete_tree(f"{prefix}-not")


class KeepsAll(LocalStorage):
    """Deletes nothing."""

    def delete_tree(self, prefix: str) -> None:
        pass


class KnowsPatterns(LocalStorage):
    """Deletes every file that matches a pattern."""

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            folder = self.root / key.rpartition("/")[0]
            for path in folder.glob(key.rpartition("/")[2]):
                path.unlink()


@pytest.mark.parametrize(
    ("kind", "failed", "is_needed"),
    [
        (Overwrites, {"conditional put": "silently overwrites the first",
                      "conditional put, raced": "8 of 8 concurrent writers .* succeeded"}, False),
        (KnowsPatterns, {"names are taken literally": "deleting '.*' deleted '10.bin'"}, False),
        (Forgets, {"list": r"a new file of 2 bytes was listed as \[\]"}, True),
        (TakesNeighbours, {"delete": "deleted files of a similar prefix"}, True),
        (KeepsAll, {"delete": "kept its files"}, True),
    ],
)  # fmt: skip
def test_faulty_store_fails_its_check(
    tmp_path: Path, kind: type[LocalStorage], failed: dict[str, str], is_needed: bool
) -> None:
    findings = list(check_storage(kind(tmp_path / "store")))
    texts = {finding.name: finding.text for finding in findings if not finding.is_ok}
    assert list(texts) == list(failed)
    for name, text in failed.items():
        assert re.search(text, texts[name])
    assert all(finding.is_needed == is_needed for finding in findings if not finding.is_ok)
    # No check follows a failed required check.
    last = list(failed)[-1] if is_needed else NAMES[-1]
    assert [finding.name for finding in findings] == NAMES[: NAMES.index(last) + 1]
