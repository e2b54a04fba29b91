"""The doctor on seeded faults: each is a real distribution, found by a real subprocess."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_distributions import (
    install_prefix,
    run_detcore,
    run_python,
    uninstall_prefix,
    write_distribution,
)

PIP = install_prefix()
UPGRADE = f"{PIP} --upgrade"
OFF = "export DETCORE_DISABLE_PLUGINS={}"
FRAMEWORK = """
from detcore import hookimpl
from detcore.types import Framework

@hookimpl
def detcore_register_framework():
    return Framework(name={name!r}, trial_class="json:T", context_class="json:C",
                     controller="json:K", requires={requires!r}, install_hint={hint!r})
"""


def framework(name: str, requires: tuple[str, ...] = (), hint: str = "") -> str:
    return FRAMEWORK.format(name=name, requires=requires, hint=hint)


@dataclasses.dataclass(frozen=True)
class Breakage:
    """A seeded fault: the installed distributions, the message, and the two commands."""

    said: str
    distributions: Mapping[str, Mapping[str, Any]]
    fix: str = f"{UPGRADE} detcore-bad"
    alternative: str | None = OFF.format("bad")
    only: tuple[str, ...] = ("bad",)


def bad(**settings: Any) -> Mapping[str, Mapping[str, Any]]:
    return {"detcore-bad": settings}


def source(text: str) -> Mapping[str, Mapping[str, Any]]:
    return bad(modules={"detcore_bad.plugin": text})


BREAKAGES = {
    "missing module": Breakage(
        r"bad \(detcore-bad 1\.0\): the module 'detcore_bad' does not exist: the installation is "
        "damaged",
        bad(modules={}),
        f"{PIP} --force-reinstall --no-deps detcore-bad",
    ),
    "missing object": Breakage(
        r"module detcore_bad\.plugin has no object 'plugn'; did you mean 'plugin'\?",
        bad(
            modules={"detcore_bad.plugin": "plugin = object()"},
            plugins={"bad": "detcore_bad.plugin:plugn"},
        ),
    ),
    "syntax error": Breakage(
        r"importing detcore_bad\.plugin fails: SyntaxError: .*detcore_bad/plugin\.py, line 2\)",
        source("import json\ndef broken(:\n"),
    ),
    "missing dependency": Breakage(
        r"importing detcore_bad\.plugin needs the module 'no_such_module', which is not installed$",
        bad(
            modules={"detcore_bad.plugin": "import no_such_module.part"},
            requires=["json; extra == 'fast'", "no-such-distribution"],
        ),
    ),
    "undeclared dependency": Breakage(
        r"needs the module 'no_such_module', which is not installed, and detcore-bad does not "
        "require it",
        source("import no_such_module.part"),
        f"{PIP} no_such_module",
    ),
    "name gone from a dependency": Breakage(
        r"importing detcore_bad\.plugin fails: ImportError: cannot import name 'gone' from 'json'"
        r".*plugin\.py, line 1\)",
        source("from json import gone"),
    ),
    "module gone from detcore": Breakage(
        r"fails: ModuleNotFoundError: No module named 'detcore\.gone'",
        source("import detcore.gone"),
    ),
    "exception on import": Breakage(
        r"fails: RuntimeError: two lines \(.*plugin\.py, line 1\)",
        source("raise RuntimeError('two\\nlines')"),
    ),
    "exit on import": Breakage(
        r"importing detcore_bad\.plugin ends the program: .*plugin\.py, line 2",
        source("import sys\nsys.exit(0)"),
    ),
    "prints on import": Breakage(
        "it prints when it is imported: 'hello'",
        source(
            "print('hello')\nfrom detcore import hookimpl\n"
            "@hookimpl\ndef detcore_trial_started(): ..."
        ),
    ),
    "warns on import": Breakage(
        r"it warns when it is imported: UserWarning: careful \(.*plugin\.py, line 1\)",
        source(
            "import warnings; warnings.warn('careful')\nfrom detcore import hookimpl\n"
            "@hookimpl\ndef detcore_trial_started(): ..."
        ),
    ),
    "one name from two distributions": Breakage(
        r"bad: detcore-bad 1\.0 and detcore-worse 2\.0 both provide a plugin of this name; none of "
        "them is used",
        {
            "detcore-bad": {},
            "detcore-worse": {"version": "2.0", "plugins": {"bad": "detcore_worse.plugin"}},
        },
        f"{uninstall_prefix()} detcore-worse",
        alternative=f"{uninstall_prefix()} detcore-bad",
    ),
    "name of the built-in plugin": Breakage(
        r"core: detcore 0\.\S+ and detcore-bad 1\.0 both provide a plugin of this name; the "
        "built-in plugin is used",
        bad(plugins={"core": "detcore_bad.plugin"}),
        f"{uninstall_prefix()} detcore-bad",
        alternative=None,
        only=("core",),
    ),
    "unknown hook": Breakage(
        r"unknown hook 'detcore_trial_startd'; did you mean 'detcore_trial_started'\? "
        r"\(.*plugin\.py, line 2\)",
        source("from detcore import hookimpl\n@hookimpl\ndef detcore_trial_startd(trial): ..."),
    ),
    "wrong argument": Breakage(
        r"detcore_trial_started takes 'trail', which it is not given; its arguments are "
        r"\(trial, event\) \(.*plugin\.py, line 2\)",
        source("from detcore import hookimpl\n@hookimpl\ndef detcore_trial_started(trail): ..."),
    ),
    "wrapper": Breakage(
        r"detcore_trial_started is a wrapper, which detcore does not call",
        source(
            "from detcore import hookimpl\n"
            "@hookimpl(wrapper=True)\ndef detcore_trial_started(): return (yield)"
        ),
    ),
    "no hooks": Breakage(
        r"detcore_bad\.plugin implements no hook: no function is marked with detcore\.hookimpl",
        source("def something(): ..."),
    ),
    "unmarked hook": Breakage(
        r"detcore_trial_started is never called, because it is not marked with @detcore\.hookimpl "
        r"\(.*plugin\.py, line 1\)",
        source("def detcore_trial_started(trial): ..."),
    ),
    "hook raises": Breakage(
        r"detcore_register_framework fails: KeyError: 'x' \(.*plugin\.py, line 4\)",
        source(
            "from detcore import hookimpl\n"
            "@hookimpl\ndef detcore_register_framework():\n    return {}['x']"
        ),
    ),
    "hook returns the wrong type": Breakage(
        r"detcore_register_storage returned 's3', which is not a StorageType "
        r"\(.*plugin\.py, line 2\)",
        source(
            "from detcore import hookimpl\n@hookimpl\ndef detcore_register_storage(): return 's3'"
        ),
    ),
    "model of a search method's settings is not there": Breakage(
        r"it registers a searcher whose settings is 'detcore_bad\.gone:Settings', but the "
        r"module 'detcore_bad\.gone' does not exist",
        source(
            "from detcore import hookimpl\nfrom detcore.plugins import SearcherType\n@hookimpl\n"
            "def detcore_register_searcher():\n"
            "    return SearcherType(\n"
            "        name='mine', method='json:JSONEncoder', settings='detcore_bad.gone:Settings')"
        ),
    ),
    "registered module is not there": Breakage(
        r"it registers a searcher whose method is 'detcore_bad\.gone:Random', but the "
        r"module 'detcore_bad\.gone' does not exist",
        source(
            "from detcore import hookimpl\nfrom detcore.plugins import SearcherType\n@hookimpl\n"
            "def detcore_register_searcher():\n"
            "    return SearcherType(name='mine', method='detcore_bad.gone:Random')"
        ),
    ),
    "one framework from two plugins": Breakage(
        r"bad \(detcore-bad 1\.0\) and worse \(detcore-worse 1\.0\): both register the framework "
        "'lasagne'; none is used",
        {
            "detcore-bad": {"modules": {"detcore_bad.plugin": framework("lasagne")}},
            "detcore-worse": {"modules": {"detcore_worse.plugin": framework("lasagne")}},
        },
        OFF.format("worse"),
        only=("bad", "worse"),
    ),
    "launcher of a built-in name": Breakage(
        r"core \(detcore .*\) and bad \(detcore-bad 1\.0\): both register the launcher 'local'; "
        "the built-in launcher is used",
        source(
            "from detcore import hookimpl\nfrom detcore.plugins import LauncherType\n@hookimpl\n"
            "def detcore_register_launcher(): return LauncherType(name='local', launcher='json:L')"
        ),
        OFF.format("bad"),
        alternative=None,
    ),
    "malformed entry point value": Breakage(
        r"its entry point 'bad = detcore-bad/plugin\.py' names neither a module nor "
        "'module:object'",
        bad(plugins={"bad": "detcore-bad/plugin.py"}),
    ),
    "malformed entry point line": Breakage(
        r"detcore-bad 1\.0: its entry_points\.txt cannot be read \(",
        bad(entry_points="[detcore]\nbad detcore_bad.plugin\n"),
        alternative=f"{uninstall_prefix()} detcore-bad",
        only=(),
    ),
    "framework not installed": Breakage(
        "its framework 'lasagne' needs the module 'no_such_lasagne', which is not installed",
        source(
            framework("lasagne", ("json", "no_such_lasagne"), "pip install 'no-such-lasagne[cpu]'")
        ),
        "pip install 'no-such-lasagne[cpu]'",
    ),
    "version conflict with detcore": Breakage(
        r"it requires detcore>=99, but detcore \S+ is installed",
        bad(requires=["not a requirement", 'detcore>=98; extra == "x"', "Detcore (>=99)"]),
        f"{UPGRADE} detcore-bad 'detcore>=99'",
    ),
    "command of a built-in name": Breakage(
        "its command 'run' has the name of a built-in command; the built-in command is used",
        source(
            "import click\nfrom detcore import hookimpl\n"
            "@hookimpl\ndef detcore_register_commands(): return click.Command('run')"
        ),
    ),
    "declared command of a built-in name": Breakage(
        "its command 'run' has the name of a built-in command; the built-in command is used",
        bad(commands={"run": "detcore_bad.plugin"}),
    ),
}


def seed(site: Path, breakage: Breakage) -> None:
    for name, settings in breakage.distributions.items():
        write_distribution(site, name, **settings)


@pytest.mark.parametrize("name", BREAKAGES)
def test_doctor_reports_each_fault_with_its_fix(name: str, tmp_path: Path) -> None:
    breakage = BREAKAGES[name]
    seed(tmp_path, breakage)
    result = run_detcore("plugins", "doctor", sites=[tmp_path], only=breakage.only)
    assert result.stdout.count("\n") == 1, result.stdout + result.stderr
    message, _, commands = result.stdout.rstrip("\n").partition("; fix: ")
    fix, _, alternative = commands.partition("  or: ")
    assert re.search(breakage.said, message)
    assert fix == breakage.fix
    assert (alternative or None) == breakage.alternative
    assert result.stderr.startswith("1 fault in ")
    assert "Traceback" not in result.stderr
    assert result.returncode == 1


@pytest.mark.parametrize("name", ["syntax error", "one framework from two plugins"])
def test_disabling_the_plugin_removes_the_fault(name: str, tmp_path: Path) -> None:
    breakage = BREAKAGES[name]
    seed(tmp_path, breakage)
    switches = (OFF.format("bad"), OFF.format("worse"))
    command = next(
        entry_name for entry_name in (breakage.fix, breakage.alternative) if entry_name in switches
    )
    assert command is not None
    variable, _, value = command.removeprefix("export ").partition("=")
    result = run_detcore(
        "plugins", "doctor", sites=[tmp_path], only=breakage.only, variables={variable: value}
    )
    assert re.fullmatch(r"no faults in \d+ plugins?\n", result.stdout), result.stdout
    assert result.returncode == 0


def test_good_plugin_works_beside_all_faults(tmp_path: Path) -> None:
    sites = []
    for number, breakage in enumerate(BREAKAGES.values()):
        if set(breakage.distributions) == {"detcore-bad"} and "core" not in breakage.only:
            site = tmp_path / str(number)
            settings = dict(breakage.distributions["detcore-bad"])
            plugins = settings.get("plugins", {"bad": "detcore_bad.plugin"})
            settings["plugins"] = {f"bad{number}": value for value in plugins.values()}
            write_distribution(site, f"detcore-bad{number}", **settings)
            sites.append(site)
    write_distribution(
        tmp_path / "good", "detcore-good", modules={"detcore_good.plugin": framework("good")}
    )
    script = (
        "from detcore.environment import read_environment\n"
        "from detcore.plugins import PluginManager\n"
        "manager = PluginManager(read_environment(), on_problem=lambda problem: None)\n"
        "print(manager.frameworks()['good'].name, manager.launchers()['local'].name)\n"
    )
    result = run_python("-c", script, sites=[*sites, tmp_path / "good"])
    assert result.stdout == "good local\n", result.stderr
    doctor = run_detcore("plugins", "doctor", sites=[*sites, tmp_path / "good"])
    faulty = {int(number) for number in re.findall(r"detcore-bad(\d+) 1\.0", doctor.stdout)}
    assert len(faulty) == len(sites) > 25
    assert "detcore-good" not in doctor.stdout


def test_doctor_reports_no_fault(tmp_path: Path) -> None:
    write_distribution(tmp_path, "detcore-good")
    result = run_detcore("plugins", "doctor", sites=[tmp_path], only=["good"])
    assert re.fullmatch(r"no faults in \d+ plugins\n", result.stdout)
    assert result.stderr == ""
    assert result.returncode == 0


@pytest.mark.parametrize(
    ("variable", "value", "said", "fix"),
    [
        (
            "DETCORE_DISABLE_PLUGINS",
            "goood,bad",
            "no plugin is called 'goood'; did you mean 'good'?",
            "export DETCORE_DISABLE_PLUGINS=bad,good",
        ),
        (
            "DETCORE_DISABLE_PLUGINS",
            "zzz",
            "no plugin is called 'zzz'; plugins here: bad, core, good",
            "unset DETCORE_DISABLE_PLUGINS",
        ),
        (
            "DETCORE_DISABLE_PLUGINS",
            "core,good",
            "'core' is the built-in plugin, which cannot be switched off",
            "export DETCORE_DISABLE_PLUGINS=good",
        ),
        (
            "DETCORE_PLUGINS",
            "goood",
            "no plugin is called 'goood'; did you mean 'good'?",
            "export DETCORE_PLUGINS=good",
        ),
    ],
)
def test_unknown_names_in_variables_are_reported(
    variable: str, value: str, said: str, fix: str, tmp_path: Path
) -> None:
    write_distribution(tmp_path, "detcore-good")
    write_distribution(tmp_path, "detcore-bad")
    result = run_detcore("plugins", "doctor", sites=[tmp_path], variables={variable: value})
    line = next(line for line in result.stdout.splitlines() if line.startswith(variable))
    installed = (
        "determined", "horovod", "keras", "optuna", "replay", "report", "server", "slurm",
        "storage", "testing",
    )  # fmt: skip
    for name in installed:
        line = line.replace(f"{name}, ", "").replace(f", {name}", "")
    assert line == f"{variable}: {said}; fix: {fix}"
    assert result.returncode == 1


@pytest.mark.parametrize(
    ("option", "fix"),
    [
        (["--no-plugin", "goood"], "detcore --no-plugin good ..."),
        (["--plugins", "goood,core"], "detcore --plugins core,good ..."),
    ],
)
def test_unknown_names_in_options_are_reported(option: list[str], fix: str, tmp_path: Path) -> None:
    write_distribution(tmp_path, "detcore-good")
    result = run_detcore(*option, "plugins", "doctor", sites=[tmp_path])
    said = "no plugin is called 'goood'; did you mean 'good'?"
    assert f"{option[0]}: {said}; fix: {fix}\n" in result.stdout
    assert result.returncode == 1


@pytest.mark.parametrize("option", ["--plugins", "--no-plugin"])
def test_dissimilar_names_in_options_are_reported(option: str, tmp_path: Path) -> None:
    result = run_detcore(option, "zzz", "plugins", "doctor", sites=[tmp_path])
    assert result.stdout.startswith(f"{option}: no plugin is called 'zzz'; plugins here: core")
    assert result.stdout.endswith(f"; fix: leave {option} out\n")


@pytest.mark.parametrize("command", [["experiment", "list"], ["data", "verify", "1"]])
def test_commands_report_unknown_plugin_option_once(command: list[str], tmp_path: Path) -> None:
    variables = {"DETCORE_HOME": str(tmp_path / "home")}
    result = run_detcore("--no-plugin", "zzz", *command, sites=[tmp_path], variables=variables)
    assert result.stderr.count("no plugin is called 'zzz'") == 1, result.stderr


def test_run_reports_unknown_plugin_option_once(tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text(
        "entrypoint: no_such_module:Trial\n"
        "searcher: {name: single, metric: loss, max_length: {batches: 1}}\n"
    )
    result = run_detcore(
        "--no-plugin", "zzz", "run", str(tmp_path / "toy.yaml"), str(tmp_path), sites=[tmp_path],
        variables={"DETCORE_HOME": str(tmp_path / "home")},
    )  # fmt: skip
    assert result.stderr.count("no plugin is called 'zzz'") == 1, result.stderr


def test_broken_metadata_names_the_directory(tmp_path: Path) -> None:
    write_distribution(tmp_path, "detcore-good")
    info = write_distribution(tmp_path, "detcore-bad", metadata="")
    result = run_detcore("plugins", "doctor", sites=[tmp_path], only=["good"])
    assert result.stdout == (
        f"detcore-bad: its METADATA in {info} is missing or has no Name, so its plugins are not "
        f"used; fix: rm -r {info} && {PIP} detcore-bad\n"
    )


def test_local_plugin_is_reinstalled_locally(tmp_path: Path) -> None:
    info = write_distribution(tmp_path, "detcore-bad", modules={})
    project = tmp_path / "the project"
    (info / "direct_url.json").write_text(
        f'{{"url": "{project.as_uri()}", "dir_info": {{"editable": true}}}}', encoding="utf-8"
    )
    result = run_detcore("plugins", "doctor", sites=[tmp_path], only=["bad"])
    assert f"fix: {PIP} --force-reinstall --no-deps -e '{project}'" in result.stdout


def test_fix_keeps_disabled_plugins_disabled(tmp_path: Path) -> None:
    write_distribution(tmp_path, "detcore-good")
    write_distribution(tmp_path, "detcore-bad", modules={})
    result = run_detcore(
        "plugins",
        "doctor",
        sites=[tmp_path],
        only=["bad", "good"],
        variables={"DETCORE_DISABLE_PLUGINS": "good"},
    )
    assert result.stdout.endswith("  or: export DETCORE_DISABLE_PLUGINS=bad,good\n")
