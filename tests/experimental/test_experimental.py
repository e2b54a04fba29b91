"""Test that `detcore.experimental` imports little and names the plugin that it needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_distributions import run_python, write_distribution

HEAVY = ("numpy", "pydantic", "sqlalchemy", "tensorflow")
PLUGIN = """
from detcore import hookimpl
from detcore.types import Framework

@hookimpl
def detcore_register_framework():
    return Framework(name="estimator", trial_class="m:T", context_class="m:C", controller="m:K",
                     native_init={init!r}, requires={requires!r}, install_hint="pip install it")
"""


@pytest.mark.parametrize(
    "statement",
    [
        "import detcore; init = detcore.experimental.estimator.init",
        "import detcore.experimental.estimator; init = detcore.experimental.estimator.init",
        "from detcore.experimental import estimator; init = estimator.init",
        "from detcore.experimental.estimator import init",
        "from detcore.experimental import keras; init = keras.init",
        "from detcore.experimental import create; init = create",
        "from detcore.experimental import create_trial_instance; init = create_trial_instance",
    ],
)
def test_experimental_import_is_light(statement: str) -> None:
    result = run_python(
        "-c",
        f"import sys\n{statement}\nassert callable(init)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])",
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


CALL = """
from detcore.errors import PluginNotFoundError
from detcore.experimental import estimator
try:
    print(estimator.init("a", test=True))
except PluginNotFoundError as error:
    print(error)
"""


def call(*sites: Path) -> str:
    # Installed plugins are not loaded.
    result = run_python("-c", CALL, sites=sites, variables={"DETCORE_PLUGINS": "fake"})
    assert result.returncode == 0, result.stderr
    return result.stdout


def plugin(tmp_path: Path, init: str | None, requires: tuple[str, ...] = ()) -> Path:
    write_distribution(
        tmp_path,
        "detcore-fake",
        plugins={"fake": "detcore_fake.plugin"},
        modules={
            "detcore_fake.plugin": PLUGIN.format(init=init, requires=requires),
            "detcore_fake.native": "def init(*args, **kwargs): return 'called', args, kwargs",
        },
    )
    return tmp_path


def test_init_calls_registered_function(tmp_path: Path) -> None:
    output = call(plugin(tmp_path, "detcore_fake.native:init"))
    assert output.strip() == "('called', ('a',), {'test': True})"


def test_init_checks_requirements_first(tmp_path: Path) -> None:
    output = call(plugin(tmp_path, "detcore_fake.native:init", ("no_such_library",)))
    assert "needs 'no_such_library'" in output
    assert "pip install it" in output


def test_a_plugin_without_native_form(tmp_path: Path) -> None:
    output = call(plugin(tmp_path, None))
    assert "no installed plugin provides detcore.experimental.estimator.init" in output


def test_missing_plugin_error_has_pip_command() -> None:
    output = call()
    assert "no installed plugin provides detcore.experimental.estimator.init" in output
    assert "pip install detcore-estimator" in output
