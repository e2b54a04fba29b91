"""Hooks of MkDocs that add the generated pages. mkdocs.yml names this file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

__all__ = ["on_config", "on_files", "on_page_markdown"]

_ROOT = Path(__file__).parents[1]
# A search for "resume" should find the guides before the functions.
_LAST_IN_SEARCHES = ("reference/", "changelog")


def on_config(config: Any) -> Any:
    """Put the pages of the public modules into the navigation."""
    sys.path[:0] = [str(_ROOT / "tools")] * (str(_ROOT / "tools") not in sys.path)
    from docs_site import public_modules

    pages = [{name: f"reference/api/{name}.md"} for name in public_modules(_ROOT)]
    reference = next(part["Reference"] for part in config.nav if "Reference" in part)
    next(part for part in reference if "Python API" in part)["Python API"] = pages
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are generated from the code, and the changelog."""
    from docs_site import (
        api_page,
        commands_page,
        configuration_page,
        determined_names_page,
        hooks_page,
        public_modules,
    )

    modules = public_modules(_ROOT)
    contents = {
        "reference/configuration.md": configuration_page(),
        "reference/hooks.md": hooks_page(),
        "reference/commands.md": commands_page(),
        "reference/determined-names.md": determined_names_page(),
        "changelog.md": _changelog(),
    }
    for name, names in modules.items():
        contents[f"reference/api/{name}.md"] = api_page(name, names, modules)
    for path, text in contents.items():
        files.append(File.generated(config, path, content=text))
    return files


def _changelog() -> str:
    """Return the changelog, whose links are those of a file beside the folder ``docs``."""
    return (_ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Take out what only the tests of the page need, and put its drawings in."""
    from docs_site import for_the_site

    if page.file.src_uri.startswith(_LAST_IN_SEARCHES):
        page.meta["search"] = {"boost": 0.01}
    return for_the_site(markdown, page=page.file.src_uri, docs=_ROOT / "docs")
