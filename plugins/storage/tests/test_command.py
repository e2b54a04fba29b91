"""``detcore storage``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from storage_servers import ACCESS_KEY, BUCKET, SECRET_KEY

from detcore.cli import main


def run(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["storage", *arguments], env={"DETCORE_HOME": str(home)})


def experiment(tmp_path: Path, **storage: object) -> str:
    path = tmp_path / "exp.yaml"
    path.write_text(yaml.safe_dump({"name": "x", "checkpoint_storage": storage}))
    return str(path)


def test_check_of_a_bucket(tmp_path: Path, weed_url: str) -> None:
    file = experiment(
        tmp_path, type="s3", bucket=BUCKET, prefix="cli", endpoint_url=weed_url,
        access_key=ACCESS_KEY, secret_key=SECRET_KEY,
    )  # fmt: skip
    done = run(tmp_path, "check", file)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].split() == ["storage", f"s3://{BUCKET}/cli"]
    assert any(
        line.startswith("conditional put, raced") and "exactly one" in line for line in lines
    )
    assert lines[-3] == "Checkpoints can be kept here."
    assert lines[-1] == "It must not be used in a process that was forked after using it."
    assert SECRET_KEY not in done.output


def test_check_says_what_cannot_be_promised(tmp_path: Path) -> None:
    done = run(tmp_path, "check", "memory://cannot/promise")
    assert done.exit_code == 0, done.output
    assert "cannot promise that what was just written survives a power cut" in done.output


def test_check_of_what_does_not_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = run(tmp_path, "check", str(tmp_path / "file" / "below"), "--json")
    assert done.exit_code == 1
    told = json.loads(done.output)
    assert [finding["ok"] for finding in told["findings"]] == [False]
    assert "Not a directory" in told["findings"][0]["text"]


def test_settings_that_cannot_be_used(tmp_path: Path) -> None:
    done = run(tmp_path, "check", experiment(tmp_path, type="s3", bucket="b"))
    assert done.exit_code == 2
    assert "at least 3 characters" in done.output


def test_torture_of_some_points_by_an_experiment_file(tmp_path: Path, weed_url: str) -> None:
    file = experiment(
        tmp_path, type="s3", bucket=BUCKET, prefix="torture", endpoint_url=weed_url,
        access_key=ACCESS_KEY, secret_key=SECRET_KEY,
    )  # fmt: skip
    done = run(tmp_path, "torture", file, "--points", "12", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert sum(told["points"].values()) == 12
    assert sum(told["totals"].values()) > 100
    assert set(told["points"]) >= {"upload", "retention pass", "recovery", "repair"}
    assert told["losses"] == []
    assert SECRET_KEY not in done.output


def test_torture_of_a_directory_by_an_experiment_file(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    file = experiment(tmp_path, type="directory", container_path=str(tmp_path / "store"))
    done = run(tmp_path, "torture", file, "--points", "3")
    assert done.exit_code == 0, done.output
    last = done.output.splitlines()[-1]
    assert re.fullmatch(r"3 of \d{3} crash points tried in \d+ s: nothing was lost", last), last
    assert list((tmp_path / "store").iterdir()) == []


def test_torture_that_finds_a_loss_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from detcore.checkpoint import recover

    monkeypatch.setattr(recover, "remove_files", lambda *_: None)
    (tmp_path / "store").mkdir()
    done = run(tmp_path, "torture", str(tmp_path / "store"), "--points", "20")
    assert done.exit_code == 1
    assert "files are left of" in done.output
    assert "LOSSES at " in done.output.splitlines()[-1]
