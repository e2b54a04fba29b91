"""What is deprecated says so, once, at the line that uses it, and does not outlive its promise."""

from __future__ import annotations

import abc
import asyncio
import inspect
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest
from fake_distributions import write_distribution
from source_tree import PLUGIN_SOURCES, SOURCE

from detcore import __version__
from detcore.deprecation import (
    Deprecation,
    DetcoreDeprecationWarning,
    deprecated,
    deprecated_argument,
    deprecated_attributes,
    deprecated_hook,
)
from detcore.environment import read_environment
from detcore.hooks import PluginManager, specs
from detcore_testing import find_overdue

MESSAGE = (
    r"\.bake\(\) is deprecated since detcore 0\.2 and will be removed in detcore 0\.4; "
    r"use detcore\.roast$"
)


@deprecated(since="0.2", removed_in="0.4", use="detcore.roast")
def bake(heat: int = 200, *, fan: bool = False) -> tuple[int, bool]:
    """Bake.

    Args:
        heat: How hot.
    """
    return heat, fan


def line_of(warned: pytest.WarningsRecorder) -> tuple[str, str]:
    """Return the file and the text of the line that the only warning names."""
    (warning,) = warned
    text = Path(warning.filename).read_text(encoding="utf-8").splitlines()[warning.lineno - 1]
    return Path(warning.filename).name, text.strip()


def test_a_function_warns_at_the_line_that_calls_it_and_works() -> None:
    with pytest.warns(DetcoreDeprecationWarning, match=MESSAGE) as warned:
        assert bake(100, fan=True) == (100, True)
    assert line_of(warned) == (Path(__file__).name, "assert bake(100, fan=True) == (100, True)")


def test_the_docstring_has_both_versions_and_the_signature_stays() -> None:
    doc = inspect.getdoc(bake) or ""
    assert doc.startswith("Bake.\n\nDeprecated:\n    ")
    assert "since detcore 0.2" in doc
    assert "removed in detcore 0.4" in doc
    assert doc.endswith("heat: How hot.")
    assert list(inspect.signature(bake).parameters) == ["heat", "fan"]
    assert bake.__name__ == "bake"


