"""List the public names of the core and of the plugins, read from ``__all__`` in the source.

``python tests/architecture/public_api.py --write`` writes ``public_api.txt``.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))  # if this file is run as a script

from source_tree import PLUGIN_SOURCES, SOURCE, modules_under

COMMITTED = Path(__file__).with_name("public_api.txt")


def list_public_names() -> list[str]:
    """Return the names in ``__all__`` of all modules that are not private, with their modules."""
    modules = [module for path in (SOURCE, *PLUGIN_SOURCES) for module in modules_under(path)]
    return sorted(
        f"{module.name}.{name}"
        for module in modules
        if not module.is_private
        for name in module.declared_all() or ()
    )


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    COMMITTED.write_text("\n".join(list_public_names()) + "\n", encoding="utf-8")
