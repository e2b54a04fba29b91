"""What importing the Core API costs: counted in modules, because times are noisy."""

from __future__ import annotations

import json
import subprocess
import sys
import types

HEAVY = {
    "numpy", "pydantic", "sqlalchemy", "alembic", "fsspec", "yaml", "rich", "click", "pluggy",
    "platformdirs", "asyncio", "concurrent.futures", "tempfile", "logging", "tensorflow", "torch",
}  # fmt: skip


def modules_of(code: str) -> set[str]:
    command = f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, check=True)
    return set(json.loads(done.stdout))


def test_core_imports_nothing_of_weight() -> None:
    modules = modules_of("from detcore import core")
    assert not modules & HEAVY
    assert len(modules - modules_of("pass")) <= 150


def test_making_a_context_opens_nothing_yet() -> None:
    modules = modules_of(
        "import os; os.environ['DETCORE_HOME'] = '/nonexistent/detcore'\n"
        "from detcore import core\ncore.init()"
    )
    assert not modules & (HEAVY - {"platformdirs"})


def test_every_public_name_is_there_and_documented() -> None:
    from detcore import checkpoint, core, distributed, storage

    for module in (checkpoint, core, distributed, storage):
        for name in module.__all__:
            value = getattr(module, name)
            # A constant or an alias of a type has its text behind it in the source.
            is_named_value = name.isupper() or isinstance(value, types.GenericAlias)
            assert is_named_value or value.__doc__, name
