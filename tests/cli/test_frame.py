"""Test the command line's frame in a process: commands, errors and exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from fake_distributions import run_detcore, run_python, write_distribution

from detcore import __version__
from detcore.cli.command_groups import CommandGroup, import_command
from detcore.cli.main_command import COMMANDS, DISTRIBUTION_OF_COMMAND, main
from detcore.environment import read_environment
from detcore.plugins import PluginManager

BAKE = """
import os, sys, time
import click
from detcore import hookimpl
from detcore.errors import ConfigError, NotFoundError

@click.group()
def bake():
    "Bake."

@bake.command()
def fail():
    raise NotFoundError("no oven 3.\\nOvens here: 1, 2.")

@bake.command()
def misread():
    raise ConfigError("bread.yaml:3:5: no such grain")

@bake.command()
def crash():
    raise RuntimeError("burnt")

@bake.command()
def eat():
    exec("raise KeyboardInterrupt")

@bake.command()
def come_back():
    sys.exit(75)

@bake.command()
def wait():
    print("waiting", flush=True)
    time.sleep(30)

@bake.command()
@click.pass_obj
def show(obj):
    print(obj.environment.home, sorted(obj.plugin_manager().versions()))

@hookimpl
def detcore_register_commands():
    return bake
"""

RESERVE_BAKE = """
from detcore.cli.main_command import DISTRIBUTION_OF_COMMAND
from detcore.cli.command_groups import Lazy
from detcore.cli.main_command import COMMANDS, main

DISTRIBUTION_OF_COMMAND["bake"] = "detcore-bakery"
main.lazy_commands["bake"] = COMMANDS["bake"] = Lazy(None, "Bake bread.")
main(prog_name="detcore")
"""


def install_bake(site: Path, *, declared: bool = True) -> None:
    write_distribution(
        site,
        "detcore-bakery",
        modules={"detcore_bakery.plugin": BAKE},
        commands={"bake": "detcore_bakery.plugin"} if declared else {},
    )


def run_bake(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line with `bakery` of a site as the only plugin."""
    return run_detcore(*arguments, sites=[site], only=["bakery"])


def test_help_lists_commands_with_one_line_each() -> None:
    result = run_detcore("--help", only=[])
    for name, lazy in COMMANDS.items():
        if lazy.target is not None:
            line = rf"^  {name} +{re.escape(lazy.summary)}$"
            assert re.search(line, result.stdout, re.MULTILINE)
    assert "Commands of plugins" not in result.stdout
    assert result.returncode == 0
    assert result.stderr == ""


def test_run_usage_shows_both_forms() -> None:
    result = CliRunner().invoke(main, ["run", "--help"], prog_name="detcore")
    assert result.output.splitlines()[:2] == [
        "Usage: detcore run [OPTIONS] CONFIG.yaml [MODEL_DIR]",
        "       detcore run [OPTIONS] --resume ID",
    ]


def test_help_documents_exit_codes_and_variables() -> None:
    text = run_detcore("-h").stdout
    for code in ("0", "1", "2", "75", "130"):
        assert re.search(rf"^ +{code} +\w", text, re.MULTILINE)
    for variable in ("DETCORE_HOME", "DETCORE_DB", "DETCORE_PLUGINS"):
        assert variable in text


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_are_registered_as_listed(name: str) -> None:
    if COMMANDS[name].target is None:
        command = PluginManager(read_environment()).command(name)
    else:
        command = import_command(COMMANDS[name])
    assert isinstance(command, click.Command)
    assert command.name == name
    assert command.help
    for inner_name, lazy in (
        command.lazy_commands.items() if isinstance(command, CommandGroup) else ()
    ):
        if lazy.target is not None:
            inner = import_command(lazy)
            assert inner.name == inner_name
            assert inner.help


def test_version() -> None:
    python = ".".join(map(str, sys.version_info[:3]))
    result = run_detcore("--version")
    assert result.stdout == f"detcore {__version__} (Python {python})\n"


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("rnu", "Did you mean 'run'?"),
        ("checkpoints", "Did you mean 'checkpoint'?"),
        ("bak", "Did you mean 'bake'?"),
        ("zzz", "'detcore --help' lists the commands."),
        ("prune", "Did you mean 'detcore checkpoint prune'?"),
    ],
)
def test_an_unknown_command(typed: str, hint: str, tmp_path: Path) -> None:
    install_bake(tmp_path)
    result = run_bake(tmp_path, typed)
    assert f"unknown command '{typed}'.\n{hint}" in result.stderr
    assert result.returncode == 2


