"""The warning about a deprecation, attributed to the code that uses the deprecated name."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import warnings

__all__ = ["Deprecation", "DetcoreDeprecationWarning", "release"]

_RELEASE = re.compile(r"\d+(\.\d+)*", re.ASCII)
# Modules with frames between a deprecated object and the code that uses it.
_BETWEEN = {"abc", "contextlib", "functools", "importlib._bootstrap"}


class DetcoreDeprecationWarning(FutureWarning):
    """Something that a later release will not have.

    A `FutureWarning`, because Python shows those by default: a ``DeprecationWarning`` is shown for
    the main script alone, and trial classes are imported. Python shows it once for each place.
    """


def release(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with, without zeros at the end.

    Pre-releases count as the release: ``"0.3.0rc1"`` is ``(0, 3)``.

    Raises:
        ValueError: If it begins with no number.
    """
    match = _RELEASE.match(version)
    if match is None:
        raise ValueError(f"{version!r} is not a version such as 0.3")
    numbers = [int(part) for part in match[0].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Deprecation:
    """One thing that is deprecated.

    Attributes:
        what: Name for messages, such as ``"detcore_bread.bake()"``.
        since: The first version that warns.
        removed_in: The first version without it.
        use: The replacement; empty: none.
        distribution: The distribution that these versions belong to.

    Raises:
        ValueError: If a version does not begin with a number, or `removed_in` is not later than
            `since`.
    """

    what: str
    since: str
    removed_in: str
    use: str = ""
    distribution: str = "detcore"

    def __post_init__(self) -> None:
        if release(self.removed_in) <= release(self.since):
            raise ValueError(
                f"{self.what} is deprecated since {self.since} and removed in {self.removed_in}: "
                "at least one release has to warn before that"
            )

    @property
    def period(self) -> str:
        """Both versions and the replacement, as the end of a sentence."""
        use = f"; use {self.use}" if self.use else "; there is nothing to use instead"
        return (
            f"deprecated since {self.distribution} {self.since} and will be removed in "
            f"{self.distribution} {self.removed_in}{use}"
        )

    @property
    def message(self) -> str:
        """Text of the warning."""
        return f"{self.what} is {self.period}"

    def warn(self) -> None:
        """Warn the caller of the function that calls this."""
        warnings.warn(self.message, DetcoreDeprecationWarning, stacklevel=_callers_level())

    def add_to(self, doc: str | None) -> str:
        """Return a docstring with a section that says so, after its first paragraph."""
        first, _, rest = inspect.cleandoc(doc or "").partition("\n\n")
        note = f"Deprecated:\n    {self.message[:1].upper()}{self.message[1:]}."
        return "\n\n".join(part for part in (first, note, rest) if part)


def _callers_level() -> int:
    """Return the stack level, for `Deprecation.warn`, of the code that uses the deprecated name."""
    level = 2  # `warn` is 1
    frame = sys._getframe(2)
    while frame.f_back is not None and _is_between(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
        level += 1
    return level


def _is_between(module: str) -> bool:
    return module in _BETWEEN or module.startswith("detcore.deprecation.")
