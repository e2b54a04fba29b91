"""Discovery of plugins, without importing them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_distributions import run_detcore, run_python, write_distribution

INDEX = """
import json, sys
from detcore.environment import read_environment
from detcore.plugins import PluginManager
manager = PluginManager(read_environment(), on_problem=lambda problem: None)
entries = {e.name: [e.distribution, e.version, e.state.name, list(e.commands)]
           for e in manager.index()}
print(json.dumps([entries, [p.kind for p in manager.problems()],
                  [m for m in sys.modules if m.startswith("detcore_")]]))
"""


def index(*sites: Path, only: str | None = None) -> tuple[dict[str, list[object]], list[str]]:
    """Return the index by name, and the kinds of problems; check that nothing was imported."""
    variables = {} if only is None else {"DETCORE_PLUGINS": only}
    result = run_python("-c", INDEX, sites=sites, variables=variables)
    assert result.returncode == 0, result.stderr
    entries, problems, imported = json.loads(result.stdout)
    assert imported == []
    return entries, problems


def test_index_imports_no_plugin(tmp_path: Path) -> None:
    write_distribution(
        tmp_path, "detcore-bad", modules={"detcore_bad.plugin": "raise SystemExit('imported')"}
    )
    entries, problems = index(tmp_path, only="bad")
    assert entries["bad"] == ["detcore-bad", "1.0", "READY", []]
    assert entries["core"][2] == "READY"
    assert problems == []


def test_first_of_duplicate_distributions_wins(tmp_path: Path) -> None:
    write_distribution(tmp_path / "new", "detcore-good", version="2.0")
    write_distribution(tmp_path / "old", "Detcore.Good", version="1.0", plugins={"good": "x"})
    entries, problems = index(tmp_path / "new", tmp_path / "old", tmp_path / "new", only="good")
    assert entries["good"][:2] == ["detcore-good", "2.0"]
    assert problems == []


def test_shadowed_distribution_is_ignored(tmp_path: Path) -> None:
    """The imported version has no plugin. A shadowed older version does not count."""
    write_distribution(
        tmp_path / "new", "detcore-good", version="2.0", entry_points="[other]\na = b\n"
    )
    write_distribution(tmp_path / "old", "detcore-good", version="1.0")
    entries, _ = index(tmp_path / "new", tmp_path / "old", only="core")
    assert "good" not in entries


def test_commands_belong_to_their_modules_plugin(tmp_path: Path) -> None:
    write_distribution(
        tmp_path,
        "detcore-two",
        modules={},
        plugins={"one": "two.one", "other": "two.other:plugin"},
        commands={"first": "two.one", "second": "two.other", "both": "two.commands"},
    )
    entries, problems = index(tmp_path, only="one,other")
    assert entries["one"][3] == ["both", "first"]
    assert entries["other"][3] == ["both", "second"]
    assert problems == []


def test_unreadable_foreign_files_are_skipped(tmp_path: Path) -> None:
    write_distribution(tmp_path, "detcore-good")
    info = write_distribution(tmp_path, "foreign", modules={}, entry_points="[x]\n")
    (info / "entry_points.txt").write_bytes(b"[x]\na = \xff\xfe\n")
    write_distribution(
        tmp_path, "foreigner", modules={}, entry_points="no section\n=\n", metadata=""
    )
    entries, problems = index(tmp_path, only="good")
    assert entries["good"][2] == "READY"
    assert problems == []


@pytest.mark.parametrize(
    ("variables", "options", "states"),
    [
        ({}, [], ("loaded", "loaded")),
        ({"DETCORE_DISABLE_PLUGINS": " one ,"}, [], ("switched off", "loaded")),
        ({}, ["--no-plugin", "one", "--no-plugin", "two"], ("switched off", "switched off")),
        ({"DETCORE_DISABLE_PLUGINS": "two"}, ["--no-plugin", "one"], ("switched off",) * 2),
        ({"DETCORE_PLUGINS": "one"}, [], ("loaded", "not in the allow-list")),
        ({"DETCORE_PLUGINS": ""}, [], ("not in the allow-list",) * 2),
        ({"DETCORE_PLUGINS": "one"}, ["--plugins", "two"], ("not in the allow-list", "loaded")),
        (
            {"DETCORE_PLUGINS": "one"},
            ["--no-plugin", "one"],
            ("switched off", "not in the allow-list"),
        ),
    ],
)
def test_plugins_can_be_enabled_and_disabled(
    variables: dict[str, str], options: list[str], states: tuple[str, str], tmp_path: Path
) -> None:
    write_distribution(tmp_path, "detcore-one")
    write_distribution(tmp_path, "detcore-two")
    result = run_detcore(
        *options, "plugins", "list", "--json", sites=[tmp_path], variables=variables
    )
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert (rows["one"]["state"], rows["two"]["state"]) == states
    assert rows["core"]["state"] == "loaded"
