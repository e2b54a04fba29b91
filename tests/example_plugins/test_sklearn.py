"""detcore-sklearn, installed from a wheel in a clean environment."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from plugin_wheels import CleanEnvironment, build_wheel, house_wheels

PLUGIN = Path(__file__).parents[2] / "examples" / "plugins" / "detcore-sklearn"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    folder = tmp_path_factory.mktemp("sklearn")
    wheel = build_wheel(PLUGIN, folder / "wheels")
    return CleanEnvironment(folder / "environment", [*house_wheels("testing"), wheel])


@pytest.mark.soak
@pytest.mark.timeout(700)
@pytest.mark.long
def test_plugin_tests_pass_from_wheel(clean: CleanEnvironment) -> None:
    result = clean.run_tests(PLUGIN)
    assert result.code == 0, result.output
    assert len(result.passed) > 60
    reasons = set(result.skipped.values())
    expected_reasons = (
        "several-workers is declined: partial_fit",
        "compute_validation",
        "state_tensors()",
    )
    assert all(any(part in reason for part in expected_reasons) for reason in reasons), reasons


def test_discovery_imports_no_scikit_learn(clean: CleanEnvironment) -> None:
    result = clean.run("detcore", "plugins", "doctor")
    assert result.returncode == 0
    assert re.fullmatch(r"no faults in \d+ plugins\n", result.stdout)
    code = (
        "import sys, detcore_sklearn.plugin as p; p.detcore_register_framework();"
        "print([m for m in ('sklearn', 'scipy', 'numpy') if m in sys.modules])"
    )
    assert clean.run("python", "-c", code).stdout == "[]\n"


def test_digits_example_reaches_97_percent(clean: CleanEnvironment) -> None:
    result = clean.run("detcore", "run", PLUGIN / "digits" / "const.yaml", "--json")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout.splitlines()[-1])
    described = json.loads(clean.run("detcore", "trial", "describe", "1", "--json").stdout)
    assert summary["state"] == "COMPLETED", summary
    accuracies = [row["metrics"]["val_accuracy"] for row in described["validations"]]
    assert len(accuracies) == 20
    assert accuracies[-1] > 0.97
    assert accuracies[0] < accuracies[-1]
