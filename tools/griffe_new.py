"""Signatures for classes that are made by ``__new__``: named tuples that check their values."""

from __future__ import annotations

from typing import Any

import griffe

__all__ = ["SignatureOfNew"]


class SignatureOfNew(griffe.Extension):
    """Takes the arguments of such a class from its ``__new__``, as Python does."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Let ``__new__`` stand for a missing ``__init__``."""
        if "__new__" in cls.members and "__init__" not in cls.members:
            cls.members["__init__"] = cls.members["__new__"]
