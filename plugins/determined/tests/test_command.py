"""The command ``detcore migrate`` on files of all kinds."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_distributions import run_detcore

OLD = b"from determined.keras import TFKerasTrial\n\n\nclass T(TFKerasTrial):\n    pass  # here\n"
NEW = OLD.replace(b"determined.keras", b"detcore_keras")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "detcore", "migrate", *arguments],
        cwd=folder, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def reports(folder: Path, *arguments: str) -> dict[str, Any]:
    """Return the files of ``--json`` by name."""
    document = json.loads(run(folder, "--json", *arguments).stdout)
    return {Path(report["path"]).name: report for report in document["files"]}


def test_migrate_writes_once_and_keeps_permissions(tmp_path: Path) -> None:
    path = tmp_path / "model_def.py"
    path.write_bytes(OLD)
    path.chmod(0o751)
    first = run(tmp_path, "model_def.py")
    assert first.returncode == 0
    assert first.stdout == "changed model_def.py (1 place)\n"
    assert first.stderr == "1 file, 1 changed, 0 places left to do by hand\n"
    assert path.read_bytes() == NEW
    assert stat.S_IMODE(path.stat().st_mode) == 0o751
    before = path.stat()
    second = run(tmp_path, "model_def.py")
    assert (second.returncode, second.stdout) == (0, "")
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert os.listdir(tmp_path) == ["model_def.py"]


@pytest.mark.parametrize("flag", ["--check", "--diff"])
def test_check_and_diff_do_not_write(tmp_path: Path, flag: str) -> None:
    path = tmp_path / "model_def.py"
    path.write_bytes(OLD)
    result = run(tmp_path, flag, "model_def.py")
    assert result.returncode == 1
    assert path.read_bytes() == OLD
    path.write_bytes(NEW)
    assert run(tmp_path, flag, "model_def.py").returncode == 0


def test_patch_accepts_diff(tmp_path: Path) -> None:
    path = tmp_path / "model_def.py"
    path.write_bytes(OLD.rstrip(b"\n") + b" \xc3\xa4")  # no line end at the end of the file
    diff = run(tmp_path, "--diff", "model_def.py").stdout
    assert diff.startswith("--- a/model_def.py\n+++ b/model_def.py\n@@ ")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply"], cwd=tmp_path, input=diff, text=True, check=True)
    assert path.read_bytes() == NEW.rstrip(b"\n") + b" \xc3\xa4"


def test_remaining_names_are_reported_with_position(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import determined as det\n\nx = det.gpu.get_gpus()\n")
    (tmp_path / "b.py").write_text("def f(:\n")
    result = run(tmp_path, ".")
    assert result.returncode == 1  # b.py cannot be read
    assert "a.py:3:5: left: determined.gpu: " in result.stdout
    assert "b.py:1:7: error: it is not valid Python: " in result.stdout
    assert result.stderr.endswith("2 files, 0 changed, 1 place left to do by hand, 1 error\n")
    found = reports(tmp_path, ".")
    (finding,) = found["a.py"]["findings"]
    assert (finding["line"], finding["column"], finding["kind"]) == (3, 5, "left")
    assert finding["advice"]
    (tmp_path / "b.py").unlink()
    assert run(tmp_path, ".").returncode == 0


def test_directory_search_skips_foreign_files(tmp_path: Path) -> None:
    for name in (
        "model_def.py", "deep/er/data.pyi", "const.yaml", "notes.txt", ".git/hook.py",
        "venv/lib/x.py", "mine/pyvenv.cfg", "mine/lib/y.py", "node_modules/z.py",
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(OLD)
    (tmp_path / "loop").symlink_to(tmp_path)
    assert sorted(reports(tmp_path, ".")) == ["const.yaml", "data.pyi", "model_def.py"]
    assert (tmp_path / "deep/er/data.pyi").read_bytes() == NEW
    assert (tmp_path / ".git/hook.py").read_bytes() == OLD
    assert list(reports(tmp_path, "--check", "notes.txt", "notes.txt")) == ["notes.txt"]


def test_other_bytes_are_unchanged(tmp_path: Path) -> None:
    contents = {
        "bom.py": b"\xef\xbb\xbf" + OLD,
        "crlf.py": OLD.replace(b"\n", b"\r\n"),
        "mixed.py": OLD.replace(b"\n", b"\r\n", 1),
        "latin.py": b"# -*- coding: latin-1 -*-\n# \xe4\xf6\xfc\x85\x0c\n" + OLD,
        "big5.py": "# coding: big5\n# 中文\n".encode("big5") + OLD,
        "no_end.py": OLD.rstrip(b"\n"),
        "feed.py": b"\x0c\n" + OLD + b"\x0c\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    assert run(tmp_path, ".").returncode == 0
    for name, content in contents.items():
        requirement = content.replace(b"determined.keras", b"detcore_keras")
        assert (tmp_path / name).read_bytes() == requirement, name


def test_unreadable_files_do_not_stop_migration(tmp_path: Path) -> None:
    contents = {
        "undecodable.py": b"# \xff\n" + OLD,
        "unknown_coding.py": b"# coding: martian\n" + OLD,
        "lossy.py": b"# coding: utf-7\n# +AGE-\n" + OLD,
        "null.py": OLD + b"\0",
        "readonly.py": OLD,
        "good.py": OLD,
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "readonly.py").chmod(0o444)
    os.mkfifo(tmp_path / "pipe.py")
    names = [*contents, "pipe.py", "missing.py", "folder_that_is_not"]
    result = reports(tmp_path, *names)
    for name in names:
        kinds = [finding["kind"] for finding in result[name]["findings"]]
        assert kinds == ([] if name == "good.py" else ["error"]), name
        if name in contents:
            requirement = NEW if name == "good.py" else contents[name]
            assert (tmp_path / name).read_bytes() == requirement
    assert "chmod u+w" in result["readonly.py"]["findings"][0]["problem"]
    assert result["missing.py"]["findings"][0]["problem"] == "No such file or directory"
    assert result["pipe.py"]["findings"][0]["problem"] == "it is not a regular file"


def test_link_target_is_migrated_once(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "model_def.py").write_bytes(OLD)
    link = tmp_path / "model_def.py"
    link.symlink_to("real/model_def.py")
    broken = tmp_path / "broken.py"
    broken.symlink_to("nowhere.py")
    assert list(reports(tmp_path, ".")) == ["model_def.py"]
    assert link.is_symlink()
    assert (tmp_path / "real" / "model_def.py").read_bytes() == NEW
    assert run(tmp_path, "broken.py").returncode == 1


def test_unwritable_directory_keeps_files(tmp_path: Path) -> None:
    """A limit on file sizes simulates a full disk."""
    path = tmp_path / "model_def.py"
    path.write_bytes(OLD + b"# " + b"x" * 9000 + b"\n")
    content = path.read_bytes()
    program = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from detcore_determined.migrate import migrate_file\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "print(migrate_file(Path('model_def.py')).findings[0])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert "not written: File too large" in result.stdout
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["model_def.py"]


def test_migrate_is_listed_and_has_help() -> None:
    assert "migrate" in run_detcore("--help").stdout
    text = run_detcore("migrate", "--help").stdout
    for words in ("--check", "--diff", "--json", "Examples:", "Exit codes:"):
        assert words in text
