"""Names that cannot be files side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from detcore.errors import UnsafePathError
from detcore.storage import LocalStorage
from detcore.storage._keys import _tells_apart, check_targets


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["a", "a"], "they are the same file"),
        (["a", "a/b"], "a file and a folder at once"),
        (["a/b/c/d", "a/b"], "a file and a folder at once"),
    ],
)
def test_clashes_are_refused_before_anything_is_written(
    tmp_path: Path, names: list[str], reason: str
) -> None:
    storage = LocalStorage(tmp_path / "root")
    for index in range(len(names)):
        storage.replace(f"{index}", b"x")
    targets = [(tmp_path / "out" / name, f"{index}") for index, name in enumerate(names)]
    with pytest.raises(UnsafePathError, match=reason):
        storage.get_tree(targets)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Weights", "weights"),
        ("caf\u00e9", "cafe\u0301"),
        ("stra\u00dfe", "STRASSE"),
        ("A/x", "a/y"),
    ],
)
def test_names_that_some_file_systems_take_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    paths = [tmp_path / first, tmp_path / second]
    check_targets(paths)  # this one tells them apart
    assert list(tmp_path.iterdir()) == []
    # A file system that does not cannot be had here without being root.
    monkeypatch.setattr("detcore.storage._keys._tells_apart", lambda first, second: False)
    with pytest.raises(UnsafePathError, match="this file system takes them for one name"):
        check_targets(paths)
    assert list(tmp_path.iterdir()) == []


def test_whether_names_are_told_apart_is_tried_out(tmp_path: Path) -> None:
    asked: list[str] = []

    def folds(name: str) -> bool:
        asked.append(Path(name).name)
        return True

    paths = (tmp_path / "new" / "Weights", tmp_path / "new" / "weights")
    assert not _tells_apart(*paths, exists=folds)
    assert asked[0].endswith("new_weights")
    assert _tells_apart(*paths)
    assert list(tmp_path.iterdir()) == []
