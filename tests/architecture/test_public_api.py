"""public_api.txt lists all public names, so that a review sees each added or removed name."""

from __future__ import annotations

import difflib

from .public_api import COMMITTED, list_public_names


def test_public_names_are_listed() -> None:
    listed = COMMITTED.read_text(encoding="utf-8").splitlines()
    difference = "\n".join(difflib.unified_diff(listed, list_public_names(), lineterm="", n=0))
    assert not difference, (
        f"{difference}\nIf this is meant: python tests/architecture/public_api.py --write"
    )
