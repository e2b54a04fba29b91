"""Taking something public away without surprise: for detcore itself and for plugins.

What is deprecated goes on working, warns once for each place that uses it, and says since when,
until when, and what to use. A test of each distribution calls `find_overdue`, so that a release
cannot keep what it promised to remove. See docs/api-policy.md.
"""

from detcore.deprecation._mark import (
    deprecated,
    deprecated_argument,
    deprecated_attributes,
    deprecated_hook,
    deprecations_of_hook,
)
from detcore.deprecation._notice import Deprecation, DetcoreDeprecationWarning
from detcore.deprecation._overdue import Overdue, find_overdue

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
