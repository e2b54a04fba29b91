"""Deleting, whole and in part."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from detcore.checkpoint import verify_checkpoint
from detcore.checkpoint.delete import split_by_globs
from detcore.errors import CheckpointNotFoundError, StorageError

META = {"steps_completed": 1}
FILES = [
    "a.txt", "b.bin", ".hidden", "metadata.json",
    "dir/a.txt", "dir/sub/c.txt", "dir/sub/d.bin", "other/e.txt",
]  # fmt: skip
EMPTY = ["void", "dir/void"]


@pytest.fixture
def uuid(desk: Any, tmp_path: Path) -> str:
    root = tmp_path / "parts"
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    for name in EMPTY:
        (root / name).mkdir()
    return str(desk.upload(root, META))


@pytest.mark.parametrize(
    ("globs", "left"),
    [
        (["**/*.txt"], {"b.bin", ".hidden", "metadata.json", "dir/sub/d.bin", "void/",
                        "dir/void/", "other/"}),
        (["dir/**/*.bin", "void"], {*FILES, "dir/void/"} - {"dir/sub/d.bin"}),
        (["absent", "*/absent/*"], {*FILES, "void/", "dir/void/"}),
        ([], {*FILES, "void/", "dir/void/"}),
    ],
)  # fmt: skip
def test_globs_follow_pathlib(desk: Any, uuid: str, globs: list[str], left: set[str]) -> None:
    resources = desk.delete(uuid, globs=globs)
    assert set(resources) == left
    assert resources == {name: 0 if name.endswith("/") else len(name) for name in left} | {
        "metadata.json": len("metadata.json")
    }
    assert verify_checkpoint(desk.storage, uuid) == []
    assert set(desk.names(uuid)) == {n for n in left if not n.endswith("/")} | {"manifest.json"}
    partly = len(left) < len(FILES) + len(EMPTY)
    assert desk.states() == {uuid: "PARTIALLY_DELETED" if partly else "COMPLETED"}
    assert desk.get_metadata(uuid) == META


@pytest.mark.parametrize("globs", [None, ["**/*"], ["**"], ["*"], [".*", "*", "dir/*"]])
def test_everything(desk: Any, uuid: str, globs: list[str] | None) -> None:
    assert desk.delete(uuid, globs=globs) == {}
    assert desk.states() == {uuid: "DELETED"}
    assert desk.names(uuid) == []
    if desk.storage.direct_path("") is not None:
        assert not (desk.storage.root / uuid).exists()
    with pytest.raises(CheckpointNotFoundError):
        desk.get_metadata(uuid)


def test_delete_is_idempotent_and_keeps_neighbours(desk: Any, uuid: str, folder: Path) -> None:
    other = desk.upload(folder, META)
    for _ in range(2):
        assert desk.delete(uuid) == {}
    assert desk.states() == {uuid: "DELETED", other: "COMPLETED"}
    assert verify_checkpoint(desk.storage, other) == []


def test_delete_removes_manifest_first(local_desk: Any, folder: Path) -> None:
    """A deletion that fails half way leaves no checkpoint, rather than a damaged one."""
    uuid = local_desk.upload(folder, META)
    path = local_desk.storage.root / uuid
    states: list[bool] = []

    class Failing(type(local_desk.storage)):  # type: ignore[misc]
        def delete_tree(self, prefix: str) -> None:
            states.append((path / "manifest.json").exists())
            raise StorageError("the disk went away")

    local_desk.storage.__class__ = Failing
    with pytest.raises(StorageError, match="went away"):
        local_desk.delete(uuid)
    assert states == [False]
    assert (path / "weights.bin").exists()
    assert local_desk.states() == {uuid: "DELETING"}


def pathlib_left(root: Path, globs: list[str]) -> set[str]:
    """Return the names that remain after deleting the matches of pathlib's glob."""
    import shutil

    for pattern in globs:
        for path in list(root.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            elif path.exists():
                path.unlink()
        if not root.exists():
            return set()
    return {
        path.relative_to(root).as_posix() + ("/" if path.is_dir() else "")
        for path in root.rglob("*")
        if path.is_file() or not any(path.iterdir())
    }


@pytest.mark.parametrize("seed", range(40))
def test_random_globs_follow_pathlib(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    root = tmp_path / "root"
    root.mkdir()
    for _ in range(12):
        path = root.joinpath(*dice.choices(["a", "b", "ab", ".c"], k=dice.randint(1, 3)))
        if not any(parent.is_file() for parent in path.parents) and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            if dice.random() < 0.3:
                path.mkdir()
            else:
                path.write_text("")
    parts = ["a", "*", "**", "a*", "?", "[ab]", ".c", "*b"]
    pattern = "/".join(dice.choices(parts, k=dice.randint(1, 3)))
    files = {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()}
    folders = [p for p in root.rglob("*") if p.is_dir()]
    empty = {p.relative_to(root).as_posix() for p in folders if not any(p.iterdir())}
    split = split_by_globs(files, empty, [pattern])
    remaining = (files - split.deleted_files) | {f"{name}/" for name in split.empty_directories}
    assert remaining == pathlib_left(root, [pattern]), pattern
