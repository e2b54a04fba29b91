"""Rewrite code and experiment files from Determined's names to detcore's; see docs/migrating.md.

Works on text only: the migrated code is neither imported nor executed.
"""

from detcore_determined.migrate._config import migrate_config
from detcore_determined.migrate._files import FileReport, find_files, migrate_file
from detcore_determined.migrate._python import migrate_python
from detcore_determined.migrate._report import Finding, Migrated

__all__ = [
    "FileReport",
    "Finding",
    "Migrated",
    "find_files",
    "migrate_config",
    "migrate_file",
    "migrate_python",
]