def test_command_of_another_group_is_suggested() -> None:
    result = CliRunner().invoke(main, ["trial", "archive", "1"], prog_name="detcore")
    assert result.exit_code == 2
    assert "has no command 'archive'.\nDid you mean 'detcore experiment archive'" in result.output
    result = CliRunner().invoke(main, ["trial", "list"], prog_name="detcore")
    assert result.output.endswith("Did you mean 'detcore experiment trials'?\n")


@pytest.mark.parametrize(
    ("group", "plugin"), [("config", None), ("database", "server"), ("storage", "storage")]
)
def test_help_of_groups_has_full_summaries(group: str, plugin: str | None) -> None:
    only = [] if plugin is None else [plugin]
    result = run_detcore(group, "--help", only=only, variables={"COLUMNS": "80"})
    commands = result.stdout.partition("Commands:")[2]
    assert commands
    assert "..." not in commands


def test_help_lists_declared_commands_of_plugins(tmp_path: Path) -> None:
    write_distribution(
        tmp_path,
        "detcore-bakery",
        modules={"detcore_bakery.plugin": "raise SystemExit('imported')"},
        commands={"bake": "detcore_bakery.plugin"},
    )
    result = run_bake(tmp_path, "--help")
    assert re.search(r"Commands of plugins:\n  bake  \(from detcore-bakery\)\n", result.stdout)
    assert result.returncode == 0


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        (["--no-plugin", "bakery"], {}),
        (["--plugins", "core"], {}),
        ([], {"DETCORE_DISABLE_PLUGINS": "bakery"}),
    ],
)
def test_disabled_plugin_has_no_commands(
    options: list[str], variables: dict[str, str], tmp_path: Path
) -> None:
    install_bake(tmp_path)
    listed = run_detcore(*options, "--help", sites=[tmp_path], variables=variables)
    assert "bakery" not in listed.stdout
    called = run_detcore(*options, "bake", "show", sites=[tmp_path], variables=variables)
    assert "unknown command 'bake'." in called.stderr


@pytest.mark.parametrize("declared", [True, False])
def test_plugin_command_receives_context(declared: bool, tmp_path: Path) -> None:
    install_bake(tmp_path, declared=declared)
    home = tmp_path / "home"
    result = run_detcore(
        "--no-plugin", "other", "bake", "show",
        sites=[tmp_path], only=["bakery"], variables={"DETCORE_HOME": str(home)},
    )  # fmt: skip
    assert result.stdout == f"{home} ['bakery', 'core']\n"
    assert "--no-plugin: no plugin is called 'other'" in result.stderr
    assert result.returncode == 0


@pytest.mark.parametrize(
    ("command", "stderr", "code"),
    [
        ("fail", "error: no oven 3.\nOvens here: 1, 2.\n", 1),
        ("misread", "error: bread.yaml:3:5: no such grain\n", 2),
        ("come-back", "", 75),
        # Python would exit with SIGINT for an interrupt inside exec().
        pytest.param("eat", "interrupted\n", 130, marks=pytest.mark.cold),
    ],
)
def test_errors_become_lines_and_exit_codes(
    command: str, stderr: str, code: int, tmp_path: Path
) -> None:
    install_bake(tmp_path)
    result = run_bake(tmp_path, "bake", command)
    assert (result.stderr, result.returncode) == (stderr, code)


def test_foreign_error_keeps_its_traceback(tmp_path: Path) -> None:
    install_bake(tmp_path)
    result = run_bake(tmp_path, "bake", "crash")
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("RuntimeError: burnt\n")
    assert result.returncode == 1


