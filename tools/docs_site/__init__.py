"""Generate pages of the documentation site from the code.

Each function returns Markdown and needs no MkDocs, so that tests can read the pages.
"""

from __future__ import annotations

from docs_site._api import api_page, public_modules
from docs_site._commands import all_commands, commands_page
from docs_site._configuration import configuration_page
from docs_site._determined_names import determined_names_page
from docs_site._hooks import hooks_page
from docs_site._markdown import for_the_site

__all__ = [
    "all_commands",
    "api_page",
    "commands_page",
    "configuration_page",
    "determined_names_page",
    "for_the_site",
    "hooks_page",
    "public_modules",
]
