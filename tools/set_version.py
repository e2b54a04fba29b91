"""Set the version of all distributions.

``python tools/set_version.py 0.2.0`` is run by ``nox -s bump -- 0.2.0``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parents[1]


def set_version(root: Path, text: str) -> list[Path]:
    """Write a version into every distribution, and return the changed files.

    Dependencies between the distributions admit the versions of one minor release, because the
    distributions are released together.

    Raises:
        SystemExit: If the text is not a version.
    """
    try:
        version = Version(text)
    except InvalidVersion:
        sys.exit(f"{text!r} is not a version such as 0.2.0")
    major, minor = version.major, version.minor
    replacements = {
        r'^(version|__version__) = "[^"]+"': rf'\1 = "{version}"',
        r'"(detcore(?:-[a-z]+)?)>=[^"]+,<[^"]+"': rf'"\1>={major}.{minor},<{major}.{minor + 1}"',
    }
    paths = [root / "pyproject.toml", root / "src/detcore/version.py"]
    for project in sorted((root / "plugins").iterdir()):
        paths += [project / "pyproject.toml", *project.glob("src/*/__init__.py")]
    changes = []
    for path in paths:
        source = content = path.read_text(encoding="utf-8")
        for pattern, replacement in replacements.items():
            content = re.sub(pattern, replacement, content, flags=re.M)
        if content != source:
            path.write_text(content, encoding="utf-8")
            changes.append(path)
    return changes


if __name__ == "__main__":
    for changed in set_version(ROOT, sys.argv[1]):
        print(changed.relative_to(ROOT))
