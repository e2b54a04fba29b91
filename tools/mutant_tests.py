"""Run a bounded selection of tests on a tree with one fault in it; started by ``mutate.py``.

The argument is a JSON file (`Selection`). Everything that happens is appended to a log, one JSON
line each, so that the log is there even if the tests never end:

- ``{"selected": 70, "left_out": 12}`` once, after collection;
- ``{"started": ID}`` and ``{"test": ID, "cpu": SECONDS}`` for each test;
- ``{"failed": ID, "timeout": false, "message": TEXT}`` for the first failure;
- ``{"spent": SECONDS}`` if the tests end early because they took too long together.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

__all__ = ["Selection"]

# Tests up to the first bound run before those up to the second, and so on, whatever their folder.
TIERS_S = (1.0, 5.0)
LONG_S = 30.0
# Tests may take this much longer than their processor time: they wait, and the machine is busy.
MOST_WAITING = 5
# A fault must not take the memory or the disk of the machine.
LIMITS = {resource.RLIMIT_DATA: 8 << 30, resource.RLIMIT_FSIZE: 2 << 30}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """Which tests to run.

    Attributes:
        log: File to append to.
        paths: Files or single tests; of tests of about the same length those named first run first.
        deselected: IDs of tests, or their beginnings, to leave out.
        durations: Recorded seconds of processor time of tests by ID.
        assumed_s: Seconds that a test is assumed to take if it has no record and no mark ``long``.
        budget_s: Tests are left out once the sum of the recorded seconds reaches this, and once
            the tests have really taken three times as much processor time.
        timeout_s: Smallest time after which a test counts as hanging.
        pytest_args: More options for pytest.
    """

    log: str
    paths: list[str]
    deselected: list[str]
    durations: dict[str, float]
    assumed_s: float
    budget_s: float
    timeout_s: float
    pytest_args: list[str]

    def seconds(self, test: pytest.Item) -> float:
        """Return how long a test takes, as far as is known."""
        is_long = test.get_closest_marker("long") is not None
        return self.durations.get(test.nodeid, LONG_S if is_long else self.assumed_s)


class _Run:
    """The pytest plugin that chooses, orders and records the tests."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._started_s, self._used_s = time.monotonic(), _processor_time_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None]:
        yield
        wanted = self._selection
        left = wanted.budget_s
        chosen, others = [], []
        for item in sorted(items, key=self._order):
            seconds = wanted.seconds(item)
            if seconds <= left and not item.nodeid.startswith(tuple(wanted.deselected)):
                left -= seconds
                chosen.append(item)
                limit_s = max(wanted.timeout_s, 4 * seconds)
                item.add_marker(pytest.mark.timeout(limit_s), append=False)
            else:
                others.append(item)
        config.hook.pytest_deselected(items=others)
        items[:] = chosen
        self._write(selected=len(chosen), left_out=len(others))

    def _order(self, item: pytest.Item) -> tuple[int, int]:
        wanted = self._selection
        tier = sum(wanted.seconds(item) > bound for bound in TIERS_S)
        places = [index for index, path in enumerate(wanted.paths) if item.nodeid.startswith(path)]
        return tier, min(places, default=len(wanted.paths))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._write(started=item.nodeid)
        used_s = _processor_time_s()
        result = yield
        now_s, budget_s = _processor_time_s(), self._selection.budget_s
        self._write(test=item.nodeid, cpu=round(now_s - used_s, 3))
        spent_s = max(now_s - self._used_s, (time.monotonic() - self._started_s) / MOST_WAITING)
        if spent_s > 3 * budget_s > 0:
            self._write(spent=spent_s)
            item.session.shouldstop = "the budget is spent"
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._record_failure(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._record_failure(report)

    def _record_failure(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            text = report.longreprtext
            errors = [line[2:].strip() for line in text.splitlines() if line.startswith("E ")]
            message = (errors or text.splitlines() or [""])[0][:200]
            timeout = "from pytest-timeout" in text
            self._write(failed=report.nodeid, timeout=timeout, message=message)

    def _write(self, **line: object) -> None:
        with Path(self._selection.log).open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")


def _processor_time_s() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main(file: str) -> int:
    """Run the tests; return the exit code of pytest."""
    selection = Selection(**json.loads(Path(file).read_text(encoding="utf-8")))
    for kind, size_bytes in LIMITS.items():
        resource.setrlimit(kind, (size_bytes, resource.getrlimit(kind)[1]))
    options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", *selection.pytest_args]
    return pytest.main([*options, *selection.paths], plugins=[_Run(selection)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
