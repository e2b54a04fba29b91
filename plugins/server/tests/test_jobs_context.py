"""Tests of packing the submitted directory, and of its errors."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from detcore.client.http import MAX_CONTEXT_BYTES, pack_directory
from detcore.errors import ConfigError

FILES = (
    "model_def.py",
    "data/train.bin",
    "data/readme.txt",
    "sub/data/x.bin",
    "sub/build/out.txt",
    "build",
    "logs/a.log",
    "logs/keep.log",
    "deep/er/a.log",
    "#hash",
    "!bang",
    ".git/config",
    "sub/__pycache__/m.pyc",
    "sub/.ipynb_checkpoints/n.ipynb",
)
# Files that `git ls-files --others --exclude-from` of git 2.39 leaves out.
PATTERNS = {
    "data/": {"data/train.bin", "data/readme.txt", "sub/data/x.bin"},
    "/data/": {"data/train.bin", "data/readme.txt"},
    "data/*\n!data/readme.txt": {"data/train.bin"},
    "data/\n!data/readme.txt": {"data/train.bin", "data/readme.txt", "sub/data/x.bin"},
    "build/": {"sub/build/out.txt"},
    "*.log\n!keep.log": {"logs/a.log", "deep/er/a.log"},
    "# a comment\n\n\\#hash\n\\!bang": {"#hash", "!bang"},
    "*\n!*/\n!*.py": set(FILES) - {"model_def.py"},
    "/*\n!/model_def.py": set(FILES) - {"model_def.py"},
}
ALWAYS = {".git/config", "sub/__pycache__/m.pyc", "sub/.ipynb_checkpoints/n.ipynb"}


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def packed(folder: Path) -> dict[str, bytes | None]:
    """Return the entries of a directory's archive. Directories have no content."""
    context = pack_directory(folder)
    with context.file, tarfile.open(fileobj=context.file, mode="r:gz") as archive:
        contents: dict[str, bytes | None] = {}
        for member in archive:
            file = archive.extractfile(member)
            contents[member.name] = None if file is None else file.read()
        return contents


def files(folder: Path) -> set[str]:
    return {name for name, content in packed(folder).items() if content is not None}


@pytest.mark.parametrize("patterns", PATTERNS)
def test_ignore_patterns_match_git(patterns: str, tmp_path: Path) -> None:
    fill(tmp_path, *FILES, ".detignore")
    (tmp_path / ".detignore").write_text(patterns)
    names = {*FILES, ".detignore"} - PATTERNS[patterns] - ALWAYS
    assert files(tmp_path) - {".detignore"} == names - {".detignore"}


def test_default_exclusions_can_be_included(tmp_path: Path) -> None:
    fill(tmp_path, *FILES)
    assert files(tmp_path) == set(FILES) - ALWAYS
    (tmp_path / ".detignore").write_text("!__pycache__\n")
    assert "sub/__pycache__/m.pyc" in files(tmp_path)


def test_archive_is_deterministic(tmp_path: Path) -> None:
    digests = set()
    for number, names in enumerate((FILES, FILES[::-1])):
        folder = fill(tmp_path / str(number), *names)
        (folder / "model_def.py").chmod(0o600 if number else 0o644)
        os.utime(folder / "model_def.py", (number, number))
        context = pack_directory(folder)
        context.file.close()
        digests.add(context.digest)
    assert len(digests) == 1
    (folder / "model_def.py").chmod(0o700)
    context = pack_directory(folder)
    context.file.close()
    assert context.digest not in digests


def sparse(path: Path, size_bytes: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size_bytes)


def test_size_error_names_largest_entries(tmp_path: Path) -> None:
    """The directories contain 97 MB and some small files."""
    fill(tmp_path, *(f"src/m{number}.py" for number in range(30)))
    sparse(tmp_path / "runs" / "old" / "weights.h5", 50_000_000)
    for number in range(4):
        sparse(tmp_path / "data" / f"part{number}.bin", 10_000_000)
    sparse(tmp_path / "movie.mp4", 7_000_000)
    with pytest.raises(ConfigError) as raised:
        pack_directory(tmp_path)
    text = str(raised.value)
    assert "has 97 MB; expected at most 96 MB" in text
    listed = [line.split() for line in text.splitlines() if line.startswith("  ")]
    assert [" ".join(words) for words in listed] == [
        "50 MB runs", "40 MB data", "7 MB movie.mp4", "290 B src",
    ]  # fmt: skip
    assert str(tmp_path / ".detignore") in text
    (tmp_path / ".detignore").write_text("data/\n")
    assert "movie.mp4" in files(tmp_path)


