"""Figures of the source that may only improve, measured; ``ratchet.json`` holds the limits.

``python tests/architecture/ratchet.py`` prints each figure beside its limit; ``--write`` lowers the
limits to the figures, and refuses to raise one.
"""

from __future__ import annotations

import ast
import json
import math
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))  # where it is run as a script

from english import PATTERNS, rates, read_prose
from source_tree import PLUGIN_SOURCES, SOURCE, Module, modules_under
from toy_command import Detcore

__all__ = [
    "COMMAND", "COMMITTED", "LoosenedError", "compare", "count_any", "import_lines",
    "measure_source", "measure_worker", "public_names", "read_limits", "tighten",
]  # fmt: skip

COMMITTED = Path(__file__).with_name("ratchet.json")
_PUBLIC_API = Path(__file__).with_name("public_api.txt")
COMMAND = "python tests/architecture/ratchet.py --write"
# Limits are multiples of these steps, so that a fix of a few lines does not fail; default: 1.
STEPS = {
    "worker_lines": 100.0,
    "core_lines": 100.0,
    "core_import_percent": 0.1,
    **{f"english_{name}": 0.5 for name in PATTERNS},
}
# A figure that is better by this many steps has to be written down.
MARGIN_STEPS = 3
# Third-party packages that a worker could do without; 1 where it loads them.
PACKAGES = (
    "alembic", "click", "fsspec", "optuna", "pathspec", "pluggy", "pydantic", "rich", "sqlalchemy",
    "urllib3", "yaml",
)  # fmt: skip
_ANY_DICTS = {"dict", "Dict", "Mapping", "MutableMapping"}
# The chief of two workers, so that what connects them is loaded; written as the trial closes.
_MODEL = """
import json
import sys
from pathlib import Path
import numpy as np
from detcore_toy import ToyTrial

class Line(ToyTrial):
    def __init__(self, context):
        self.is_chief = context.distributed.rank == 0

    def build_data(self):
        x = np.ones((96, 3))
        return x, x.sum(axis=1)

    def on_batch(self, step):
        if step < 0 and self.is_chief:
            files = {name: getattr(module, "__file__", None)
                     for name, module in sorted(sys.modules.items())}
            Path(%r).write_text(json.dumps(files))
"""


class LoosenedError(Exception):
    """A limit would have to be raised."""


def measure_worker(folder: Path) -> dict[str, float]:
    """Run a trial of the toy framework with two workers, and measure what its chief has loaded.

    Args:
        folder: An empty folder for the run.
    """
    written = folder / "modules.json"
    model = folder / "model"
    model.mkdir()
    (model / "model_def.py").write_text(_MODEL % str(written), encoding="utf-8")
    with Detcore(folder) as detcore:
        config = detcore.config(resources__slots_per_trial=2)
        finished = detcore("run", config, model)
    if finished.code or not written.exists():
        raise RuntimeError(f"detcore run ended with {finished.code}:\n{finished.output}")
    loaded = json.loads(written.read_text(encoding="utf-8"))
    ours = {
        Path(file)
        for name, file in loaded.items()
        if name.partition(".")[0] == "detcore" and file is not None
    }
    packages = {name.partition(".")[0] for name in loaded}
    return {
        "worker_modules": len(ours),
        "worker_lines": sum(map(_num_lines, ours)),
        **{f"worker_loads_{name}": int(name in packages) for name in PACKAGES},
    }


def measure_source() -> dict[str, float]:
    """Measure the source files of the core and of the plugins."""
    core = modules_under(SOURCE)
    plugins = [module for folder in PLUGIN_SOURCES for module in modules_under(folder)]
    names = public_names(_PUBLIC_API.read_text(encoding="utf-8"))
    any_dicts, other = count_any(core + plugins)
    num_imports, num_code = map(sum, zip(*(import_lines(module) for module in core), strict=True))
    prose = read_prose(module.path for module in core + plugins)
    return {
        "core_modules": len(core),
        "core_lines": sum(_num_lines(module.path) for module in core),
        "core_import_percent": 100 * num_imports / num_code,
        "public_names_core": sum(name.startswith("detcore.") for name in names),
        "public_names_plugins": sum(not name.startswith("detcore.") for name in names),
        "any_dicts_in_signatures": any_dicts,
        "other_any_in_signatures": other,
        **{f"english_{name}": rate for name, rate in rates(prose).items()},
    }


def public_names(text: str) -> set[str]:
    """Return the dotted public names in the text of ``public_api.txt``, without members.

    A name of the contract counts once, as the room's: the documented places hand it on.
    """
    found, module = set(), ""
    for line in text.splitlines():
        if re.search(r" = (module )?detcore\.contract\.", line):
            continue
        if line.startswith("module "):
            module = line.removeprefix("module ")
        elif line.startswith("  ") and line[2] not in " @":
            words = line.replace("(", " ").replace(":", " ").split()
            skipped = ("class", "async", "def")
            name = next(word for word in words if word not in skipped)
            found.add(f"{module}.{name}")
    return found


