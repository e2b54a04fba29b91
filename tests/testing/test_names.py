"""`detcore.testing` as a package: its names, and what its absence of extras says."""

from __future__ import annotations

import subprocess
import sys

import pytest

import detcore.testing


def run(source: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)


@pytest.mark.parametrize("name", detcore.testing.__all__)
def test_each_name_is_there_and_says_what_it_is(name: str) -> None:
    assert getattr(detcore.testing, name).__doc__
    assert name in dir(detcore.testing)


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'TapeSuite'"):
        detcore.testing.TapeSuite  # noqa: B018


@pytest.mark.parametrize("missing", ["pytest", "hypothesis"])
def test_without_the_extra_the_error_says_how_to_get_it(missing: str) -> None:
    finished = run(f"import sys; sys.modules[{missing!r}] = None; import detcore.testing")
    assert finished.returncode == 1
    assert 'pip install "detcore[testing]"' in finished.stderr


def test_the_workers_of_a_suite_do_not_load_pytest() -> None:
    finished = run(
        "import sys, detcore.testing._stage\n"
        "sys.exit(', '.join({'pytest', 'hypothesis'} & sys.modules.keys()) or 0)"
    )
    assert finished.returncode == 0, finished.stderr
