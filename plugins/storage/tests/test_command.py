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
    result = run(tmp_path, "check", file)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].split() == ["storage", f"s3://{BUCKET}/cli"]
    assert any(
        line.startswith("conditional put, raced") and "exactly one" in line for line in lines
    )
    assert lines[-3] == "This storage can hold checkpoints."
    assert lines[-1] == "It must not be used in a process that was forked after using it."
    assert SECRET_KEY not in result.output


def test_check_reports_missing_guarantees(tmp_path: Path) -> None:
    result = run(tmp_path, "check", "memory://cannot/promise")
    assert result.exit_code == 0, result.output
    assert "cannot guarantee that new files survive a power cut" in result.output


def test_check_of_unusable_path_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    result = run(tmp_path, "check", str(tmp_path / "file" / "below"), "--json")
    assert result.exit_code == 1
    report = json.loads(result.output)
    assert [finding["ok"] for finding in report["findings"]] == [False]
    assert "Not a directory" in report["findings"][0]["text"]


def test_check_rejects_invalid_settings(tmp_path: Path) -> None:
    result = run(tmp_path, "check", experiment(tmp_path, type="s3", bucket="b"))
    assert result.exit_code == 2
    assert "at least 3 characters" in result.output


def test_torture_of_bucket_in_experiment_file(tmp_path: Path, weed_url: str) -> None:
    file = experiment(
        tmp_path, type="s3", bucket=BUCKET, prefix="torture", endpoint_url=weed_url,
        access_key=ACCESS_KEY, secret_key=SECRET_KEY,
    )  # fmt: skip
    result = run(tmp_path, "torture", file, "--points", "12", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert sum(report["points"].values()) == 12
    assert sum(report["totals"].values()) > 100
    assert set(report["points"]) >= {"upload", "retention pass", "recovery", "repair"}
    assert report["losses"] == []
    assert SECRET_KEY not in result.output


def test_torture_of_directory_in_experiment_file(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    file = experiment(tmp_path, type="directory", container_path=str(tmp_path / "store"))
    result = run(tmp_path, "torture", file, "--points", "3")
    assert result.exit_code == 0, result.output
    last = result.output.splitlines()[-1]
    assert re.fullmatch(r"3 of \d{3} crash points tried in \d+ s: nothing was lost", last), last
    assert list((tmp_path / "store").iterdir()) == []


def test_torture_reports_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from detcore.checkpoint import recover

    monkeypatch.setattr(recover, "remove_files", lambda *_: None)
    (tmp_path / "store").mkdir()
    result = run(tmp_path, "torture", str(tmp_path / "store"), "--points", "20")
    assert result.exit_code == 1
    assert "that belong to no checkpoint" in result.output
    assert "LOSSES at " in result.output.splitlines()[-1]
