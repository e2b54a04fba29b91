"""Test moved homes, and homes with unusual names."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from forked import call_in_child

from detcore import core
from detcore.cli import main
from detcore.environment import read_environment
from detcore.records import Database


def use_home(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    for name in ("DETCORE_DB", "DETCORE_TRIAL_INFO", "DETCORE_MASTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DETCORE_HOME", str(home))


def save_checkpoint(*, resume: bool = False) -> tuple[str, str | None]:
    """Run a failing script; return its checkpoint and the checkpoint that it resumed from."""
    context = core.init(tensorboard_mode=core.TensorboardMode.MANUAL, resume=resume).start()
    assert context.info is not None
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "weights").write_text("7")
    context.close(ZeroDivisionError("the script's own"))
    return str(uuid), context.info.latest_checkpoint


def test_a_home_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_home(monkeypatch, tmp_path / "home")
    uuid, _ = call_in_child(save_checkpoint)
    assert str(tmp_path / "home").encode() not in (tmp_path / "home" / "detcore.db").read_bytes()
    moved = tmp_path / "elsewhere" / "moved"
    moved.parent.mkdir()
    (tmp_path / "home").rename(moved)
    use_home(monkeypatch, moved)
    result = CliRunner().invoke(main, ["checkpoint", "verify", uuid])
    assert result.exit_code == 0, result.output
    with Database.open(read_environment().database_url) as database:
        [record] = database.list_checkpoints()
        [trial] = database.list_trials(1)
        assert record.storage_url == (moved / "checkpoints").as_uri()
        assert trial.trial_dir == str(moved / "experiments/1/trials/1")
    assert call_in_child(lambda: save_checkpoint(resume=True))[1] == uuid


@pytest.mark.parametrize("name", ["q?u", "a#b", "50%", "%3F", "a b", "é+&=;", "home:"])
def test_a_home_may_have_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    home = tmp_path / name
    use_home(monkeypatch, home)
    uuid, _ = call_in_child(save_checkpoint)
    assert (home / "detcore.db").is_file()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert CliRunner().invoke(main, ["checkpoint", "verify", uuid]).exit_code == 0
    shutil.rmtree(home)


def test_home_may_be_relative_to_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    use_home(monkeypatch, Path("../home"))
    uuid, _ = call_in_child(save_checkpoint)
    result = CliRunner().invoke(main, ["checkpoint", "verify", uuid])
    assert result.exit_code == 0, result.output


def test_home_with_unstorable_name_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    use_home(monkeypatch, Path("/tmp/lat\udce9"))
    result = CliRunner().invoke(main, ["experiment", "list"])
    assert result.exit_code == 2
    assert r"'/tmp/lat\udce9', is not valid UTF-8" in result.output


def test_relative_url_works_in_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "who?"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DETCORE_DB", "sqlite:///records.db")
    with Database.open(read_environment().database_url):
        assert (folder / "records.db").is_file()


def test_new_home_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_home(monkeypatch, tmp_path / "home")
    before = os.umask(0o022)
    try:
        save_checkpoint()
    finally:
        os.umask(before)
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700
