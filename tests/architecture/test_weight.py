"""The cost of importing detcore, in modules, which does not depend on the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_distributions import run_python, write_distribution

HEAVY = {
    "alembic", "fsspec", "jax", "keras", "numpy", "pydantic", "rich", "sqlalchemy", "tensorflow",
    "torch", "yaml",
}  # fmt: skip

SCRIPT = """
import sys
before = set(sys.modules)
{statement}
imported = sorted(set(sys.modules) - before)
import json
print(json.dumps(imported), file=sys.stderr)
"""
HELP = """
sys.argv = ["detcore", "--help"]
from detcore.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code
"""


def modules_after(statement: str, *sites: Path) -> list[str]:
    """Return the modules that a statement imports, in addition to those of bare Python."""
    result = run_python("-c", SCRIPT.format(statement=statement), sites=sites)
    assert result.returncode == 0, result.stderr
    modules: list[str] = json.loads(result.stderr.splitlines()[-1])
    return modules


def heavy(modules: list[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules} & HEAVY


def test_import_detcore_imports_nothing_else() -> None:
    modules = modules_after("import detcore")
    assert heavy(modules) == set()
    assert [name for name in modules if name.startswith("detcore")] == [
        "detcore",
        "detcore.version",
    ]
    assert len(modules) <= 40, modules


@pytest.mark.parametrize("name", ["core", "hookimpl", "errors", "Trial", "TrialContext"])
def test_public_names_are_light(name: str) -> None:
    modules = modules_after(f"from detcore import {name}")
    assert heavy(modules) == set()
    assert len(modules) <= 150, modules


def test_help_with_many_plugins_is_light(tmp_path: Path) -> None:
    for number in range(30):
        write_distribution(
            tmp_path,
            f"detcore-p{number}",
            modules={f"detcore_p{number}.plugin": "import numpy, fsspec, pydantic"},
            commands={f"bake{number}": f"detcore_p{number}.plugin"},
        )
    modules = modules_after(HELP, tmp_path)
    assert heavy(modules) == set()
    assert [name for name in modules if name.startswith("detcore_p")] == []
    subcommands = [name for name in modules if name.startswith("detcore.cli.")]
    light = ("cli_context", "command_groups", "main_command", "shell_completion")
    assert subcommands == [f"detcore.cli.{name}" for name in light]
    assert len(modules) <= 320, len(modules)


def test_creating_plugin_manager_imports_nothing() -> None:
    modules = modules_after(
        "from detcore.environment import read_environment\n"
        "from detcore.plugins import PluginManager\n"
        "PluginManager(read_environment({'DETCORE_HOME': '/h'}), disabled=['x'])"
    )
    assert "pluggy" not in modules
    assert "importlib.metadata" not in modules
