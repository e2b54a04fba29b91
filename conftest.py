"""How all tests are run: the longest first, with processes that start quickly, each measured.

Each run appends a line for each test to a file, which ``nox -s tests`` reads at its end: how long
the test took, and the processor time of this process and of those that it started.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import sys
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import warm_python  # noqa: E402  (from the folder above)

# What commands import when they need it; the rest of what they import comes with our own modules.
PRELOAD = (
    "tensorflow", "keras", "torch",
    "alembic.autogenerate", "alembic.command", "alembic.ddl.impl", "mako.template",
    "email.parser", "encodings.ascii", "encodings.utf_8_sig", "numpy.ma", "numpy.random",
    "rich.console", "rich.live", "rich.progress_bar", "rich.table", "rich._unicode_data",
    "sqlalchemy.dialects.postgresql.psycopg", "sqlalchemy.dialects.sqlite",
    "sqlalchemy.ext.compiler", "statistics", "tomllib", "xxhash", "yaml",
    "uvicorn", "uvloop", "httptools",
)  # fmt: skip
IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
SOURCES = ("src", "plugins/*/src", "tests/toy_plugin")
# Started with ``python -m``, or for authors of plugins' tests.
NOT_PRELOADED = ("__main__", "detcore_testing", "testing", "templates", "migrations", "torture")


def reset_signals() -> None:
    """Let the processes that tests start react to signals as they do in a terminal.

    The shell ignores SIGINT in background jobs, nohup ignores SIGHUP, and children inherit both.
    This process still ignores the others: a function that does nothing is not inherited.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - IGNORED_BY_PYTHON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            continue
        is_interrupt = number == signal.SIGINT
        signal.signal(
            number, signal.default_int_handler if is_interrupt else lambda _number, _frame: None
        )


# Also at import: xdist starts its workers from a process that has only imported this file.
reset_signals()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("detcore")
    group.addoption(
        "--soak", default="all", choices=("all", "none", "only"),
        help="none: the tests of 'nox -s tests'; only: the others, those of 'nox -s soak'",
    )  # fmt: skip
    group.addoption(
        "--half", default="all", choices=("all", "0/2", "1/2"),
        help="the half of a plugin's tests that 'nox -s tests' runs in this session",
    )  # fmt: skip
    group.addoption("--cold", action="store_true", help="start all processes as users do")
    group.addoption("--durations-file", help="append how long each test took, as lines of JSON")


def pytest_configure(config: pytest.Config) -> None:
    # That a machine is busy is no fault of a test.
    settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy")
    if not config.getoption("--cold") and not _deals_out(config):
        warm_python.install([*PRELOAD, *_own_modules()])
    config.addinivalue_line(
        "markers",
        "soak: takes long for what it adds, so 'nox -s soak' runs it, and 'nox -s tests' does not",
    )
    config.addinivalue_line(
        "markers", "each_version: 'nox -s tests' runs it with each version of its framework"
    )
    config.addinivalue_line(
        "markers", "cold: starts its processes as users do, instead of forking a warm one"
    )
    config.addinivalue_line(
        "markers",
        "long(together=None): takes up to minutes, so it starts first; those of one name share "
        "something that takes minutes to make, and stay on one worker",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of the other set, and deal the long tests out.

    xdist gives each worker one stretch of the list to begin with.
    """
    soak, half = config.getoption("soak"), config.getoption("half")
    left_out = [
        item
        for item in items
        if (soak == "none" and not _is_usual(item, half))
        or (soak == "only" and _is_usual(item, half))
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        kept = {*items} - {*left_out}
        items[:] = [item for item in items if item in kept]
    groups: dict[str, list[pytest.Item]] = {}
    short = []
    for item in items:
        mark = item.get_closest_marker("long")
        if mark is None:
            short.append(item)
        else:
            groups.setdefault(mark.kwargs.get("together", item.nodeid), []).append(item)
    num_workers = getattr(config, "workerinput", {}).get("workercount", 1)
    hands: list[list[pytest.Item]] = [[] for _ in range(num_workers)]
    for index, group in enumerate(groups.values()):
        hands[index % num_workers] += group
    dealt: list[pytest.Item] = []
    for index, hand in enumerate(hands):
        share = (len(items) - len(dealt)) // (num_workers - index)
        rest = max(0, share - len(hand))
        dealt += [*hand, *short[:rest]]
        del short[:rest]
    items[:] = [*dealt, *short]


def _is_usual(item: pytest.Item, half: str) -> bool:
    """Whether ``nox -s tests`` runs a test with this version of its framework.

    Half of a plugin's tests run with each version of TensorFlow; a test with ``skipif`` may run
    nowhere else. The choice depends on the name of the test alone.
    """
    if item.get_closest_marker("soak"):
        return False
    is_exempt = item.get_closest_marker("each_version") or item.get_closest_marker("skipif")
    if half == "all" or is_exempt or "plugins" not in item.path.parts:
        return True
    mark = item.get_closest_marker("long")
    shares_work = mark is not None and "together" in mark.kwargs
    name = str(item.path.relative_to(ROOT)) if shares_work else item.nodeid
    return zlib.crc32(name.encode()) % 2 == int(half[0])


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules and tests, which stay to the end."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    warm_python.uninstall()


def _deals_out(config: pytest.Config) -> bool:
    """Whether this process runs no tests, but deals them out to workers."""
    return bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")


def _own_modules() -> Iterator[str]:
    """Yield the modules of detcore and its plugins that need nothing run before."""
    for pattern in SOURCES:
        for source in sorted(ROOT.glob(pattern)):
            for path in sorted(source.rglob("*.py")):
                parts = path.relative_to(source).with_suffix("").parts
                if not {*parts} & {*NOT_PRELOADED}:
                    yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Start a cold test's processes as users do, and measure each test."""
    forget_failure()
    reset_signals()  # an earlier test may have ignored one
    started, used = time.monotonic(), _processor_time_s()
    is_cold = item.get_closest_marker("cold") is not None
    with warm_python.cold() if is_cold else contextlib.nullcontext():
        result = yield
    path = item.config.getoption("--durations-file")
    if path:
        line = {
            "test": item.nodeid,
            "seconds": round(time.monotonic() - started, 3),
            "cpu": round(_processor_time_s() - used, 3),
        }
        descriptor = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        with contextlib.closing(os.fdopen(descriptor, "wb", buffering=0)) as file:
            file.write(json.dumps(line).encode() + b"\n")
    return result


def forget_failure() -> None:
    """Free what a failed test has left open, which would otherwise fail a later test.

    pytest keeps the last traceback, and with it the processes and files of the failed test.
    """
    if not hasattr(sys, "last_value"):
        return
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def _processor_time_s() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
