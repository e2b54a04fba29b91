"""Registration of the plugin."""

from __future__ import annotations

from pathlib import Path

from processes import run_python

from detcore.environment import read_environment
from detcore.plugins import PluginManager


def test_storage_types_have_entry_point(tmp_path: Path) -> None:
    plugins = PluginManager(read_environment({"DETCORE_HOME": str(tmp_path)}))
    types = plugins.storage_types()
    assert types["s3"].settings == "detcore_storage.storage_settings:S3Settings"
    assert types["gcs"].settings == "detcore_storage.storage_settings:GcsSettings"
    assert not [p for p in plugins.problems() if "detcore-storage" in str(p)]


def test_registration_imports_no_heavy_package() -> None:
    code = (
        "import detcore_storage.plugin as p, sys; p.detcore_register_storage();"
        "print([m for m in ('pydantic', 'fsspec', 'numpy') if m in sys.modules])"
    )
    assert run_python(code) == "[]\n"
