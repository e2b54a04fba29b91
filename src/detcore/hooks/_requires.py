"""Read a distribution's requirements, as far as messages need them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from detcore.hooks._index import canonical_name

# Distributions whose name differs from that of their module, used if no requirement matches.
_OTHER_NAMES = {
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "google": "google-cloud-storage",
    "PIL": "pillow",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def requirements_of(distribution: str) -> list[str]:
    """Return the unconditional requirements of an installed distribution, unparsed."""
    return [line.strip() for line in _requires(distribution) or () if ";" not in line]


def guess_requirement(module: str, distribution: str) -> str:
    """Return the requirement to install so that `module` can be imported.

    That is the requirement of `distribution` with the module's name, else the only one of its
    requirements that is not installed, else the module's usual distribution.
    """
    usual = _OTHER_NAMES.get(module, module)
    lines = requirements_of(distribution)
    texts = {canonical_name(each.name): f"{each.name}{each.specifier}" for each in _parse(lines)}
    missing = [text for name, text in texts.items() if _requires(name) is None]
    only = missing[0] if len(missing) == 1 else usual.replace("_", "-")
    return texts.get(canonical_name(usual), only)


def specifier_for(name: str, lines: list[str]) -> str | None:
    """Return the version specifier that one of the requirements sets for `name`, or None."""
    wanted = canonical_name(name)
    found = (each.specifier for each in _parse(lines) if canonical_name(each.name) == wanted)
    return str(next(found, "")) or None


def _requires(distribution: str) -> list[str] | None:
    """Return all requirements of a distribution; None if it is not installed."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        return requires(distribution) or []
    except PackageNotFoundError:
        return None


def _parse(lines: Iterable[str]) -> Iterator[Requirement]:
    """Yield each valid requirement."""
    for line in lines:
        try:
            yield Requirement(line)
        except InvalidRequirement:
            continue


def is_satisfied(version: str, specifier: str) -> bool | None:
    """Return whether `version` is in `specifier` (``">=0.1,<0.2"``), or None if unreadable."""
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return None
