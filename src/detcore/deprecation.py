"""Deprecation of public names, for detcore itself and for plugins.

A deprecated name keeps working. It warns once for each place that uses it, with the version that
deprecated it, the version that removes it, and the replacement. A test of each distribution calls
`detcore_testing.find_overdue`, so that a release cannot keep a name that it promised to remove. See
docs/api-policy.md.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from detcore._distributions import forward_to

__all__ = [
    "Deprecation", "DetcoreDeprecationWarning", "deprecated", "deprecated_argument",
    "deprecated_attributes", "deprecated_hook", "deprecations_of_hook",
]  # fmt: skip

_Marked = TypeVar("_Marked", bound=Callable[..., Any])
_HOOK = "__detcore_deprecations__"
# Modules with frames between a deprecated object and the code that uses it.
_BETWEEN = {"abc", "contextlib", "functools", "importlib._bootstrap", __name__}


class DetcoreDeprecationWarning(FutureWarning):
    """Something that a later release will not have.

    A `FutureWarning`, because Python shows those by default: a ``DeprecationWarning`` is shown for
    the main script alone, and trial classes are imported. Python shows it once for each place.
    """


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with: (0, 3) for ``"0.3.0rc1"``."""
    match = re.match(r"\d+(\.\d+)*", version, re.ASCII)
    if match is None:
        raise ValueError(f"{version!r} is not a version such as 0.3")
    return tuple(map(int, re.sub(r"(\.0+)+$", "", match[0]).split(".")))


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
        if _release(self.removed_in) <= _release(self.since):
            raise ValueError(
                f"{self.what} is deprecated since {self.since} and removed in {self.removed_in}: "
                "at least one release has to warn before that"
            )

    @property
    def message(self) -> str:
        """Text of the warning."""
        use = f"use {self.use}" if self.use else "there is nothing to use instead"
        return (
            f"{self.what} is deprecated since {self.distribution} {self.since} and will be removed "
            f"in {self.distribution} {self.removed_in}; {use}"
        )

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
    while frame.f_back is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
        level += 1
    return level


HookDeprecations = Mapping[str, Deprecation]
"""Deprecations of a hook by argument; the empty name is the hook itself."""


def deprecated(
    *, since: str, removed_in: str, use: str = "", distribution: str = "detcore"
) -> Callable[[_Marked], _Marked]:
    """Mark a function, method or class as deprecated.

    A function warns when it is called, a class when it is made or subclassed. Put it below
    ``@property``, ``@classmethod`` and ``@staticmethod``.

    Args:
        since: The first version that warns, as a literal text.
        removed_in: The first version without it, as a literal text.
        use: The replacement, if any.
        distribution: The distribution that these versions belong to.
    """

    def mark(target: _Marked) -> _Marked:
        if not callable(target) or isinstance(target, (classmethod, staticmethod)):
            raise TypeError(
                f"a {type(target).__name__} cannot be marked as deprecated; put the mark below "
                f"@{type(target).__name__}"
            )
        is_class = inspect.isclass(target)
        name = f"{target.__module__}.{target.__qualname__}"
        notice = Deprecation(
            what=name if is_class else f"{name}()",
            since=since, removed_in=removed_in, use=use, distribution=distribution,
        )  # fmt: skip
        marked: Any = _mark_class(target, notice) if is_class else _mark_function(target, notice)
        marked.__doc__ = notice.add_to(target.__doc__)
        marked.__deprecated__ = notice.message
        return marked  # type: ignore[no-any-return]  # it is what it was, and warns

    return mark


def _mark_function(function: Callable[..., Any], notice: Deprecation) -> Callable[..., Any]:
    @functools.wraps(function)
    def warning(*args: Any, **kwargs: Any) -> Any:
        notice.warn()
        return function(*args, **kwargs)

    return warning


