"""Test that a wheel can be published and installed as docs/writing-a-plugin.md describes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click.testing
import pytest
from package_index import PackageIndex, serve_index
from plugin_wheels import CleanEnvironment, build_wheel, detcore_wheel

from detcore.cli import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "writing-a-plugin.md"


@pytest.fixture
def points(tmp_path: Path) -> Path:
    arguments = ["plugin", "new", "points", "--into", str(tmp_path)]
    result = click.testing.CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return tmp_path / "detcore-points"


def uv(*arguments: object, **variables: str) -> tuple[int, str]:
    other_variables = {
        name: value for name, value in os.environ.items() if not name.startswith("UV_")
    }
    result = subprocess.run(
        [sys.executable, "-m", "uv", "--no-config", *map(str, arguments)],
        env={**other_variables, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **variables},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return result.returncode, result.stdout + result.stderr


def publish(wheel: Path, index: PackageIndex, token: str) -> tuple[int, str]:
    return uv(
        "publish", "--publish-url", index.url, "--trusted-publishing", "never", wheel,
        UV_PUBLISH_TOKEN=token,
    )  # fmt: skip


def test_published_wheel_is_installed_from_index(points: Path, tmp_path: Path) -> None:
    wheel = build_wheel(points, tmp_path / "dist")
    clean = CleanEnvironment(tmp_path / "environment", [detcore_wheel()])
    assert "points" not in clean.run("detcore", "plugins", "list").stdout
    with serve_index(tmp_path / "index") as index:
        code, output = publish(wheel, index, "a wrong one")
        assert code != 0, output
        assert not (tmp_path / "index").exists()
        code, output = publish(wheel, index, index.token)
        assert code == 0, output
        code, output = uv(
            "pip", "install", "--python", clean.python, "--no-cache",
            "--default-index", f"{index.url}simple/", "detcore-points",
        )  # fmt: skip
        assert code == 0, output
    listed = clean.run("detcore", "plugins", "list").stdout
    assert re.search(r"points +detcore-points +0\.1\.0 .*framework points", listed), listed
    result = clean.run("detcore", "run", points / "tests" / "model" / "const.yaml")
    assert result.returncode == 0, result.stderr
    described = clean.run("detcore", "trial", "describe", "1").stdout
    assert "COMPLETED" in described
    assert "val_accuracy" in described


def test_docs_show_hooks_of_scaffold(points: Path) -> None:
    code = (points / "src" / "detcore_points" / "plugin.py").read_text(encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    comment = "<!-- block: file=detcore-points/src/detcore_points/plugin.py -->\n```python\n"
    assert page.split(comment)[1].split("```\n")[0] == code
