"""Parts that all suites share: clauses, declined capabilities, and assertions that report values.

pytest explains plain ``assert`` statements only in test modules, which a suite is not.
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
    """A plugin does not keep a clause of its contract.

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
        capabilities: Descriptions, by name, of the capabilities that a plugin may decline.
        declined: Reasons, by name, for the capabilities that this plugin declines. Their tests are
            skipped, and the report shows the reason.
    """

    capabilities: ClassVar[Mapping[str, str]] = {}
    declined: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse unknown declined capabilities, missing reasons, and Python without assert."""
        if not __debug__:
            raise RuntimeError(
                "the suites of detcore_testing check with assert statements, which python -O and "
                "PYTHONOPTIMIZE remove: every plugin would pass.\n"
                "Run the tests without -O, and with PYTHONOPTIMIZE unset."
            )
        super().__init_subclass__(**kwargs)
        for name, reason in cls.declined.items():
            if name not in cls.capabilities:
                known = ", ".join(sorted(cls.capabilities)) or "none"
                raise TypeError(
                    f"{cls.__name__}.declined names {name!r}, which is no capability.\n"
                    f"What may be declined: {known}."
                )
            if not reason.strip():
                raise TypeError(
                    f"{cls.__name__}.declined gives no reason for {name!r}.\n"
                    "Say why in a sentence: it is shown to whoever runs the tests."
                )


def clause(name: str, promise: str, *, capability: str | None = None) -> Callable[[_Test], _Test]:
    """Mark a test of a suite as the proof of a clause.

    Any exception that the test raises becomes a `BrokenContractError` that names the clause.

    Args:
        name: Words with hyphens, unique in the suite.
        promise: The plugin's obligation, in one sentence.
        capability: The capability that the clause belongs to; where it is declined, the test is
            skipped.
    """

    def mark(test: _Test) -> _Test:
        @functools.wraps(test)
        def show(self: Suite, *args: Any, **kwargs: Any) -> None:
            if capability is not None and capability in self.declined:
                pytest.skip(f"{capability} is declined: {self.declined[capability]}")
            try:
                test(self, *args, **kwargs)
            except (AssertionError, pytest.fail.Exception) as error:
                # Without its cause, which has the same text.
                raise BrokenContractError(_suite_name(self), name, promise, str(error)) from None
            except Exception as error:
                finding = f"The test raised {type(error).__name__}. The traceback is above."
                raise BrokenContractError(_suite_name(self), name, promise, finding) from error

        show.clause = name  # type: ignore[attr-defined]
        show.promise = promise  # type: ignore[attr-defined]
        return show  # type: ignore[return-value]

    return mark


def _suite_name(suite: Suite) -> str:
    """Return the name of the suite that a plugin's test class subclasses."""
    suites = [
        each.__name__
        for each in type(suite).__mro__
        if issubclass(each, Suite) and each.__module__.startswith("detcore_testing.")
    ]
    return (suites or [type(suite).__name__])[0]


@functools.cache
def find_registered(
    list_types: Callable[[PluginManager], Mapping[str, _Type]], kind: str, name: str
) -> _Type:
    """Return the type that a plugin registers under a name; plugins are looked through once.

    Raises:
        AssertionError: If no plugin registers it.
    """
    plugins = PluginManager(read_environment())
    types = list_types(plugins)
    if name not in types:
        problems = "; ".join(map(str, plugins.problems())) or "none"
        raise AssertionError(
            f"no plugin registers the {kind} {name!r}; there are {', '.join(sorted(types))}. "
            f"Problems of plugins: {problems}."
        )
    return types[name]


def expect_equal(found: object, wanted: object, what: str) -> None:
    """Fail unless two values are equal."""
    if found != wanted:
        raise AssertionError(f"{what}: {shorten(found)}; expected {shorten(wanted)}")


@contextlib.contextmanager
def expect_error(kind: type[Exception], what: str) -> Iterator[None]:
    """Fail unless the block raises an error of a kind."""
    try:
        yield
    except kind:
        return
    except Exception as error:
        raise AssertionError(
            f"{what} raised {type(error).__name__}: {error}; expected {kind.__name__}"
        ) from error
    raise AssertionError(f"{what} raised nothing; expected {kind.__name__}")


@contextlib.contextmanager
def unchanged_process() -> Iterator[None]:
    """Fail if the block changes the working directory, variables or random generators."""

    def look() -> dict[str, object]:
        return {
            "working directory": Path.cwd(),
            "variables": child_environment({}),
            "random generators": repr((random.getstate(), np.random.get_state(legacy=False))),
        }

    random.random()
    np.random.random()  # a generator that is seeded each time is now in another state
    before = look()
    yield
    changed = [name for name, state in look().items() if state != before[name]]
    expect_equal(changed, [], "the changes of this process")


def shorten(value: object) -> str:
    """Return a value as text, of a long one the beginning."""
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"
