"""A page for each public module: all of its ``__all__``, by mkdocstrings."""

from __future__ import annotations

import ast
from pathlib import Path

__all__ = ["api_page", "public_modules"]


def public_modules(root: Path) -> dict[str, tuple[str, ...]]:
    """Return the public modules with their public names, read without importing them.

    A module is public if no part of its name begins with an underscore and it has ``__all__``.
    Names of the contract are listed where the guides document them.
    """
    modules = {}
    for source in (root / "src", *sorted(root.glob("plugins/*/src"))):
        for path in sorted(source.rglob("*.py")):
            parts = path.relative_to(source).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            is_private = any(part.startswith("_") for part in parts) or "migrations" in parts
            if not is_private and parts[:2] != ("detcore", "contract"):
                names = _declared(path)
                if names:
                    modules[".".join(parts)] = names
    return modules


def _declared(path: Path) -> tuple[str, ...]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            # All of a module of the contract, which is next to the package's other modules.
            source = next(one for one in path.parents if one.name == "src")
            return _declared(source.joinpath(*str(node.module).split(".")).with_suffix(".py"))
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return tuple(ast.literal_eval(node.value))  # type: ignore[attr-defined]  # an Assign
    return ()


def api_page(module: str, names: tuple[str, ...], modules: dict[str, tuple[str, ...]]) -> str:
    """Return the page of a module.

    Args:
        module: Name of the module.
        names: Public names of the module.
        modules: All public modules. A name that is a module gets a link instead of its content.
    """
    qualified_name = (
        f"::: {module}\n    options:\n      members: false\n      show_root_heading: false\n"
    )
    parts = [f"# {module}\n", qualified_name]
    for name in names:
        qualified_name = f"{module}.{name}"
        if name.startswith("__"):
            continue
        if qualified_name in modules:
            parts.append(f"## {name}\n\nThe module [{qualified_name}]({qualified_name}.md).\n")
        else:
            parts.append(f"::: {qualified_name}\n    options:\n      heading_level: 2\n")
    return "\n".join(parts)
