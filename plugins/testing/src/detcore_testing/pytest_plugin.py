"""A pytest plugin for the tests of plugins; switched on by the ``conftest.py`` of a project.

```python
pytest_plugins = ["detcore_testing.pytest_plugin"]
```

Each test has a separate ``DETCORE_HOME``, and fails if it leaves threads, processes or changed
environment variables behind. Leaks that a project cannot avoid are listed in its pytest settings,
as patterns of thread names, command lines and variable names:

```toml
[tool.pytest.ini_options]
detcore_leaks_ignored = ["fsspecIO", "TF_*"]
```

``@pytest.mark.leaks("reason")`` exempts a single test.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from detcore_testing._leaks import LeakGuard

__all__ = ["detcore_home", "detcore_leak_guard", "pytest_addoption", "pytest_configure"]

_IGNORED = "detcore_leaks_ignored"
# They would lead a test to the user's own records, or change which plugins it finds.
_VARIABLES = (
    "DETCORE_DB",
    "DETCORE_DISABLE_PLUGINS",
    "DETCORE_GRACE_S",
    "DETCORE_JOB_KEY",
    "DETCORE_PLUGINS",
    "DETCORE_TRIAL_INFO",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting that lists ignored leaks."""
    parser.addini(_IGNORED, "threads, processes and variables that tests may leave", "args")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark."""
    config.addinivalue_line(
        "markers", "leaks(reason): the test may leave threads, processes and variables behind"
    )


@pytest.fixture(autouse=True)
def detcore_leak_guard(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test if it leaves something behind."""
    ignored = [str(pattern) for pattern in request.config.getini(_IGNORED)]
    guard = LeakGuard(uuid.uuid4().hex, ignored=ignored)
    yield
    told = guard.check()
    if told and request.node.get_closest_marker("leaks") is None:
        pytest.fail(
            "the test leaves something behind:\n  " + "\n  ".join(told) + "\n"
            "End it in the test, or in the fixture that started it.",
            pytrace=False,
        )


@pytest.fixture(autouse=True)
def detcore_home(
    detcore_leak_guard: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """An empty ``DETCORE_HOME`` for this test and the processes that it starts."""
    home = tmp_path_factory.mktemp("detcore-home")
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DETCORE_HOME", str(home))
    return home
