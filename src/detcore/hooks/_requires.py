"""Read a distribution's requirements, as far as messages need them.

detcore does not depend on ``packaging``; this reads plain requirements and versions (PEP 440) and
returns "unknown" (None) for anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from detcore.hooks._index import canonical_name

_REQUIREMENT = re.compile(
    r"^\s*(?P<name>[A-Za-z0-9][\w.-]*)\s*(?P<extras>\[[^\]]*\])?\s*\(?(?P<spec>[^;@()]*)\)?\s*$"
)
_CLAUSE = re.compile(r"^(~=|==|!=|<=|>=|<|>)\s*([\w.+!*-]+)$")
_VERSION = re.compile(
    r"^v?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>a|b|rc|alpha|beta|c|pre|preview)[-_.]?(?P<pre_n>\d*))?"
    r"(?:[-_.]?(?P<post>post|rev|r)[-_.]?(?P<post_n>\d*))?"
    r"(?:[-_.]?(?P<dev>dev)[-_.]?(?P<dev_n>\d*))?(?:\+[\w.]+)?$",
    re.IGNORECASE,
)
_PRE = {"a": 0, "alpha": 0, "b": 1, "beta": 1, "c": 2, "rc": 2, "pre": 2, "preview": 2}
_FINAL = 3

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
    texts = {name: text for name, text, _ in _read(requirements_of(distribution))}
    missing = [text for name, text in texts.items() if _requires(name) is None]
    only = missing[0] if len(missing) == 1 else usual.replace("_", "-")
    return texts.get(canonical_name(usual), only)


def specifier_for(name: str, lines: list[str]) -> str | None:
    """Return the version specifier that one of the requirements sets for `name`, or None."""
    wanted = canonical_name(name)
    return next((spec for found, _, spec in _read(lines) if found == wanted), None) or None


def _requires(distribution: str) -> list[str] | None:
    """Return all requirements of a distribution; None if it is not installed."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        return requires(distribution) or []
    except PackageNotFoundError:
        return None


def _read(lines: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each plain requirement, its text without spaces, and its specifier."""
    for line in lines:
        if match := _REQUIREMENT.match(line):
            text = "".join(line.split()).replace("(", "").replace(")", "")
            yield canonical_name(match["name"]), text, "".join(match["spec"].split())


def is_satisfied(version: str, specifier: str) -> bool | None:
    """Return whether `version` is in `specifier` (``">=0.1,<0.2"``), or None if unreadable."""
    answers = [_satisfies(version, clause.strip()) for clause in specifier.split(",")]
    if False in answers:
        return False
    return None if None in answers else True


def _satisfies(version: str, clause: str) -> bool | None:
    match = _CLAUSE.match(clause)
    if match is None:
        return None
    operator, text = match.groups()
    if text.endswith(".*"):
        return _matches_prefix(version, operator, text[:-2])
    have, want = _parse(version), _parse(text)
    if have is None or want is None:
        return None
    if operator == "~=":
        prefix = text.rpartition(".")[0]
        return have >= want and bool(_matches_prefix(version, "==", prefix))
    if operator == "<" and want[1][0] == _FINAL and have[0] == want[0]:
        return False  # PEP 440: 0.2rc1 is not in "<0.2"
    return {
        "==": have == want,
        "!=": have != want,
        "<=": have <= want,
        ">=": have >= want,
        "<": have < want,
        ">": have > want and have[0] != want[0],  # PEP 440: 0.2.post1 is not in ">0.2"
    }[operator]


def _matches_prefix(version: str, operator: str, prefix: str) -> bool | None:
    have = _VERSION.match(version)
    if have is None or operator not in ("==", "!=") or not re.fullmatch(r"\d+(\.\d+)*", prefix):
        return None
    parts = [int(part) for part in prefix.split(".")]
    release = [int(part) for part in have["release"].split(".")]
    release += [0] * (len(parts) - len(release))
    return (release[: len(parts)] == parts) == (operator == "==")


def _parse(text: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return a sort key that follows PEP 440: dev < a < b < rc < final < post."""
    match = _VERSION.match(text)
    if match is None:
        return None
    release = [int(part) for part in match["release"].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    stage, number = _FINAL, 0
    if match["pre"]:
        stage, number = _PRE[match["pre"].lower()], int(match["pre_n"] or 0)
    elif match["dev"] and not match["post"]:
        stage = -1
    post = int(match["post_n"] or 0) if match["post"] else -1
    dev = (0, int(match["dev_n"] or 0)) if match["dev"] else (1, 0)
    return tuple(release), (stage, number, post, *dev)
