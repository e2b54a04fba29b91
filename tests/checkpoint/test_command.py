"""``detcore checkpoint``, run as a person runs it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from detcore import core
from detcore.cli import main
from detcore.types import TensorInfo


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("DETCORE_TRIAL_INFO", "DETCORE_CHANNEL_FD", "DETCORE_DB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DETCORE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def uuids(home: Path, folder: Path) -> list[str]:
    """Two checkpoints of experiment 1 and one of experiment 2, which was deleted."""
    with core.init() as context:
        uuids = [
            context.checkpoint.upload(folder, {"steps_completed": 5, "note": "first"}),
            context.checkpoint.upload(folder, {"steps_completed": 10}),
        ]
    with core.init() as context:
        uuids.append(context.checkpoint.upload(folder, {"steps_completed": 1}))
        context.checkpoint.delete(uuids[-1])
    return uuids


@pytest.fixture
def run() -> Callable[..., Result]:
    def call(*arguments: object, text: str | None = None) -> Result:
        return CliRunner().invoke(main, ["checkpoint", *map(str, arguments)], input=text)

    return call


def test_list(run: Any, uuids: list[str]) -> None:
    result = run("list")
    assert result.exit_code == 0, result.output
    header, *rows = result.stdout.splitlines()
    assert header.split() == ["uuid", "steps", "state", "size", "saved", "experiment", "trial"]
    assert [row.split()[0] for row in rows] == uuids[:2]
    assert [row.split()[1] for row in rows] == ["5", "10"]
    assert len(run("list", "--experiment", 2).stdout.splitlines()) == 1


def test_list_as_json(run: Any, uuids: list[str]) -> None:
    rows = json.loads(run("list", "--deleted", "--json").stdout)
    assert [(row["uuid"], row["state"]) for row in rows] == [
        (uuids[0], "COMPLETED"), (uuids[1], "COMPLETED"), (uuids[2], "DELETED"),
    ]  # fmt: skip
    assert rows[0]["metadata"] == {"steps_completed": 5, "note": "first"}
    assert rows[0]["size_bytes"] == sum(rows[0]["resources"].values())


def test_unknown_experiment_is_an_error(run: Any, uuids: list[str]) -> None:
    result = run("list", "--experiment", 9)
    assert result.exit_code == 1
    assert "9" in result.stderr


def test_describe(run: Any, uuids: list[str], home: Path) -> None:
    result = run("describe", uuids[1][:8])
    assert result.exit_code == 0, result.output
    assert str(home / "checkpoints" / uuids[1]) in result.stdout
    assert f"parent           {uuids[0]}" in result.stdout
    assert '"steps_completed": 10' in result.stdout
    assert "variables/a[0]" in result.stdout
    plain = json.loads(run("describe", uuids[0], "--json").stdout)
    assert plain["files"]["nothing"]["size"] == 0
    assert plain["path"] == str(home / "checkpoints" / uuids[0])
    assert run("describe", uuids[2]).exit_code == 0  # the record of a deleted checkpoint stays


def test_describe_shows_tensors(run: Any, home: Path) -> None:
    few = [TensorInfo("dense/kernel", (3, 4), "float32", "w"), TensorInfo("step", (), "int64", "w")]
    many = [TensorInfo(f"layer-{index}", (index,), "float32", "w") for index in range(100)]
    odd = [TensorInfo("\x1b[2Jw", (1,) * 20, "float32", "w")]
    uuids = []
    with core.init() as context:
        for tensors in (few, many, odd):
            checkpoint = context.checkpoint
            with checkpoint.store_path({"steps_completed": 1}, tensors=tensors) as (path, uuid):
                (path / "w").write_bytes(b"w")
            uuids.append(uuid)
    output = run("describe", uuids[0]).stdout
    assert "tensors\nname" in output
    assert "dense/kernel  (3, 4)  float32  w" in output
    assert "step          ()      int64    w" in output
    output = run("describe", uuids[1]).stdout
    assert "layer-39 " in output
    assert "layer-40 " not in output
    assert output.endswith("and 60 more: --json shows all\n")
    plain = json.loads(run("describe", uuids[1], "--json").stdout)["tensors"]
    assert len(plain) == 100
    assert plain[99] == {"name": "layer-99", "shape": [99], "dtype": "float32", "file": "w"}
    output = run("describe", uuids[2]).stdout
    assert "\x1b" not in output
    assert r"\x1b[2Jw  (1, 1, 1, 1, 1, 1, 1, 1, " in output


@pytest.mark.parametrize("uuid", ["../../etc", "/etc/passwd", "%", "_", "*", "..", "\x1b[2J"])
def test_paths_and_patterns_are_not_uuids(
    run: Any, uuids: list[str], home: Path, uuid: str, tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    for command in (["describe"], ["download"], ["verify"], ["repair"], ["delete", "--yes"]):
        result = run(*command, uuid)
        assert result.exit_code == 1
        assert "no checkpoint" in result.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_prefixes(run: Any, uuids: list[str]) -> None:
    result = run("describe", "zzz")
    assert result.exit_code == 1
    assert "zzz" in result.stderr
    result = run("describe", "")
    assert result.exit_code == 1  # all of them begin so


def test_download(run: Any, uuids: list[str], tmp_path: Path, tree: Any, folder: Path) -> None:
    result = run("download", uuids[0][:8], "-o", "to/here")
    assert result.exit_code == 0, result.output
    got = tree(tmp_path / "to" / "here")
    assert json.loads(got.pop("metadata.json"))["note"] == "first"
    assert got == tree(folder)
    assert run("download", uuids[1]).exit_code == 0
    assert (tmp_path / uuids[1] / "weights.bin").exists()
    result = run("download", uuids[2])
    assert result.exit_code == 1
    assert f"checkpoint {uuids[2]} was deleted" in result.stderr


def test_verify(run: Any, uuids: list[str], home: Path) -> None:
    result = run("verify", "--all")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [f"{uuid}: ok, 6 files" for uuid in uuids[:2]]
    path = home / "checkpoints" / uuids[0] / "variables" / "a[0]"
    path.write_text("Zero")
    os.unlink(home / "checkpoints" / uuids[0] / "nothing")
    result = run("verify", uuids[0])
    assert result.exit_code == 1
    assert f"{uuids[0]}: nothing: is missing" in result.stdout
    assert f"{uuids[0]}: variables/a[0]: has changed: its digest is" in result.stdout
    results = json.loads(run("verify", "--all", "--json").stdout)
    assert [len(result_fields["faults"]) for result_fields in results] == [2, 0]
    assert run("verify", "--all").exit_code == 1
    assert run("verify", uuids[1]).exit_code == 0


def test_verify_requires_a_checkpoint(run: Any, uuids: list[str]) -> None:
    for arguments in ([], [uuids[0], "--all"]):
        result = run("verify", *arguments)
        assert result.exit_code == 2
        assert "give either a UUID or --all" in result.stderr


def test_unreachable_storage_is_a_fault(run: Any, home: Path, folder: Path) -> None:
    import shutil

    root = home.parent / "elsewhere"
    root.mkdir()
    spec = {"type": "shared_fs", "host_path": str(root)}
    with core.init(checkpoint_storage=spec) as context:
        context.checkpoint.upload(folder, {"steps_completed": 1})
    shutil.rmtree(root)
    result = run("verify", "--all")
    assert result.exit_code == 1
    assert "does not exist" in result.stdout


def test_delete(run: Any, uuids: list[str], home: Path) -> None:
    result = run("delete", uuids[0], "--dry-run")
    assert result.exit_code == 0
    assert "6 files" in result.stdout
    assert "nothing was deleted" in result.stdout
    result = run("delete", uuids[0])
    assert result.exit_code == 2
    assert "pass --yes" in result.stderr
    assert (home / "checkpoints" / uuids[0]).exists()
    result = run("delete", uuids[0][:8], "--yes")
    assert result.exit_code == 0, result.output
    assert not (home / "checkpoints" / uuids[0]).exists()
    assert (home / "checkpoints" / uuids[1]).exists()
    result = run("delete", uuids[0], "--yes")
    assert (result.exit_code, result.stdout) == (
        0, f"checkpoint {uuids[0]} is already deleted\n",
    )  # fmt: skip


def test_unfinished_checkpoint_is_not_deleted(run: Any, home: Path) -> None:
    with (
        core.init() as context,
        context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid),
    ):
        (path / "w").write_text("")
        result = run("delete", uuid, "--yes")
        assert result.exit_code == 1
        assert f"checkpoint {uuid} is being saved by trial 1" in result.stderr
        assert "is not complete" in run("download", uuid).stderr
    assert run("verify", uuid).exit_code == 0
