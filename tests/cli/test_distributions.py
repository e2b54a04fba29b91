"""Commands of detcore's other distributions, installed from wheels: without each, and with it."""

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
    """An environment with detcore's wheel and no other of ours."""
    return CleanEnvironment(tmp_path_factory.mktemp("core") / "environment", [detcore_wheel()])


@pytest.fixture(scope="module")
def help_of_core(core_alone: CleanEnvironment) -> str:
    return core_alone.run("detcore", "--help").stdout


@pytest.fixture(scope="module", params=DISTRIBUTIONS)
def with_distribution(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, CleanEnvironment]:
    """A distribution of detcore, and an environment with its wheel and detcore's."""
    name: str = request.param
    folder = tmp_path_factory.mktemp("installed")
    wheels = house_wheels(name.removeprefix("detcore-"))
    return name, CleanEnvironment(folder / "environment", wheels)


@pytest.mark.cold
@pytest.mark.parametrize("command", DISTRIBUTION_OF_COMMAND)
def test_without_its_distribution_a_command_says_how_to_install_it(
    command: str, core_alone: CleanEnvironment, help_of_core: str
) -> None:
    distribution = DISTRIBUTION_OF_COMMAND[command]
    pip = f"pip install 'detcore[{distribution.removeprefix('detcore-')}]'"
    for arguments in ((), ("--an-option", "value", "x")):
        done = core_alone.run("detcore", *command.split(), *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (
            1,
            "",
            f"error: 'detcore {command}' is part of {distribution}, which is not installed.\n"
            f"Install it with: {pip}\n",
        )
    if " " in command:
        return  # in the list of its group
    missing = help_of_core.partition("Commands that are not installed:\n")[2].splitlines()
    assert [command, pip] in [line.split(maxsplit=1) for line in missing]


@pytest.mark.cold
def test_with_its_distribution_a_command_is_as_if_built_in(
    with_distribution: tuple[str, CleanEnvironment],
) -> None:
    name, environment = with_distribution
    listed = environment.run("detcore", "--help")
    assert listed.stderr == ""
    assert f"(from {name})" not in listed.stdout
    for command, distribution in DISTRIBUTION_OF_COMMAND.items():
        if distribution == name:
            done = environment.run("detcore", *command.split(), "--help")
            assert (done.returncode, done.stderr) == (0, "")
            assert f"Usage: detcore {command} " in done.stdout
            assert "not installed" not in done.stdout
    found = environment.run("detcore", "plugins", "doctor")
    assert (found.returncode, found.stderr) == (0, "")
    if name == "detcore-server":
        _check_routes(environment)


def _check_routes(environment: CleanEnvironment) -> None:
    """Determined's client is answered where ``detcore-determined[server]`` is, and only there."""

    def paths() -> set[str]:
        done = environment.run("python", "-c", PRINT_PATHS, environment.folder)
        assert (done.returncode, done.stderr) == (0, "")
        return set(done.stdout.split())

    without = paths()
    assert "/api/detcore/v1/models" in without
    assert not [path for path in without if path.startswith(("/api/v1/", "/info"))]
    environment.install(f"detcore-determined[server] @ {detcore_wheel('determined').as_uri()}")
    assert {"/api/v1/models", "/api/v1/auth/login", "/info"} < paths() - without


@pytest.mark.cold
def test_with_its_distribution_horovod_has_its_variables(tmp_path: Path) -> None:
    environment = CleanEnvironment(
        tmp_path / "environment", [detcore_wheel(), detcore_wheel("horovod")]
    )
    program = "import os; print(os.environ['HOROVOD_CONTROLLER'], os.environ['HOROVOD_SIZE'])"
    launch = ("launch", "--launcher", "horovod", "-n", "2", "--")
    done = environment.run("detcore", *launch, "python", "-c", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == [f"[rank={rank}] gloo 2" for rank in range(2)]


@pytest.fixture(scope="module")
def with_a_trial(core_alone: CleanEnvironment) -> CleanEnvironment:
    """The environment of the core alone, with the records of a trial."""
    done = core_alone.run("python", "-c", RECORD_A_TRIAL, core_alone.folder / "home")
    assert done.returncode == 0, done.stderr
    return core_alone


@pytest.mark.cold
def test_a_trial_is_described_without_its_plot(with_a_trial: CleanEnvironment) -> None:
    done = with_a_trial.run("detcore", "trial", "describe", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        "val_loss (validation) over steps\n"
        "plots: pip install 'detcore[report]'\n"
        "min 0.05 at step 20, max 0.1 at step 10, last 0.05\n"
    ) in done.stdout


@pytest.mark.cold
def test_a_notebook_says_how_to_get_tables_and_curves(with_a_trial: CleanEnvironment) -> None:
    done = with_a_trial.run("python", "-W", "error", "-c", SHOW_IN_A_NOTEBOOK)
    assert (done.returncode, done.stderr) == (0, "")
    for html, name in zip(done.stdout.split("-----"), ("Experiment", "Trial"), strict=True):
        assert f"<pre>{name}Reference(id=1)</pre>" in html
        assert "pip install &#x27;detcore[report]&#x27;" in html


SERVER = "http://127.0.0.1:9"


@pytest.mark.cold
def test_a_class_of_a_cell_says_how_to_train_it(core_alone: CleanEnvironment) -> None:
    done = core_alone.run("python", "-c", CLASS_OF_A_CELL)
    assert done.returncode == 1
    assert done.stderr.endswith(
        "MissingDistributionError: training Net from a notebook is part of detcore-report, which "
        "is not installed.\nInstall it with: pip install 'detcore[report]'\n"
    )


@pytest.mark.cold
def test_the_core_alone_asks_a_server_and_launches(core_alone: CleanEnvironment) -> None:
    asked = core_alone.run("detcore", "experiment", "list", "--master", SERVER)
    assert (asked.returncode, asked.stdout) == (1, "")
    assert f"no token for the server {SERVER}" in asked.stderr
    launched = core_alone.run("detcore", "launch", "-n", "2", "--", "echo", "here")
    assert sorted(launched.stdout.splitlines()) == ["[rank=0] here", "[rank=1] here"]
    assert core_alone.run("detcore", "model", "list").returncode == 0
