"""detcore-mlflow, installed from a wheel in a clean environment, with an MLflow server."""

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


def test_plugin_imports_no_mlflow_client(
    clean: CleanEnvironment,
) -> None:
    result = clean.run("detcore", "plugins", "doctor")
    assert (result.returncode, result.stdout) == (0, "no faults in 2 plugins\n")
    code = (
        "import sys, detcore_mlflow.plugin, detcore_mlflow.mirror; print('mlflow' in sys.modules)"
    )
    assert clean.run("python", "-c", code).stdout == "False\n"


@pytest.mark.soak
@pytest.mark.timeout(1200)  # one minute on an idle machine
def test_trials_are_mirrored_despite_kills(clean: CleanEnvironment) -> None:
    result = clean.run_tests(PLUGIN, timeout_s=1100)
    assert result.code == 0, result.output
    assert len(result.passed) >= 22
    assert result.skipped == {}