def test_python_shows_it_by_default_and_once_for_each_place(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(
        "from detcore.deprecation import deprecated\n"
        "@deprecated(since='0.2', removed_in='0.4')\ndef bake(): pass\n"
    )
    (tmp_path / "trial.py").write_text(
        "import old\ndef train():\n    for _ in range(3):\n        old.bake()\n    old.bake()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", "import trial; trial.train(); trial.train()"],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    lines = [line for line in result.stderr.splitlines() if "DetcoreDeprecationWarning" in line]
    assert [line.partition(": ")[0].rpartition("trial.py:")[2] for line in lines] == ["4", "5"]


def test_a_class_warns_where_it_is_made_and_where_it_is_subclassed() -> None:
    @deprecated(since="1.0", removed_in="2.0", distribution="detcore-bread")
    class Oven(metaclass=abc.ABCMeta):  # noqa: B024  (the metaclass has a frame of its own)
        def __init__(self, heat: int) -> None:
            self.heat = heat

    with pytest.warns(DetcoreDeprecationWarning, match=r"detcore-bread 1\.0 .* instead$") as made:
        assert Oven(3).heat == 3
    assert line_of(made)[1] == "assert Oven(3).heat == 3"
    with pytest.warns(DetcoreDeprecationWarning, match="Oven is deprecated") as subclassed:

        class Small(Oven):
            pass

    assert line_of(subclassed)[1] == "class Small(Oven):"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Small(4).heat == 4  # whoever makes it has nothing to change
    assert issubclass(Small, Oven)


def test_methods_properties_and_coroutines() -> None:
    class Oven:
        @property
        @deprecated(since="0.2", removed_in="0.3")
        def heat(self) -> int:
            return 3

        @classmethod
        @deprecated(since="0.2", removed_in="0.3")
        def make(cls) -> Oven:
            return cls()

        @deprecated(since="0.2", removed_in="0.3")
        async def bake(self) -> int:
            return 4

    with pytest.warns(DetcoreDeprecationWarning, match=r"make\(\)") as warned:
        oven = Oven.make()
    assert line_of(warned)[1] == "oven = Oven.make()"
    with pytest.warns(DetcoreDeprecationWarning, match="heat"):
        assert oven.heat == 3
    with pytest.warns(DetcoreDeprecationWarning, match="bake"):
        assert asyncio.run(oven.bake()) == 4
    with pytest.raises(TypeError, match="put the mark below @staticmethod"):
        deprecated(since="0.2", removed_in="0.3")(staticmethod(len))


def test_an_argument_warns_only_where_it_is_given() -> None:
    @deprecated_argument("fan", since="0.2", removed_in="0.4", use="an oven with a fan")
    def roast(heat: int, fan: bool = False) -> tuple[int, bool]:
        """Roast."""
        return heat, fan

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert roast(3) == (3, False)
    with pytest.warns(DetcoreDeprecationWarning, match="the argument 'fan' of .*roast") as warned:
        assert roast(3, True) == (3, True)
    assert line_of(warned)[1] == "assert roast(3, True) == (3, True)"
    with pytest.warns(DetcoreDeprecationWarning, match="use an oven with a fan$"):
        assert roast(3, fan=True) == (3, True)
    assert "Deprecated:" in (roast.__doc__ or "")


def test_a_renamed_argument_is_passed_on() -> None:
    @deprecated_argument("temperature", renamed_to="heat", since="0.2", removed_in="0.4")
    def roast(heat: int) -> int:
        return heat

    with pytest.warns(DetcoreDeprecationWarning, match="use 'heat'$"):
        assert roast(temperature=7) == 7  # type: ignore[call-arg]  # the old name
    with (
        pytest.warns(DetcoreDeprecationWarning),
        pytest.raises(TypeError, match="got 'heat' and its old name 'temperature'"),
    ):
        roast(temperature=7, heat=8)  # type: ignore[call-arg]  # both names
    with pytest.raises(TypeError, match="has no argument 'steam'"):
        deprecated_argument("steam", since="0.2", removed_in="0.4")(roast)


def test_an_attribute_of_a_module_warns_where_it_is_imported(tmp_path: Path) -> None:
    module = types.ModuleType("bread_of_today")
    notice = Deprecation(what="bread_of_today.RYE", since="0.2", removed_in="0.4", use="WHEAT")
    module.__getattr__ = deprecated_attributes(  # type: ignore[method-assign]  # as PEP 562 says
        module.__name__, {"RYE": (3, notice)}
    )
    sys.modules[module.__name__] = module
    try:
        with pytest.warns(DetcoreDeprecationWarning, match="use WHEAT$") as warned:
            from bread_of_today import RYE  # type: ignore[import-not-found]  # made above
        assert RYE == 3
        assert {Path(item.filename).name for item in warned} == {Path(__file__).name}
        with pytest.raises(AttributeError, match="'bread_of_today' has no attribute 'OAT'"):
            _ = module.OAT
    finally:
        del sys.modules[module.__name__]


@pytest.mark.parametrize(("since", "removed_in"), [("0.4", "0.4"), ("0.10", "0.9"), ("0.2", "x")])
def test_versions_that_make_no_sense_are_refused(since: str, removed_in: str) -> None:
    with pytest.raises(ValueError, match=r"at least one release|is not a version"):
        deprecated(since=since, removed_in=removed_in)(bake)


# -- hooks ----------------------------------------------------------------------------------------


@pytest.fixture
def old_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One hook deprecated as a whole, and an argument of another."""
    for hook, arguments in (
        (specs.detcore_trial_started, ()),
        (specs.detcore_trial_finished, ("error",)),
    ):
        monkeypatch.setattr(hook, "__detcore_deprecations__", {}, raising=False)
        deprecated_hook(since="0.2", removed_in="0.4", use="X", arguments=arguments)(hook)


@pytest.mark.usefixtures("old_hooks")
def test_a_plugin_with_an_old_hook_is_named_with_its_distribution_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "from detcore import hookimpl\n"
    for name, hooks in {
        "started": "@hookimpl\ndef detcore_trial_started(trial): pass\n",
        "erring": "@hookimpl(specname='detcore_trial_finished')\ndef end(state, error): pass\n",
        "modern": "@hookimpl\ndef detcore_trial_finished(state): pass\n",
    }.items():
        write_distribution(
            tmp_path, f"oldhook-{name}", modules={f"oldhook_{name}.plugin": head + hooks}
        )
    monkeypatch.syspath_prepend(tmp_path)
    told: list[str] = []
    manager = PluginManager(
        read_environment({"DETCORE_PLUGINS": "started,erring,modern"}),
        on_problem=lambda problem: told.append(str(problem)),
    )
    found = {name: manager.hooks_of(name) for name in ("started", "erring", "modern")}
    assert all(found.values())
    assert [problem.kind for problem in manager.problems()] == ["deprecated-hook"] * 2
    first, second = told
    assert "oldhook-started 1.0" in first
    assert "the hook detcore_trial_started is deprecated since detcore 0.2 and will be" in first
    assert "oldhook-erring 1.0" in second
    assert "the argument 'error' of detcore_trial_finished" in second
    assert "removed in detcore 0.4; use X" in second
    manager.hooks_of("started")
    assert len(told) == 2


# -- promises -------------------------------------------------------------------------------------


def test_nothing_outlives_the_release_that_was_to_remove_it() -> None:
    overdue = [str(item) for item in find_overdue(SOURCE / "detcore", __version__)]
    for folder in PLUGIN_SOURCES:
        for package in folder.iterdir():
            text = (package / "__init__.py").read_text(encoding="utf-8")
            version = text.split('__version__ = "')[1].split('"')[0]
            overdue += [str(item) for item in find_overdue(package, version)]
    assert overdue == []


@pytest.mark.parametrize(
    ("version", "lines"),
    [("0.3", []), ("0.4.0rc1", [2, 9]), ("0.4", [2, 9]), ("0.10", [2, 6, 9]), ("1.0", [2, 6, 9])],
)
def test_what_is_overdue_is_found_by_its_line(
    tmp_path: Path, version: str, lines: list[int]
) -> None:
    (tmp_path / "old.py").write_text(
        "import detcore.deprecation as d\n"
        "@d.deprecated(since='0.2', removed_in='0.4')\n"
        "class Old: pass\n"
        "\n"
        "def f():\n"
        "    x = d.Deprecation(what='x', since='0.2', removed_in='0.10')\n"
        "    return x\n"
        "class Hooks:\n"
        "    @d.deprecated_argument('a', since='0.2', removed_in='0.4', renamed_to='b')\n"
        "    def g(self, b): pass\n"
    )
    assert [item.line for item in find_overdue(tmp_path, version)] == lines


def test_a_mark_whose_version_nobody_can_read_is_found_at_once(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(
        "V = '9'\n@deprecated(since='0.2', removed_in=V)\ndef f(): 0\n"
    )
    (found,) = find_overdue(tmp_path, "0.1")
    assert "removed_in is not written as a text" in str(found)
