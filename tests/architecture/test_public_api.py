"""What is public is written down in public_api.txt, so that a change of it is seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from source_tree import Module

from .public_api import COMMAND, COMMITTED, Api, explain_difference, render_project

BEFORE = """
import dataclasses
import enum
from typing import overload
from shop._base import Base
__all__ = ["BREAD", "Bread", "Kind", "Oven", "bake", "warm"]
BREAD: int = 3
class Kind(enum.Enum):
    RYE = "rye"
    WHEAT = "wheat"
@dataclasses.dataclass(frozen=True)
class Bread:
    kind: Kind
    grams: int = 500
    def slice(self, *, width: float = 1.0) -> list[int]: ...
    def _crumble(self) -> None: ...
class Oven(Base):
    def __init__(self, heat: int) -> None:
        self.heat = heat
        self._door = None
    @property
    def is_hot(self) -> bool: ...
@overload
def bake(bread: Bread) -> Bread: ...
@overload
def bake(bread: str) -> str: ...
def bake(bread): ...
def warm(oven: Oven, to: int = 200) -> None: ...
def hidden() -> None: ...
"""
BASE = """
class Base:
    def open(self, wide: bool = False) -> None: ...
"""


def api_of(folder: Path, source: str, base: str = BASE) -> str:
    files = {"shop": source, "shop._base": base}
    modules = []
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        modules.append(Module(name, path))
    return "\n".join(Api(modules).lines())


def test_the_public_api_is_the_one_that_is_written_down() -> None:
    difference = explain_difference(COMMITTED.read_text(encoding="utf-8"), render_project())
    assert not difference, difference


def test_the_file_has_the_core_the_plugins_and_the_hooks() -> None:
    text = COMMITTED.read_text(encoding="utf-8")
    for line in (
        "module detcore_testing",
        "module detcore_estimator.export",
        "  class TFKerasTrial(Trial, abc.ABC)",
        "module detcore_storage",
        "  @hookspec",
    ):
        assert f"\n{line}\n" in text, line
    assert "\n  def detcore_trial_finished(trial: TrialInfo, state: str, error: " in text


def test_it_lists_names_signatures_fields_and_members(tmp_path: Path) -> None:
    text = api_of(tmp_path, BEFORE)
    for line in (
        "BREAD: int = 3",
        "class Kind(enum.Enum)",
        "RYE = 'rye'",
        "@dataclasses.dataclass(frozen=True)",
        "grams: int = 500",
        "def slice(self, *, width: float=1.0) -> list[int]",
        "self.heat",
        "@property def is_hot(self) -> bool",
        "def open(self, wide: bool=False) -> None",  # of a base class that is not public
        "def bake(bread: str) -> str",
        "def warm(oven: Oven, to: int=200) -> None",
    ):
        assert line in [found.strip() for found in text.splitlines()], line
    for hidden in ("hidden", "_crumble", "_door"):
        assert hidden not in text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("to: int = 200", "to: int = 220"),
        ("oven: Oven, to", "oven: Oven, *, to"),
        ("to: int = 200", "to: float = 200"),
        ("-> list[int]", "-> tuple[int, ...]"),
        ("    grams: int = 500\n", ""),
        ('    WHEAT = "wheat"\n', ""),
        ('"bake", "warm"', '"bake"'),
        ("frozen=True", "frozen=False"),
        ("def bake(bread: str) -> str", "def bake(bread: bytes) -> bytes"),
        ("class Oven(Base)", "class Oven"),
        ("        self.heat = heat\n", ""),
        ("    @property\n    def is_hot", "    def is_hot"),
    ],
)
def test_each_change_that_users_can_notice_is_seen(tmp_path: Path, old: str, new: str) -> None:
    before = api_of(tmp_path, BEFORE)
    assert old in BEFORE
    difference = explain_difference(before, api_of(tmp_path, BEFORE.replace(old, new)))
    assert "\n-" in difference
    assert COMMAND in difference
    assert "deprecated first" in difference


def test_a_change_of_a_private_base_is_seen_and_one_of_a_body_is_not(tmp_path: Path) -> None:
    before = api_of(tmp_path, BEFORE)
    assert explain_difference(before, api_of(tmp_path, BEFORE, BASE.replace("wide", "far")))
    body = BEFORE.replace("def _crumble(self) -> None: ...", "def _crush(self) -> int: ...")
    assert explain_difference(before, api_of(tmp_path, body)) == ""


def test_an_addition_asks_for_no_deprecation(tmp_path: Path) -> None:
    before = api_of(tmp_path, BEFORE)
    after = BEFORE.replace('    WHEAT = "wheat"\n', '    WHEAT = "wheat"\n    OAT = "oat"\n')
    difference = explain_difference(before, api_of(tmp_path, after))
    assert "+    OAT = 'oat'" in difference
    assert "deprecated first" not in difference


def test_the_order_of_definitions_does_not_matter(tmp_path: Path) -> None:
    warm = "def warm(oven: Oven, to: int = 200) -> None: ...\n"
    moved = BEFORE.replace(warm, "").replace("class Kind", f"{warm}class Kind")
    assert api_of(tmp_path, moved) == api_of(tmp_path, BEFORE)
