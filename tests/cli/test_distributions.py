"""Commands of detcore's other distributions, installed from wheels: without each, and with it."""

from __future__ import annotations

import pytest
from plugin_wheels import ROOT, CleanEnvironment, build_wheel, detcore_wheel

from detcore.cli._extra import DISTRIBUTION_OF_COMMAND

DISTRIBUTIONS = sorted(set(DISTRIBUTION_OF_COMMAND.values()))


@pytest.fixture(scope="module")
def core_alone(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    """An environment with detcore's wheel and no other of ours."""
    return CleanEnvironment(tmp_path_factory.mktemp("core") / "environment", [detcore_wheel()])


@pytest.fixture(scope="module", params=DISTRIBUTIONS)
def with_distribution(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, CleanEnvironment]:
    """A distribution of detcore, and an environment with its wheel and detcore's."""
    name: str = request.param
    folder = tmp_path_factory.mktemp("installed")
    wheel = build_wheel(ROOT / "plugins" / name.removeprefix("detcore-"), folder / "wheels")
    return name, CleanEnvironment(folder / "environment", [detcore_wheel(), wheel])


@pytest.mark.cold
@pytest.mark.parametrize("command", DISTRIBUTION_OF_COMMAND)
def test_without_its_distribution_a_command_says_how_to_install_it(
    command: str, core_alone: CleanEnvironment
) -> None:
    distribution = DISTRIBUTION_OF_COMMAND[command]
    pip = f"pip install 'detcore[{distribution.removeprefix('detcore-')}]'"
    for arguments in ((), ("--an-option", "value", "x")):
        done = core_alone.run("detcore", command, *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (
            1,
            "",
            f"error: 'detcore {command}' is part of {distribution}, which is not installed.\n"
            f"Install it with: {pip}\n",
        )
    listed = core_alone.run("detcore", "--help").stdout
    missing = listed.partition("Commands that are not installed:\n")[2].splitlines()
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
            done = environment.run("detcore", command, "--help")
            assert (done.returncode, done.stderr) == (0, "")
            assert f"Usage: detcore {command} " in done.stdout
            assert "not installed" not in done.stdout
    found = environment.run("detcore", "plugins", "doctor")
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.cold
def test_detcore_migrate_forwards_to_its_distribution(core_alone: CleanEnvironment) -> None:
    done = core_alone.run("python", "-c", "from detcore.migrate import migrate_python")
    assert done.returncode == 1
    assert done.stderr.endswith(
        "MissingDistributionError: detcore.migrate is part of detcore-determined, "
        "which is not installed.\nInstall it with: pip install 'detcore[determined]'\n"
    )
    assert core_alone.run("python", "-c", "import detcore.migrate").returncode == 0