def _mark_class(cls: Any, notice: Deprecation) -> Any:
    """Warn where a class is made or subclassed; of a subclass, only where it is defined."""
    old_init = cls.__init__
    old_subclass = cls.__init_subclass__

    @functools.wraps(old_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if type(self) is cls:
            notice.warn()
        old_init(self, *args, **kwargs)

    def init_subclass(sub: Any, /, **kwargs: Any) -> None:
        notice.warn()
        if hasattr(old_subclass, "__func__"):
            old_subclass.__func__(sub, **kwargs)
        else:
            old_subclass(**kwargs)

    cls.__init__ = init
    cls.__init_subclass__ = classmethod(init_subclass)
    return cls


def deprecated_argument(
    name: str,
    *,
    since: str,
    removed_in: str,
    use: str = "",
    renamed_to: str | None = None,
    distribution: str = "detcore",
) -> Callable[[_Marked], _Marked]:
    """Mark an argument of a function as deprecated.

    Args:
        name: The argument. With `renamed_to` the function need not have it any more.
        since: As for `deprecated`, as are `removed_in` and `distribution`.
        removed_in: See `since`.
        use: The replacement; default: `renamed_to`.
        renamed_to: The argument that gets the value.
        distribution: See `since`.

    Raises:
        TypeError: If the function has no such argument. When called: if the argument is given under
            both names.
    """

    def mark(function: _Marked) -> _Marked:
        parameters = inspect.signature(function).parameters
        wanted = renamed_to or name
        if wanted not in parameters:
            raise TypeError(f"{function.__qualname__}() has no argument {wanted!r} to deprecate")
        by_name = renamed_to or parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        position = sys.maxsize if by_name else list(parameters).index(name)
        notice = Deprecation(
            what=f"the argument {name!r} of {function.__module__}.{function.__qualname__}()",
            since=since, removed_in=removed_in, distribution=distribution,
            use=use or (f"{renamed_to!r}" if renamed_to else ""),
        )  # fmt: skip

        @functools.wraps(function)
        def warning(*args: Any, **kwargs: Any) -> Any:
            if name in kwargs or len(args) > position:
                notice.warn()
            if renamed_to is not None and name in kwargs:
                if renamed_to in kwargs:
                    raise TypeError(
                        f"{function.__qualname__}() got {renamed_to!r} and its old name {name!r}"
                    )
                kwargs[renamed_to] = kwargs.pop(name)
            return function(*args, **kwargs)

        warning.__doc__ = notice.add_to(function.__doc__)
        return warning  # type: ignore[return-value]  # it has the same signature

    return mark


def deprecated_attributes(
    module: str,
    attributes: Mapping[str, tuple[object, Deprecation]],
    fallback: Callable[[str], object] | None = None,
) -> Callable[[str], object]:
    """Return a ``__getattr__`` for a module that still finds old names, and warns.

    ``from module import old`` also warns, at that line.

    Args:
        module: ``__name__`` of the module.
        attributes: By old name: the value, and its deprecation.
        fallback: The ``__getattr__`` for all other names; default: they raise `AttributeError`.
    """

    def find(name: str) -> object:
        if name in attributes:
            value, notice = attributes[name]
            notice.warn()
            return value
        if fallback is not None:
            return fallback(name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find


def deprecated_hook(
    *, since: str, removed_in: str, use: str = "", arguments: tuple[str, ...] = ()
) -> Callable[[_Marked], _Marked]:
    """Mark a hook's specification, or some of its arguments, as deprecated.

    A plugin that implements the hook, or takes one of the arguments, is still used; it is reported
    with its distribution as a problem of the kind ``deprecated-hook``. Put it below ``@hookspec``.

    Args:
        since: The first version of detcore that reports it, as a literal text.
        removed_in: The first version without it, as a literal text.
        use: The replacement, if any.
        arguments: The deprecated arguments; empty: the hook itself.
    """

    def mark(specification: _Marked) -> _Marked:
        hook = specification.__name__
        names = {argument: f"the argument {argument!r} of {hook}" for argument in arguments}
        found = dict(deprecations_of_hook(specification))
        for name, what in (names or {"": f"the hook {hook}"}).items():
            found[name] = Deprecation(what=what, since=since, removed_in=removed_in, use=use)
        setattr(specification, _HOOK, found)
        return specification

    return mark


def deprecations_of_hook(specification: Callable[..., Any]) -> HookDeprecations:
    """Return the deprecations of a hook and its arguments."""
    found: HookDeprecations = getattr(specification, _HOOK, {})
    return found


__getattr__: Callable[[str], Any] = forward_to(
    "detcore_testing", old="detcore.deprecation", needed_by="finding overdue deprecations"
)
