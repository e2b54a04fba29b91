"""Test commands of other distributions from wheels, with and without the distribution."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin_wheels import CleanEnvironment, detcore_wheel, house_wheels

from detcore.cli.main_command import DISTRIBUTION_OF_COMMAND

RECORD_A_TRIAL = """
import sys
from detcore.records import Database, MetricRecord

with Database.open(f"sqlite:///{sys.argv[1]}/detcore.db") as database:
    searcher = {"name": "single", "metric": "val_loss", "max_length": {"epochs": 3}}
    experiment = database.create_experiment(
        config={"searcher": searcher}, config_text=None, model_dir="/code", name="<i>digits"
    )
    trial = database.create_trial(experiment_id=experiment, hparams={"rate": {"b": 0.5}}, seed=1)
    database.add_metrics([
        MetricRecord(trial_id=trial, run_id=0, kind="validation", steps_completed=step,
                     metrics={"val_loss": 1 / step})
        for step in (10, 20)
    ])
"""
SHOW_IN_A_NOTEBOOK = """
from detcore.client import Determined

with Determined() as client:
    print(client.get_experiment(1)._repr_html_())
    print("-----")
    print(client.get_trial(1)._repr_html_())
"""
CLASS_OF_A_CELL = """
import sys
from pathlib import Path
from types import SimpleNamespace

from detcore.client.class_location import find_class

session = SimpleNamespace(user_module=sys.modules["__main__"], user_ns={"In": []})
sys.modules["IPython"] = SimpleNamespace(get_ipython=lambda: session)
find_class(type("Net", (), {"__module__": "__main__"}), Path.cwd())
"""
DISTRIBUTIONS = sorted(set(DISTRIBUTION_OF_COMMAND.values()))
PRINT_PATHS = """
import sys
from detcore.environment import read_environment
from detcore.plugins import PluginManager
from detcore_server import ServerSettings, make_app

environment = read_environment({"DETCORE_HOME": sys.argv[1]})
app = make_app(ServerSettings(environment=environment, plugins=PluginManager(environment)))
print(*app.openapi()["paths"], sep="\\n")
"""


@pytest.fixture(scope="module")
def core_alone(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    """An environment with only detcore's wheel."""
    return CleanEnvironment(tmp_path_factory.mktemp("core") / "environment", [detcore_wheel()])


@pytest.fixture(scope="module")
def help_of_core(core_alone: CleanEnvironment) -> str:
    return core_alone.run("detcore", "--help").stdout


@pytest.fixture(scope="module", params=DISTRIBUTIONS)
def with_distribution(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, CleanEnvironment]:
    """A distribution, and an environment with its wheel and detcore's."""
    name: str = request.param
    folder = tmp_path_factory.mktemp("installed")
    wheels = house_wheels(name.removeprefix("detcore-"))
    return name, CleanEnvironment(folder / "environment", wheels)


@pytest.mark.cold
@pytest.mark.parametrize("command", DISTRIBUTION_OF_COMMAND)
def test_missing_distribution_is_reported(
    command: str, core_alone: CleanEnvironment, help_of_core: str
) -> None:
    distribution = DISTRIBUTION_OF_COMMAND[command]
    pip = f"pip install 'detcore[{distribution.removeprefix('detcore-')}]'"
    for arguments in ((), ("--an-option", "value", "x")):
        finished = core_alone.run("detcore", *command.split(), *arguments)
        assert (finished.returncode, finished.stdout, finished.stderr) == (
            1,
            "",
            f"error: 'detcore {command}' is part of {distribution}, which is not installed.\n"
            f"Install it with: {pip}\n",
        )
    if " " in command:
        return  # listed in its group
    missing = help_of_core.partition("Commands that are not installed:\n")[2].splitlines()
    assert [command, pip] in [line.split(maxsplit=1) for line in missing]


