"""Shared parts of the suites: clauses, declined capabilities and assertions that report values.

pytest explains plain ``assert`` statements only in test modules, and suites are not test modules.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import pytest

from detcore.environment import child_environment, read_environment
from detcore.plugins import PluginManager

_Type = TypeVar("_Type")
_Test = TypeVar("_Test", bound=Callable[..., None])


class BrokenContractError(AssertionError):
    """Raised when a plugin breaks a clause of its contract.

    Attributes:
        suite: Name of the suite, such as ``"StorageSuite"``.
        clause: Name of the clause, such as ``"storage-behaves-like-a-dict"``.
    """

    def __init__(self, suite: str, clause: str, promise: str, finding: str) -> None:
        super().__init__(f"{suite}: clause {clause!r} failed.\nRequirement: {promise}\n{finding}")
        self.suite = suite
        self.clause = clause


class Suite:
    """Base class of the suites: each test proves one clause of a contract.

    Attributes:
        capabilities: Descriptions of the capabilities that a plugin may decline, by name.
        declined: Reasons for the capabilities that this plugin declines, by name. The tests of
            these capabilities are skipped, and the report shows the reasons.
    """

    capabilities: ClassVar[Mapping[str, str]] = {}
    declined: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Reject unknown declined capabilities, missing reasons, and Python without assert."""
        if not __debug__:
            raise RuntimeError(
                "the suites of detcore_testing use assert statements, which python -O and "
                "PYTHONOPTIMIZE remove. Every plugin would pass.\n"
                "Run the tests without -O and unset PYTHONOPTIMIZE."
            )
        super().__init_subclass__(**kwargs)
        for name, reason in cls.declined.items():
            if name not in cls.capabilities:
                names = ", ".join(sorted(cls.capabilities)) or "none"
                raise TypeError(
                    f"{cls.__name__}.declined names the unknown capability {name!r}.\n"
                    f"Capabilities that may be declined: {names}."
                )
            if not reason.strip():
                raise TypeError(
                    f"{cls.__name__}.declined gives no reason for {name!r}.\n"
                    "Give a reason in one sentence. The test report shows it."
                )


def clause(name: str, promise: str, *, capability: str | None = None) -> Callable[[_Test], _Test]:
    """Mark a suite's test as the check of a clause.

    Any exception in the test becomes a `BrokenContractError` that names the clause.

    Args:
        name: Name of the clause in words joined by hyphens, unique in the suite.
        promise: The plugin's obligation, in one sentence.
        capability: Capability of the clause. The test is skipped if it is declined.
    """

    def decorate(test: _Test) -> _Test:
        @functools.wraps(test)
        def run_clause(self: Suite, *args: Any, **kwargs: Any) -> None:
            if capability is not None and capability in self.declined:
                pytest.skip(f"{capability} is declined: {self.declined[capability]}")
            try:
                test(self, *args, **kwargs)
            except (AssertionError, pytest.fail.Exception) as error:
                # The cause is omitted because its message is the same.
                raise BrokenContractError(_suite_name(self), name, promise, str(error)) from None
            except Exception as error:
                finding = f"The test raised {type(error).__name__}. The traceback is above."
                raise BrokenContractError(_suite_name(self), name, promise, finding) from error

        run_clause.clause = name  # type: ignore[attr-defined]
        run_clause.promise = promise  # type: ignore[attr-defined]
        return run_clause  # type: ignore[return-value]

    return decorate


def _suite_name(suite: Suite) -> str:
    """Return the name of the suite that a plugin's test class subclasses."""
    suites = [
        base.__name__
        for base in type(suite).__mro__
        if issubclass(base, Suite) and base.__module__.startswith("detcore_testing.")
    ]
    return (suites or [type(suite).__name__])[0]


@functools.cache
def find_registered(
    list_types: Callable[[PluginManager], Mapping[str, _Type]], kind: str, name: str
) -> _Type:
    """Return the type that a plugin registers under a name. Results are cached.

    Raises:
        AssertionError: If no plugin registers it.
    """
    plugins = PluginManager(read_environment())
    types = list_types(plugins)
    if name not in types:
        problems = "; ".join(map(str, plugins.problems())) or "none"
        raise AssertionError(
            f"no plugin registers the {kind} {name!r}; registered: {', '.join(sorted(types))}. "
            f"Plugin problems: {problems}."
        )
    return types[name]


def expect_equal(actual: object, expected: object, subject: str) -> None:
    """Fail unless two values are equal."""
    if actual != expected:
        raise AssertionError(f"{subject}: {shorten(actual)}; expected {shorten(expected)}")


@contextlib.contextmanager
def expect_error(kind: type[Exception], subject: str) -> Iterator[None]:
    """Fail unless the block raises an exception of the given type."""
    try:
        yield
    except kind:
        return
    except Exception as error:
        raise AssertionError(
            f"{subject} raised {type(error).__name__}: {error}; expected {kind.__name__}"
        ) from error
    raise AssertionError(f"{subject} raised nothing; expected {kind.__name__}")


@contextlib.contextmanager
def unchanged_process() -> Iterator[None]:
    """Fail if the block changes the working directory, environment variables or random state."""

    def read_state() -> dict[str, object]:
        return {
            "working directory": Path.cwd(),
            "variables": child_environment({}),
            "random generators": repr((random.getstate(), np.random.get_state(legacy=False))),
        }

    random.random()
    np.random.random()  # so that seeding a global generator always changes its state
    before = read_state()
    yield
    changes = [name for name, state in read_state().items() if state != before[name]]
    expect_equal(changes, [], "changes to the process")


def shorten(value: object) -> str:
    """Return the repr of a value, truncated if it is long."""
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"
