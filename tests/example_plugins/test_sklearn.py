"""detcore-sklearn, built as a wheel and installed where nothing but wheels is."""

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
def test_the_suite_and_its_own_tests_pass_from_a_wheel(clean: CleanEnvironment) -> None:
    done = clean.run_tests(PLUGIN)
    assert done.code == 0, done.output
    assert len(done.passed) > 60
    reasons = set(done.skipped.values())
    known = ("several-workers is declined: partial_fit", "(compute_validation)", "state_tensors()")
    assert all(any(part in reason for part in known) for reason in reasons), reasons


def test_the_doctor_finds_no_fault_and_discovery_no_scikit_learn(clean: CleanEnvironment) -> None:
    done = clean.run("detcore", "plugins", "doctor")
    assert done.returncode == 0
    assert re.fullmatch(r"no faults in \d+ plugins\n", done.stdout)
    code = (
        "import sys, detcore_sklearn.plugin as p; p.detcore_register_framework();"
        "print([m for m in ('sklearn', 'scipy', 'numpy') if m in sys.modules])"
    )
    assert clean.run("python", "-c", code).stdout == "[]\n"


def test_the_example_learns_to_read_digits(clean: CleanEnvironment) -> None:
    done = clean.run("detcore", "run", PLUGIN / "digits" / "const.yaml", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    described = json.loads(clean.run("detcore", "trial", "describe", "1", "--json").stdout)
    assert summary["state"] == "COMPLETED", summary
    accuracies = [row["metrics"]["val_accuracy"] for row in described["validations"]]
    assert len(accuracies) == 20
    assert accuracies[-1] > 0.97
    assert accuracies[0] < accuracies[-1]
