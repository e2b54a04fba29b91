"""Selection of session statements for the module that trials import."""

from __future__ import annotations

import math
from typing import Any

import pytest

from detcore.errors import InvalidExperimentError
from detcore_report import module_from_cells


def run(cells: list[str], name: str = "Net", **namespace: Any) -> dict[str, Any]:
    """Run the module separately and return its definitions."""
    module = module_from_cells(cells, name, namespace=namespace)
    namespace_after: dict[str, Any] = {"__name__": module.name}
    exec(compile(module.text, module.name, "exec"), namespace_after)
    return namespace_after


def test_module_has_only_required_statements() -> None:
    cells = [
        "",
        "import math\nimport no_such_module",
        "SIZE = 4; print(undefined_name)",
        "def area(r):\n    # of a circle\n    return PI * r ** SIZE",
        "PI = math.pi",
        "raise SystemExit('only to be looked at')",
        "import functools\n@functools.total_ordering\nclass Net:\n"
        "    size = SIZE\n    def get(self): return area(2)\n    def __lt__(self, o): return False",
        "net = Net()\nnet.get()",
    ]
    result = run(cells)
    assert result["Net"]().get() == math.pi * 2**4
    assert "net" not in result
    assert "# of a circle" in module_from_cells(cells, "Net").text


def test_values_are_from_time_of_use() -> None:
    cells = [
        "def scale(): return 2",
        "factor = scale()",
        "def scale(): return 5",
        "factor = factor + 1\nfactor += 10",
        "class Net:\n    early = factor\n    def late(self): return scale()",
        "factor = 100",
    ]
    result = run(cells)
    assert result["Net"].early == 13
    assert result["Net"]().late() == 5


def test_in_place_changes_are_included() -> None:
    cells = [
        "options = {}\nnames = []",
        "options['rate'] = 3",
        "names.append('a')",
        "if options:\n    names = names + ['b']",
        "class Net:\n    def get(self): return options, names",
    ]
    assert run(cells)["Net"]().get() == ({"rate": 3}, ["a", "b"])


def test_repeated_definition_counts_as_last() -> None:
    cells = ["class Net(Base):\n    x = 1", "Base = object", "class Net(Base):\n    x = 2"]
    assert run(cells)["Net"].x == 2


def test_local_names_and_attributes_are_ignored() -> None:
    cells = [
        "model = launch_missiles()",
        "size = launch_missiles()",
        "class Net:\n    size = 3\n    def build(self):\n        model = [size for size in 'ab']\n"
        "        return model",
    ]
    assert run(cells)["Net"]().build() == ["a", "b"]


def test_time_magic_and_future_annotations() -> None:
    cells = [
        "from __future__ import annotations",
        "get_ipython().run_line_magic('matplotlib', 'inline')",
        "get_ipython().run_cell_magic('time', '', 'WIDTH = 7\\n')",
        "class Net:\n    def get(self) -> Unknown: return WIDTH",
    ]
    assert run(cells)["Net"]().get() == 7


def test_session_modules_are_imported() -> None:
    assert run(["class Net:\n    x = m.pi"], m=math)["Net"].x == math.pi


def test_module_name_follows_from_content() -> None:
    first = module_from_cells(["class Net: x = 1", "y = 1"], "Net")
    assert first == module_from_cells(["z = 5", "class Net: x = 1"], "Net")
    assert first.name != module_from_cells(["class Net: x = 2"], "Net").name
    assert first.name.isidentifier()


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["x = 1"], "no cell of this session defines the class 'Net'"),
        (["d = get_ipython().getoutput('ls')", "class Net: x = d"], "%magic or a !command"),
    ],
)
def test_session_features_are_rejected(cells: list[str], words: str) -> None:
    with pytest.raises(InvalidExperimentError, match=words):
        module_from_cells(cells, "Net")
