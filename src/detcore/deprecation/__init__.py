"""Deprecation of public names, for detcore itself and for plugins.

A deprecated name keeps working. It warns once for each place that uses it, with the version that
deprecated it, the version that removes it, and the replacement. A test of each distribution calls
`find_overdue`, so that a release cannot keep a name that it promised to remove. See
docs/api-policy.md.
"""

from detcore.deprecation._mark import (
    Overdue,
    deprecated,
    deprecated_argument,
    deprecated_attributes,
    deprecated_hook,
    deprecations_of_hook,
    find_overdue,
)
from detcore.deprecation._notice import Deprecation, DetcoreDeprecationWarning

__all__ = [
    "Deprecation",
    "DetcoreDeprecationWarning",
    "Overdue",
    "deprecated",
    "deprecated_argument",
    "deprecated_attributes",
    "deprecated_hook",
    "deprecations_of_hook",
    "find_overdue",
]
