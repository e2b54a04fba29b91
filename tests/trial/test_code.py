"""The files of a code folder that are copied into a checkpoint."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import yaml

from detcore.trial import code_copy
from detcore.trial.code_copy import copy_code, list_code
from detcore.trial.trial_loading import import_from_directory


def write(root: Path, name: str, size_bytes: int = 3) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size_bytes)


def test_code_copy_excludes_data(tmp_path: Path) -> None:
    source = tmp_path / "model"
    for name in ("model_def.py", "const.yaml", "package/layers.py", "package/vocabulary.txt"):
        write(source, name)
    for name in ("data/train.npy", ".env", ".git/config.txt", "package/__pycache__/layers.py"):
        write(source, name)
    write(source, "huge.json", (1 << 20) + 1)
    write(source, "runs/detcore.db")
    write(source, "runs/experiments/1/run-1.json")
    write(source, "kept/4f2a/manifest.json")
    write(source, "kept/4f2a/code/model_def.py")
    outside = tmp_path / "outside"
    write(outside, "secret.txt")
    (source / "link").symlink_to(outside)
    (source / "link.txt").symlink_to(outside / "secret.txt")

    copy_code(source, list_code(source), tmp_path / "code", config={})
    copied = {
        path.relative_to(tmp_path / "code").as_posix()
        for path in (tmp_path / "code").rglob("*")
        if path.is_file()
    }
    assert copied == {
        "const.yaml",
        "model_def.py",
        "package/layers.py",
        "package/vocabulary.txt",
    }


def test_huge_code_folder_is_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(code_copy, "_MAX_FILES", 10)
    write(tmp_path, "model_def.py")
    for number in range(11):
        write(tmp_path, f"images/{number}.txt")
    assert list_code(tmp_path) == ["model_def.py"]
    assert "contains more than 10 files" in caplog.text


def test_deleted_code_file_is_skipped(tmp_path: Path) -> None:
    write(tmp_path / "model", "model_def.py")
    copy_code(tmp_path / "model", ["model_def.py", "gone.py"], tmp_path / "code", config={})
    assert [path.name for path in (tmp_path / "code").iterdir()] == ["model_def.py"]


def test_only_module_folders_hide_imports(tmp_path: Path) -> None:
    """A folder of data may be called like a package that is in use."""
    write(tmp_path, "yaml/words.txt")
    (tmp_path / "pytest").mkdir()
    (tmp_path / "pytest" / "__init__.py").touch()
    with import_from_directory(tmp_path):
        assert sys.modules["yaml"] is yaml
        assert importlib.import_module("pytest") is not pytest
    assert sys.modules["pytest"] is pytest


def test_code_copy_masks_secrets(tmp_path: Path) -> None:
    """Not of the configuration in use, wherever it stands, nor of another experiment file."""
    source = tmp_path / "model"
    source.mkdir()
    (source / "const.yaml").write_text(
        "entrypoint: model_def:Trial\nsearcher: {name: single}\n"
        "checkpoint_storage:\n  type: s3\n  secret_key: overridden1\n"
        "data: {nested: {token: abcd}, hf_token:\n   [efgh]}  # kept\n"
        "environment:\n  api_key:\n  - ijkl  # mnop\n  credentials:\n    a: {b: qrst}\n  left: 1\n"
        "# secret_key: lmno\nname: x  # or token: pqrs\n"
    )
    (source / "notes.txt").write_text("- ****\nrule: ********\n")
    (source / "broken.yaml").write_text("entrypoint: [\nsearcher:\n  token: uvwx\n")
    (source / "model_def.py").write_text("KEY = 'in-use-4711'\npad_token = 0\n")
    (source / "latin.txt").write_bytes(b"caf\xe9 in-use-4711")
    config = {"checkpoint_storage": {"type": "s3", "secret_key": "in-use-4711"}}
    copy_code(source, list_code(source), tmp_path / "code", config=config)
    copies = {path.name: path.read_bytes() for path in (tmp_path / "code").iterdir()}
    assert copies["model_def.py"] == b"KEY = '********'\npad_token = 0\n"
    assert copies["latin.txt"] == b"caf\xe9 ********"
    settings = copies["const.yaml"].decode()
    assert "overridden1" not in settings
    for secret in ("abcd", "efgh", "ijkl", "mnop", "qrst", "lmno", "pqrs"):
        assert secret not in settings
    stars = "********"
    assert yaml.safe_load(settings) == {
        "entrypoint": "model_def:Trial",
        "searcher": {"name": "single"},
        "checkpoint_storage": {"type": "s3", "secret_key": stars},
        "data": {"nested": {"token": stars}, "hf_token": stars},
        "environment": {"api_key": stars, "credentials": stars, "left": 1},
        "name": "x",
    }
    assert "# kept" in settings
    assert copies["notes.txt"] == b"- ****\nrule: ********\n"
    assert copies["broken.yaml"] == b"entrypoint: [\nsearcher:\n  token: ****\n"
