"""Parts that all suites share: clauses of a contract, and capabilities that may be declined."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import pytest

_Test = TypeVar("_Test", bound=Callable[..., None])


class BrokenContractError(AssertionError):
    """A plugin does not keep a clause of its contract.

    Attributes:
        suite: Name of the suite, such as ``"StorageSuite"``.
        clause: Name of the clause, such as ``"create-refuses-what-exists"``.
    """

    def __init__(self, suite: str, clause: str, promise: str, found: str) -> None:
        super().__init__(f"{suite}: the clause {clause!r} is broken.\nIt says: {promise}\n{found}")
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
        """Refuse to decline an unknown capability, or to decline one without a reason."""
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
                found = f"It raised {type(error).__name__}; the traceback is above."
                raise BrokenContractError(_suite_name(self), name, promise, found) from error

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
