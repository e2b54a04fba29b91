"""Test that the files of ``detcore plugin new`` work unchanged and pass linters."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import click.testing
import pytest
import yaml
from plugin_wheels import CleanEnvironment, build_wheel, detcore_wheel, house_wheels
from source_tree import ROOT

from detcore.cli import main

KINDS = ("framework", "storage", "searcher", "launcher")
# The code must be formatted for short and long names with any first letter.
NAMES = ("q", "Aa", "my-net", "xylophones.of_the-ages24")


def detcore(*arguments: object) -> click.testing.Result:
    return click.testing.CliRunner().invoke(main, list(map(str, arguments)))


def write(name: str, kind: str, into: Path) -> Path:
    finished = detcore("plugin", "new", name, "--kind", kind, "--into", into)
    assert finished.exit_code == 0, finished.output
    folder = Path(finished.stdout.removeprefix("Created ").partition(" with ")[0])
    assert folder.parent == into
    return folder


@pytest.mark.soak
@pytest.mark.long
@pytest.mark.timeout(700)
@pytest.mark.parametrize("kind", KINDS)
def test_scaffold_passes_tests_when_installed(kind: str, tmp_path: Path) -> None:
    folder = write("my-net", kind, tmp_path)
    wheel = build_wheel(folder, tmp_path / "wheels")
    clean = CleanEnvironment(tmp_path / "environment", [*house_wheels("testing"), wheel])
    doctor = clean.run("detcore", "plugins", "doctor")
    assert doctor.returncode == 0, doctor.stdout
    assert re.fullmatch(r"no faults in \d+ plugins\n", doctor.stdout)
    listed = clean.run("detcore", "plugins", "info", "my_net").stdout
    assert "distribution:  detcore-my-net 0.1.0" in listed
    assert f"registers:     {'storage type' if kind == 'storage' else kind} my_net" in listed
    finished = clean.run_tests(folder)
    assert finished.code == 0, finished.output
    assert len(finished.passed) > {"framework": 30, "storage": 30}.get(kind, 5)
    reasons = set(finished.skipped.values())
    names = (
        "direct-path is declined", "(FolderAccess)", "no state_tensors()",
        "two-workers-resume-exactly", "defines no changed_hyperparameters",
    )  # fmt: skip
    assert all(any(part in reason for part in names) for reason in reasons), reasons


@pytest.mark.soak
def test_experiment_uses_all_four_scaffolds(tmp_path: Path) -> None:
    folders = {kind: write(f"my-{kind}", kind, tmp_path) for kind in KINDS}
    wheels = [build_wheel(folder, tmp_path / "wheels") for folder in folders.values()]
    clean = CleanEnvironment(tmp_path / "environment", [detcore_wheel(), *wheels])
    file = tmp_path / "checkpoints.db"
    config = yaml.safe_load((folders["framework"] / "tests/model/const.yaml").read_text())
    config["hyperparameters"]["learning_rate"] = {
        "type": "log", "base": 10, "minval": -4, "maxval": -1
    }  # fmt: skip
    config["searcher"] |= {"name": "my_searcher", "max_trials": 3, "max_concurrent_trials": 1}
    config["searcher"]["max_length"] = {"batches": 20}
    config["checkpoint_storage"] = {"type": "my_storage", "file": str(file)}
    config["launcher"] = {"name": "my_launcher", "niceness": 5}
    path = folders["framework"] / "tests" / "model" / "all.yaml"
    path.write_text(yaml.safe_dump(config))
    finished = clean.run("detcore", "run", path, "--json")
    assert finished.returncode == 0, finished.stderr
    summary = json.loads(finished.stdout.splitlines()[-1])
    assert summary["state"] == "COMPLETED", summary
    listing = clean.run("detcore", "checkpoint", "list", "--json")
    states = [row["state"] for row in json.loads(listing.stdout)]
    assert "COMPLETED" in states, listing.stdout
    # The wheel of detcore-testing contains the templates.
    clean.install(*map(str, house_wheels("testing")), "--no-index")
    finished = clean.run("detcore", "plugin", "new", "other", "--kind", "storage", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    files = [path.name for path in (tmp_path / "detcore-other").rglob("*") if path.is_file()]
    expected = [path.name for path in folders["storage"].rglob("*") if path.is_file()]
    assert sorted(files) == sorted(expected)
    clean.install(f"detcore-storage @ {detcore_wheel('storage').as_uri()}")
    checked = clean.run("detcore", "storage", "check", f"my-storage://{file}")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_scaffold_code_is_clean_for_any_name(tmp_path: Path) -> None:
    for name in NAMES:
        for kind in KINDS:
            write(name, kind, tmp_path / kind)
    folders = sorted(tmp_path.glob("*/*"))
    assert len(folders) == len(NAMES) * len(KINDS)
    for command in (["check"], ["format", "--check"]):
        for folder in folders:
            finished = subprocess.run(
                [sys.executable, "-m", "ruff", *command, "--no-cache", "."],
                cwd=folder, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert finished.returncode == 0, f"{folder}: {finished.stdout}{finished.stderr}"


@pytest.mark.soak
def test_the_types_hold(tmp_path: Path) -> None:
    for kind in KINDS:
        folder = write(f"my-{kind}", kind, tmp_path)
        finished = subprocess.run(
            [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache")],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "Success: no issues found in" in finished.stdout, finished.stdout + finished.stderr


def test_scaffold_has_no_placeholders(tmp_path: Path) -> None:
    for kind in KINDS:
        folder = write("my-net", kind, tmp_path / kind)
        for path in folder.rglob("*"):
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
            for sign in ("TODO", "FIXME", "NotImplemented", "${", "$$", "pass\n"):
                assert sign not in text, path


def test_scaffold_imports_only_public_modules(tmp_path: Path) -> None:
    """The section on versions of the guide lists them."""
    guide = (ROOT / "docs" / "writing-a-plugin.md").read_text(encoding="utf-8")
    listed = guide.partition("Import public names only")[2].partition(".\n")[0]
    documented = set(re.findall(r"`(detcore[.\w]*)`", listed))
    assert {"detcore", "detcore.search", "detcore.plugins"} <= documented
    for kind in KINDS:
        for path in write("my-net", kind, tmp_path / kind).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            used = set(re.findall(r"^from (detcore(?:\.\w+)*) import", text, re.MULTILINE))
            assert used <= documented, path


def test_framework_readme_omits_example(tmp_path: Path) -> None:
    text = (write("my-net", "framework", tmp_path) / "README.md").read_text(encoding="utf-8")
    assert "softmax" not in text.lower()
    assert text.splitlines()[2].startswith("My net trials for [detcore]")


def test_scaffold_metadata_has_detcore_version(tmp_path: Path) -> None:
    folder = write("detcore-My_Net", "framework", tmp_path)
    assert folder.name == "detcore-my-net"
    described = (folder / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    assert 'name = "detcore-my-net"' in described
    assert 'dependencies = ["detcore>=0.1,<0.2", "numpy>=1.23.5"]' in described
    points = described[described.index('[project.entry-points."detcore"]') + 1 :]
    assert points[0] == 'my_net = "detcore_my_net.plugin"'
    source = (folder / "src" / "detcore_my_net" / "training.py").read_text(encoding="utf-8")
    assert "class MyNetTrial(Trial):" in source


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("", "framework", "invalid plugin name ''"),
        ("my net", "framework", "invalid plugin name 'my net'"),
        ("-x-", "framework", "No such option|invalid plugin name"),
        ("my/net", "framework", "invalid plugin name"),
        ("net-", "framework", "invalid plugin name"),
        ("3d", "framework", "It must start with a letter"),
        ("nétz", "framework", "invalid plugin name"),
        ("net\n", "framework", "invalid plugin name"),
        ("detcore-", "framework", "invalid plugin name"),
        ("x" * 25, "framework", "has 25 characters; the maximum is 24"),
        ("Lambda", "framework", "'Lambda' is a Python keyword"),
        ("core", "framework", "a plugin named 'core' is already installed"),
        ("storage", "framework", "a plugin named 'storage' is already installed"),
        ("random", "searcher", "a searcher named 'random' is already registered"),
        ("adaptive-asha", "searcher", "a searcher named 'adaptive_asha' is already registered"),
        ("local", "launcher", "a launcher named 'local' is already registered"),
        ("shared-fs", "storage", "a storage named 'shared_fs' is already registered"),
    ],
)
def test_invalid_plugin_names_are_rejected(
    name: str, kind: str, message: str, tmp_path: Path
) -> None:
    finished = detcore("plugin", "new", "--kind", kind, "--into", tmp_path, "--", name)
    assert finished.exit_code in (1, 2)
    assert any(part in finished.output for part in message.split("|")), finished.output
    assert list(tmp_path.iterdir()) == []


def test_package_name_without_plugin_is_suggested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site" / "detcore_foo").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "site")
    finished = detcore("plugin", "new", "--into", tmp_path / "new", "foo")
    assert finished.exit_code == 1
    assert "a package named 'detcore_foo' is already installed" in finished.output
    assert "plugins list" not in finished.output
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["random", "local", "s3"])
def test_a_name_of_another_kind_is_free(name: str, tmp_path: Path) -> None:
    assert write(name, "framework", tmp_path).name == f"detcore-{name}"


def test_scaffold_does_not_overwrite_files(tmp_path: Path) -> None:
    folder = write("my-net", "framework", tmp_path)
    (folder / "README.md").write_text("mine")
    finished = detcore("plugin", "new", "my-net", "--into", tmp_path)
    assert finished.exit_code == 1
    assert f"error: {folder} already exists, and no file was changed." in finished.output
    assert (folder / "README.md").read_text() == "mine"


def test_unwritable_target_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    finished = detcore("plugin", "new", "my-net", "--into", tmp_path / "file" / "below")
    assert finished.exit_code == 1
    assert (
        "below/detcore-my-net: Not a directory.\nChoose another parent directory (--into)."
        in finished.output
    )


def test_scaffold_prints_next_commands(tmp_path: Path) -> None:
    finished = detcore("plugin", "new", "my-net", "--into", tmp_path)
    folder = tmp_path / "detcore-my-net"
    count = sum(path.is_file() for path in folder.rglob("*"))
    assert f"Created {folder} with {count} files: a working example framework." in finished.stdout
    for command in ("pip install -e '.[testing]'", "pytest", "detcore plugins doctor"):
        assert f"\n  {command} " in finished.stdout


def test_both_names_of_the_group_are_one(tmp_path: Path) -> None:
    assert detcore("plugins", "new", "my-net", "--into", tmp_path).exit_code == 0
    assert detcore("plugin", "list").output == detcore("plugins", "list").output
    listed = detcore("--help").stdout
    assert "\n  plugins " in listed
    assert "\n  plugin " not in listed
    assert "\n  new " in detcore("plugin", "--help").stdout
