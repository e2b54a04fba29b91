"""`detcore.experimental`: light to import, and clear about the plugin that it needs."""

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
def test_every_way_to_import_it_is_light(statement: str) -> None:
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
    # The plugins that this environment happens to have stay out.
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


def test_it_calls_what_the_plugin_registered(tmp_path: Path) -> None:
    told = call(plugin(tmp_path, "detcore_fake.native:init"))
    assert told.strip() == "('called', ('a',), {'test': True})"


def test_what_the_framework_needs_is_looked_for_first(tmp_path: Path) -> None:
    told = call(plugin(tmp_path, "detcore_fake.native:init", ("no_such_library",)))
    assert "needs 'no_such_library'" in told
    assert "pip install it" in told


def test_a_plugin_without_native_form(tmp_path: Path) -> None:
    told = call(plugin(tmp_path, None))
    assert "no installed plugin provides detcore.experimental.estimator.init" in told


def test_without_the_plugin_it_says_how_to_install_it() -> None:
    told = call()
    assert "no installed plugin provides detcore.experimental.estimator.init" in told
    assert "pip install detcore-estimator" in told
