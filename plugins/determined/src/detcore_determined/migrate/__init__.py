"""Rewrite code and experiment files from Determined's names to detcore's; see docs/migrating.md.

Works on text only: the migrated code is neither imported nor executed.
"""

from detcore_determined.migrate.experiment_file import migrate_config
from detcore_determined.migrate.files import FileReport, find_files, migrate_file
from detcore_determined.migrate.findings import Finding, Migrated
from detcore_determined.migrate.python_module import migrate_python

__all__ = [
    "FileReport",
    "Finding",
    "Migrated",
    "find_files",
    "migrate_config",
    "migrate_file",
    "migrate_python",
]