def test_exact_size_limit_is_accepted(tmp_path: Path) -> None:
    sparse(tmp_path / "weights.h5", MAX_CONTEXT_BYTES)
    pack_directory(tmp_path).file.close()
    (tmp_path / "one").write_text("1")
    with pytest.raises(ConfigError, match="expected at most 96 MB"):
        pack_directory(tmp_path)


def test_links_inside_directory_are_followed(tmp_path: Path) -> None:
    folder = fill(tmp_path / "code", "real/m.py", "a.py")
    (folder / "b.py").symlink_to("a.py")
    (folder / "linked").symlink_to("real")
    assert packed(folder) == {
        "a.py": b"a.py",
        "b.py": b"a.py",
        "linked": None,
        "linked/m.py": b"real/m.py",
        "real": None,
        "real/m.py": b"real/m.py",
    }


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("../secret", "is a link to .*secret, which is not in the submitted directory"),
        ("/etc/hostname", "is a link to /etc/hostname, which is not in the submitted directory"),
        ("nowhere", "is a link to 'nowhere', which does not exist"),
        ("odd", "'odd', which does not exist"),
        (".", "which contains the link"),
        ("..", "which is not in the submitted directory"),
    ],
)
def test_other_links_are_rejected(target: str, words: str, tmp_path: Path) -> None:
    fill(tmp_path, "secret")
    folder = fill(tmp_path / "code", "a.py")
    (folder / "odd").symlink_to(target)
    with pytest.raises(ConfigError, match=f"(?s){words}.*exclude it with a line in .*: /odd"):
        pack_directory(folder)
    (folder / ".detignore").write_text("/odd\n")
    assert files(folder) == {"a.py", ".detignore"}


def test_special_files_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="pipe cannot be submitted: it is neither"):
        pack_directory(tmp_path)
    (tmp_path / "pipe").unlink()
    monkeypatch.chdir(tmp_path)  # socket names must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("door")
        with pytest.raises(ConfigError, match="door cannot be submitted: it is neither"):
            pack_directory(tmp_path)


def test_names_are_checked_before_upload(tmp_path: Path) -> None:
    fill(tmp_path / "one", "Model.py", "model.py")
    with pytest.raises(ConfigError, match=r"'Model\.py' and 'model\.py' .* differ only in case"):
        pack_directory(tmp_path / "one")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / os.fsdecode(b"a\xff")).touch()
    with pytest.raises(ConfigError, match="its name is not UTF-8"):
        pack_directory(tmp_path / "two")


def test_too_many_files_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detcore.client.http.packed_context.MAX_CONTEXT_ENTRIES", 20)
    fill(tmp_path, *(f"{number}.txt" for number in range(21)))
    with pytest.raises(ConfigError, match=r"more than 20 files and directories.*\n.*\.detignore"):
        pack_directory(tmp_path)


def test_invalid_patterns_are_rejected(tmp_path: Path) -> None:
    fill(tmp_path, "a.py")
    (tmp_path / ".detignore").write_text("a\n!\n")
    with pytest.raises(ConfigError, match=r"\.detignore has an invalid pattern"):
        pack_directory(tmp_path)


UNREADABLE = """
import gzip, os, pathlib, pathspec, sys, tarfile, tempfile
from detcore.errors import ConfigError
from detcore.client.http import pack_directory
if os.getuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
try:
    pack_directory(pathlib.Path(sys.argv[1]))
except ConfigError as error:
    print(error)
"""


def test_unreadable_path_is_named(tmp_path: Path) -> None:
    folder = fill(tmp_path / "code", "a.py", "secret/b.py", "c.py", "d.py")
    (folder / "a.py").chmod(0)
    (folder / "secret").chmod(0)
    folder.chmod(0o755)
    above = [path for path in folder.parents if path.stat().st_uid == os.getuid()]
    modes = [(path, path.stat().st_mode) for path in above]
    try:
        for path, mode in modes:
            path.chmod(mode | 0o111)  # root drops its permissions and still needs access
        result = subprocess.run(
            [sys.executable, "-c", UNREADABLE, str(folder)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    finally:
        for path, mode in modes:
            path.chmod(mode)
        (folder / "secret").chmod(0o700)
    assert f"files in {folder} cannot be read:\n  a.py: Permission denied\n" in result
    assert "  secret/: Permission denied\n" in result
    assert ".detignore" in result