def count_any(modules: Iterable[Module]) -> tuple[int, int]:
    """Count ``Any`` in the annotations of functions: in dictionaries of anything, and elsewhere."""
    any_dicts = other = 0
    for module in modules:
        for annotation in _annotations(module.tree):
            nodes = list(ast.walk(annotation))
            dicts = sum(map(_is_any_dict, nodes))
            any_dicts += dicts
            other += sum(isinstance(node, ast.Name) and node.id == "Any" for node in nodes) - dicts
    return any_dicts, other


def _annotations(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is not None:
            yield node.returns
        elif isinstance(node, ast.arg) and node.annotation is not None:
            yield node.annotation


def _is_any_dict(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Subscript) and isinstance(node.value, (ast.Name, ast.Attribute))):
        return False
    name = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
    arguments = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
    return (
        name in _ANY_DICTS
        and len(arguments) == 2
        and isinstance(arguments[1], ast.Name)
        and arguments[1].id == "Any"
    )


def import_lines(module: Module) -> tuple[int, int]:
    """Return the number of lines of imports and ``__all__``, and that of all lines of code.

    Blank lines, docstrings and lines with nothing but a comment are no code.
    """
    imports, texts = set[int](), set[int]()
    for node in ast.walk(module.tree):
        lines = range(getattr(node, "lineno", 0), (getattr(node, "end_lineno", 0) or 0) + 1)
        if isinstance(node, (ast.Import, ast.ImportFrom)) or _is_all(node):
            imports.update(lines)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            texts.update(lines)
    code = {
        number
        for number, line in enumerate(module.path.read_text(encoding="utf-8").splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    }
    return len(imports), len(code - texts)


def _is_all(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and [ast.unparse(one) for one in node.targets] == [
        "__all__"
    ]


def _num_lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def read_limits() -> dict[str, float]:
    """Read the committed limits."""
    limits: dict[str, float] = json.loads(COMMITTED.read_text(encoding="utf-8"))
    return limits


def _limit_for(name: str, figure: float) -> float:
    """Round a figure up to the next limit."""
    step = STEPS.get(name, 1.0)
    return round(math.ceil(round(figure / step, 6)) * step, 6)


def compare(limits: Mapping[str, float], figures: Mapping[str, float]) -> list[str]:
    """Return what is wrong with figures: worse than their limits, or so good that those lag."""
    wrong = []
    for name, figure in figures.items():
        if name not in limits:
            wrong.append(f"{name} is {_shown(figure)} and has no limit yet: {COMMAND}")
            continue
        limit = limits[name]
        # Figures that are few, as 1 or 0, have to be written down at once.
        margin = min(MARGIN_STEPS * STEPS.get(name, 1.0), limit)
        if figure > limit:
            wrong.append(
                f"{name} is {_shown(figure)}, and may be {_shown(limit)} at most. It may only "
                "improve; if it has to grow, change the limit by hand and say why in the commit."
            )
        elif margin and figure <= round(limit - margin, 6):
            wrong.append(
                f"{name} is {_shown(figure)}, better than its limit {_shown(limit)}. Lower the "
                f"limit, and commit the file with the change: {COMMAND}"
            )
    wrong += [f"{name} is not measured: delete its limit" for name in limits if name not in figures]
    return wrong


def tighten(limits: Mapping[str, float], figures: Mapping[str, float]) -> dict[str, float]:
    """Return limits for figures, none higher than before.

    Raises:
        LoosenedError: If a figure is worse than its limit; the message names all of these.
    """
    worse = [
        f"{name} is {_shown(figure)}, its limit {_shown(limits[name])}"
        for name, figure in figures.items()
        if figure > limits.get(name, math.inf)
    ]
    if worse:
        raise LoosenedError(
            "Nothing was written, since a limit would be raised: " + "; ".join(worse)
        )
    return {
        name: min(_limit_for(name, figure), limits.get(name, math.inf))
        for name, figure in figures.items()
    }


def _shown(figure: float) -> str:
    return f"{figure:.2f}".rstrip("0").rstrip(".")


def main() -> None:
    """Print the figures and their limits, or write the limits."""
    limits = read_limits() if COMMITTED.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        figures = measure_source() | measure_worker(Path(folder))
    if "--write" in sys.argv[1:]:
        try:
            limits = tighten(limits, figures)
        except LoosenedError as error:
            sys.exit(str(error))
        COMMITTED.write_text(json.dumps(limits, indent=2) + "\n", encoding="utf-8")
    for name, figure in figures.items():
        print(f"{name:32} {_shown(figure):>10}   at most {_shown(limits.get(name, math.inf))}")


if __name__ == "__main__":
    main()
