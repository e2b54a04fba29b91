"""detcore-mlflow, built as a wheel and installed where nothing but wheels is, against a server."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin_wheels import CleanEnvironment, build_wheel, detcore_wheel

PLUGIN = Path(__file__).parents[2] / "examples" / "plugins" / "detcore-mlflow"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    folder = tmp_path_factory.mktemp("mlflow")
    wheel = build_wheel(PLUGIN, folder / "wheels")
    return CleanEnvironment(folder / "environment", [detcore_wheel(), wheel])


def test_the_doctor_finds_no_fault_and_no_client_of_mlflow_is_imported(
    clean: CleanEnvironment,
) -> None:
    done = clean.run("detcore", "plugins", "doctor")
    assert (done.returncode, done.stdout) == (0, "no faults in 2 plugins\n")
    code = (
        "import sys, detcore_mlflow.plugin, detcore_mlflow.mirror; print('mlflow' in sys.modules)"
    )
    assert clean.run("python", "-c", code).stdout == "False\n"


@pytest.mark.soak
@pytest.mark.timeout(1200)  # a minute, alone
def test_trials_are_mirrored_into_a_real_server_whatever_is_killed(clean: CleanEnvironment) -> None:
    done = clean.run_tests(PLUGIN, timeout_s=1100)
    assert done.code == 0, done.output
    assert len(done.passed) >= 22
    assert done.skipped == {}
