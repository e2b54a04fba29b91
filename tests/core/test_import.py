"""Cost of importing the Core API, counted in modules because times are noisy."""

from __future__ import annotations

import json

from processes import run_python

HEAVY = {
    "numpy", "pydantic", "sqlalchemy", "alembic", "fsspec", "yaml", "rich", "click", "pluggy",
    "asyncio", "concurrent.futures", "tempfile", "logging", "tensorflow", "torch",
}  # fmt: skip


def test_init_opens_nothing() -> None:
    modules = run_python(
        "import os, sys, json; os.environ['DETCORE_HOME'] = '/nonexistent/detcore'\n"
        "from detcore import core\ncore.init()\nprint(json.dumps([*sys.modules]))"
    )
    assert not {*json.loads(modules)} & HEAVY