def test_an_interrupt(tmp_path: Path) -> None:
    install_bake(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "detcore", "bake", "wait"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "DETCORE_PLUGINS": "bakery"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert stderr == "interrupted\n"
    assert process.returncode == 130


def run_with_bake_reserved(
    *arguments: str, site: Path, variables: dict[str, str] | None = None
) -> tuple[int, str, str]:
    """Run the command line where `bake` is reserved for detcore-bakery."""
    result = run_python("-c", RESERVE_BAKE, *arguments, sites=[site], variables=variables)
    return result.returncode, result.stdout, result.stderr


def test_help_shows_how_to_install_command(tmp_path: Path) -> None:
    _, listed, _ = run_with_bake_reserved("--help", site=tmp_path)
    assert re.search(
        r"Commands that are not installed:\n(  .*\n)*"
        r"  bake +pip install 'detcore\[bakery\]'\n", listed,
    )  # fmt: skip
    assert "Bake bread." not in listed
    for words in (("bake", "--help"), ("help", "bake")):
        code, text, _ = run_with_bake_reserved(*words, site=tmp_path)
        assert "  Bake bread.\n" in text
        assert "  Install it with: pip install 'detcore[bakery]'\n" in text
        assert code == 0


def test_command_of_disabled_distribution(tmp_path: Path) -> None:
    install_bake(tmp_path)
    off = {"DETCORE_DISABLE_PLUGINS": "bakery"}
    assert run_with_bake_reserved("bake", "show", site=tmp_path, variables=off) == (
        1,
        "",
        "error: 'detcore bake' is part of detcore-bakery, whose plugin 'bakery' is switched off.\n"
        "Details: detcore plugins info bakery\n",
    )
    _, listed, _ = run_with_bake_reserved("--help", site=tmp_path, variables=off)
    assert re.search(r"  bake +switched off: detcore plugins info bakery\n", listed)


@pytest.mark.parametrize("is_installed", [True, False])
def test_plugin_cannot_replace_reserved_command(is_installed: bool, tmp_path: Path) -> None:
    if is_installed:
        install_bake(tmp_path)
    write_distribution(
        tmp_path,
        "detcore-mill",
        modules={"detcore_mill.plugin": "raise SystemExit('imported')"},
        commands={"bake": "detcore_mill.plugin"},
    )
    only = {"DETCORE_PLUGINS": "bakery,mill"}
    code, output, errors = run_with_bake_reserved("bake", "show", site=tmp_path, variables=only)
    assert "its command 'bake' has the name of the command of detcore-bakery" in errors
    if is_installed:
        assert (code, output.partition(" ")[2]) == (0, "['bakery', 'core', 'mill']\n")
    else:
        assert errors.endswith("Install it with: pip install 'detcore[bakery]'\n")


def test_reserved_commands_are_listed_in_order() -> None:
    elsewhere = {name for name, lazy in COMMANDS.items() if lazy.target is None}
    for name in {*COMMANDS} - elsewhere:
        group = import_command(COMMANDS[name])
        if isinstance(group, CommandGroup):
            lazies = group.lazy_commands.items()
            elsewhere |= {f"{name} {inner}" for inner, lazy in lazies if lazy.target is None}
    assert elsewhere == set(DISTRIBUTION_OF_COMMAND)


def test_plugin_cannot_replace_core_command(tmp_path: Path) -> None:
    text = BAKE.replace("def bake(", "def config(").replace("bake", "config")
    write_distribution(
        tmp_path,
        "detcore-bakery",
        modules={"detcore_bakery.plugin": text},
        commands={"config": "detcore_bakery.plugin"},
    )
    result = run_bake(tmp_path, "config", "--help")
    assert "schema" in result.stdout
    assert "misread" not in result.stdout
    listed = run_bake(tmp_path, "--help")
    assert "Commands of plugins" not in listed.stdout
    assert "'config' has the name of a built-in command" in listed.stderr


def test_broken_plugin_does_not_break_commands(tmp_path: Path) -> None:
    install_bake(tmp_path)
    write_distribution(
        tmp_path, "detcore-bad", modules={"detcore_bad.plugin": "raise ValueError('no')"}
    )
    result = run_detcore("bake", "come-back", sites=[tmp_path], only=["bakery", "bad"])
    assert result.returncode == 75
    assert result.stderr == ""  # `bake` is declared, so the other plugin was not even imported


def test_plugins_list(tmp_path: Path) -> None:
    install_bake(tmp_path)
    write_distribution(tmp_path, "detcore-old", version="0.3", plugins={"old": "not/a/module"})
    write_distribution(tmp_path, "detcore-watch")
    result = run_detcore("plugins", "list", sites=[tmp_path], only=["bakery", "old", "watch"])
    rows = [re.split(r"  +", line) for line in result.stdout.splitlines()]
    assert rows[0] == ["name", "distribution", "version", "state", "provides"]
    assert rows[1][:4] == ["core", "detcore", __version__, "loaded"]
    assert rows[1][4].startswith("storage type shared_fs, storage type directory, launcher local, ")
    rows_by_name = {row[0]: row[1:] for row in rows[2:]}
    assert rows_by_name["bakery"] == ["detcore-bakery", "1.0", "loaded", "command bake"]
    assert rows_by_name["old"] == ["detcore-old", "0.3", "broken", "-"]
    assert rows_by_name["watch"] == ["detcore-watch", "1.0", "loaded", "observer"]
    assert result.stderr == "1 fault; details: detcore plugins doctor\n"
    assert result.returncode == 0


def test_plugins_list_json(tmp_path: Path) -> None:
    text = "print('noise on stdout')\n" + BAKE
    write_distribution(tmp_path, "detcore-bakery", modules={"detcore_bakery.plugin": text})
    result = run_bake(tmp_path, "plugins", "list", "--json")
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert rows["bakery"] == {
        "name": "bakery",
        "distribution": "detcore-bakery",
        "version": "1.0",
        "state": "loaded",
        "provides": ["command bake"],
    }


def test_plugins_info(tmp_path: Path) -> None:
    install_bake(tmp_path)
    result = run_bake(tmp_path, "plugins", "info", "bakery")
    assert result.stdout.splitlines() == [
        "name:          bakery",
        "distribution:  detcore-bakery 1.0",
        f"installed in:  {tmp_path / 'detcore_bakery-1.0.dist-info'}",
        "module:        detcore_bakery.plugin",
        "state:         loaded",
        "hooks:         detcore_register_commands",
        "registers:     command bake",
    ]


def test_plugins_info_shows_inexact_resume(tmp_path: Path) -> None:
    text = (
        "from detcore import hookimpl\n"
        "from detcore.types import Framework\n"
        "@hookimpl\n"
        "def detcore_register_framework():\n"
        "    return Framework(name='trees', trial_class='json:JSONEncoder',\n"
        "        context_class='json:JSONEncoder', controller='json:JSONEncoder',\n"
        "        inexact_resume='hist draws its subsample from a generator that is not saved')\n"
    )
    write_distribution(tmp_path, "detcore-trees", modules={"detcore_trees.plugin": text})
    result = run_detcore("plugins", "info", "trees", sites=[tmp_path], only=["trees"])
    assert (
        "registers:     framework trees\n"
        "not exact:     resuming trees is not bit-exact: hist draws its subsample from a "
        "generator that is not saved\n"
    ) in result.stdout


def test_plugins_info_of_a_broken_plugin(tmp_path: Path) -> None:
    write_distribution(tmp_path, "detcore-bad", modules={"detcore_bad.plugin": "import nonesuch"})
    result = run_detcore("plugins", "info", "bad", sites=[tmp_path], only=["bad"])
    assert "state:         broken\n" in result.stdout
    assert "faults:        bad (detcore-bad 1.0): importing detcore_bad.plugin" in result.stdout


@pytest.mark.parametrize("words", [(), ("run",), ("checkpoint",), ("checkpoint", "verify")])
def test_help_command_shows_help(words: tuple[str, ...]) -> None:
    assert run_detcore("help", *words).stdout == run_detcore(*words, "--help").stdout


def test_help_of_unknown_command() -> None:
    result = run_detcore("help", "experiment", "lst")
    assert result.returncode == 2
    assert "Did you mean 'list'?" in result.stderr
    assert "has no subcommands" in run_detcore("help", "run", "list").stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell: str) -> None:
    script = run_detcore("completion", shell).stdout
    assert "_DETCORE_COMPLETE" in script
    assert "detcore" in script.splitlines()[0] + script.splitlines()[-1]
    if shell == "bash":
        ask = "COMP_WORDS=(detcore experiment de)\nCOMP_CWORD=2\n_detcore_completion detcore\n"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        finished = subprocess.run(
            ["bash", "-c", f"{script}\n{ask}echo ${{COMPREPLY[@]}}"],
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": path},
        )
        assert sorted(finished.stdout.split()) == ["delete", "describe"], finished.stderr
