"""What importing the Core API costs: counted in modules, because times are noisy."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = {
    "numpy", "pydantic", "sqlalchemy", "alembic", "fsspec", "yaml", "rich", "click", "pluggy",
    "platformdirs", "asyncio", "concurrent.futures", "tempfile", "logging", "tensorflow", "torch",
}  # fmt: skip


def modules_of(code: str) -> set[str]:
    command = f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, check=True)
    return set(json.loads(done.stdout))


def test_making_a_context_opens_nothing_yet() -> None:
    modules = modules_of(
        "import os; os.environ['DETCORE_HOME'] = '/nonexistent/detcore'\n"
        "from detcore import core\ncore.init()"
    )
    assert not modules & (HEAVY - {"platformdirs"})