@pytest.mark.cold
def test_command_of_distribution_works(
    with_distribution: tuple[str, CleanEnvironment],
) -> None:
    name, environment = with_distribution
    listed = environment.run("detcore", "--help")
    assert listed.stderr == ""
    assert f"(from {name})" not in listed.stdout
    for command, distribution in DISTRIBUTION_OF_COMMAND.items():
        if distribution == name:
            finished = environment.run("detcore", *command.split(), "--help")
            assert (finished.returncode, finished.stderr) == (0, "")
            assert f"Usage: detcore {command} " in finished.stdout
            assert "not installed" not in finished.stdout
    report = environment.run("detcore", "plugins", "doctor")
    assert (report.returncode, report.stderr) == (0, "")
    if name == "detcore-server":
        _check_routes(environment)


def _check_routes(environment: CleanEnvironment) -> None:
    """A server answers Determined's client only with ``detcore-determined[server]``."""

    def paths() -> set[str]:
        finished = environment.run("python", "-c", PRINT_PATHS, environment.folder)
        assert (finished.returncode, finished.stderr) == (0, "")
        return set(finished.stdout.split())

    without = paths()
    assert "/api/detcore/v1/models" in without
    assert not [path for path in without if path.startswith(("/api/v1/", "/info"))]
    environment.install(f"detcore-determined[server] @ {detcore_wheel('determined').as_uri()}")
    assert {"/api/v1/models", "/api/v1/auth/login", "/info"} < paths() - without


@pytest.mark.cold
def test_horovod_sets_its_variables(tmp_path: Path) -> None:
    environment = CleanEnvironment(
        tmp_path / "environment", [detcore_wheel(), detcore_wheel("horovod")]
    )
    program = "import os; print(os.environ['HOROVOD_CONTROLLER'], os.environ['HOROVOD_SIZE'])"
    launch = ("launch", "--launcher", "horovod", "-n", "2", "--")
    finished = environment.run("detcore", *launch, "python", "-c", program)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert sorted(finished.stdout.splitlines()) == [f"[rank={rank}] gloo 2" for rank in range(2)]


@pytest.fixture(scope="module")
def with_a_trial(core_alone: CleanEnvironment) -> CleanEnvironment:
    """An environment with only the core, and records of a trial."""
    finished = core_alone.run("python", "-c", RECORD_A_TRIAL, core_alone.folder / "home")
    assert finished.returncode == 0, finished.stderr
    return core_alone


@pytest.mark.cold
def test_trial_is_described_without_plot(with_a_trial: CleanEnvironment) -> None:
    finished = with_a_trial.run("detcore", "trial", "describe", "1")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert (
        "val_loss (validation) over steps\n"
        "plots: pip install 'detcore[report]'\n"
        "min 0.05 at step 20, max 0.1 at step 10, last 0.05\n"
    ) in finished.stdout


@pytest.mark.cold
def test_notebook_explains_how_to_install_report(with_a_trial: CleanEnvironment) -> None:
    finished = with_a_trial.run("python", "-W", "error", "-c", SHOW_IN_A_NOTEBOOK)
    assert (finished.returncode, finished.stderr) == (0, "")
    for html, name in zip(finished.stdout.split("-----"), ("Experiment", "Trial"), strict=True):
        assert f"<pre>{name}Reference(id=1)</pre>" in html
        assert "pip install &#x27;detcore[report]&#x27;" in html


SERVER = "http://127.0.0.1:9"


@pytest.mark.cold
def test_class_of_cell_explains_how_to_train(core_alone: CleanEnvironment) -> None:
    finished = core_alone.run("python", "-c", CLASS_OF_A_CELL)
    assert finished.returncode == 1
    assert finished.stderr.endswith(
        "MissingDistributionError: training Net from a notebook is part of detcore-report, which "
        "is not installed.\nInstall it with: pip install 'detcore[report]'\n"
    )


@pytest.mark.cold
def test_core_works_without_distributions(core_alone: CleanEnvironment) -> None:
    finished = core_alone.run("detcore", "experiment", "list", "--master", SERVER)
    assert (finished.returncode, finished.stdout) == (1, "")
    assert f"no token for the server {SERVER}" in finished.stderr
    launched = core_alone.run("detcore", "launch", "-n", "2", "--", "echo", "here")
    assert sorted(launched.stdout.splitlines()) == ["[rank=0] here", "[rank=1] here"]
    assert core_alone.run("detcore", "model", "list").returncode == 0
