"""`detcore_testing` as a package: its names, the old ones, and what detcore says without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from plugin_wheels import CleanEnvironment, detcore_wheel, house_wheels

import detcore.checkpoint.torture
import detcore.testing
import detcore_testing
import detcore_testing.torture

OLD_TEST = """
from detcore.testing import LauncherSuite


class TestLocal(LauncherSuite):
    launcher = "local"


def test_home(detcore_home):
    assert detcore_home.is_dir()
"""


def run(source: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)


@pytest.mark.parametrize("name", detcore_testing.__all__)
def test_each_name_is_there_and_says_what_it_is(name: str) -> None:
    assert getattr(detcore_testing, name).__doc__
    assert name in dir(detcore_testing)
    assert getattr(detcore.testing, name) is getattr(detcore_testing, name)


def test_the_explorer_of_crash_points_has_its_old_name_too() -> None:
    old = detcore.checkpoint.torture
    assert old.torture_storage is detcore_testing.torture.torture_storage
    assert old.SCENARIO_NAMES == detcore_testing.torture.SCENARIO_NAMES


@pytest.mark.parametrize("module", [detcore_testing, detcore.testing])
def test_a_name_that_is_not_there_is_an_error(module: object) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'TapeSuite'"):
        module.TapeSuite  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    "statement",
    [
        "from detcore.testing import StorageSuite",
        "import detcore.testing.pytest_plugin",
    ],
)
def test_without_the_distribution_the_error_says_how_to_get_it(statement: str) -> None:
    finished = run(f"import sys; sys.modules['detcore_testing'] = None; {statement}")
    assert finished.returncode == 1
    assert "pip install 'detcore[testing]'" in finished.stderr


def test_tests_that_use_the_old_names_run_as_before(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["detcore.testing.pytest_plugin"]\n')
    (tmp_path / "test_old.py").write_text(OLD_TEST)
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "home or exit"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout
    assert "2 passed" in finished.stdout


def test_the_workers_of_a_suite_do_not_load_pytest() -> None:
    finished = run(
        "import sys, detcore_testing._stage\n"
        "sys.exit(', '.join({'pytest', 'hypothesis'} & sys.modules.keys()) or 0)"
    )
    assert finished.returncode == 0, finished.stderr


def test_the_wheels_bring_the_suites_or_the_pip_command(tmp_path: Path) -> None:
    wheels = [detcore_wheel(), detcore_wheel("storage")]
    clean = CleanEnvironment(tmp_path / "environment", wheels)
    suite = ("python", "-c", "from detcore.testing import StorageSuite as S; print(S.__module__)")
    alone = clean.run(*suite)
    assert alone.returncode == 1
    assert alone.stderr.endswith(
        "detcore.testing is part of detcore-testing, which is not installed.\n"
        "Install it with: pip install 'detcore[testing]'\n"
    )
    torture = ("detcore", "storage", "torture", tmp_path / "store", "--points", 2)
    alone = clean.run(*torture)
    assert (alone.returncode, alone.stdout) == (1, "")
    assert "pip install 'detcore[testing]'" in alone.stderr
    clean.install(*map(str, house_wheels("testing")), "--no-index")
    assert clean.run(*suite).stdout == "detcore_testing._storage\n"
    assert clean.run(*torture).stdout.endswith("nothing was lost\n")
