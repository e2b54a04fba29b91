"""Server log on stderr, which never contains a token, a password or a password hash."""

from __future__ import annotations

import logging
import re

LOGGER = "detcore.server"
LOG_LEVELS = ("debug", "info", "warning", "error")
# Safety net: no code logs secrets on purpose, but error messages may quote them.
_SECRETS = re.compile(
    r"(?P<prefix>detcore_)[A-Za-z0-9_-]{20,}"
    r"|(?P<scheme>\b(?:bearer|basic)\s+)[^\s'\"]+"
    r"|\$argon2[^\s'\"]+"
    r"|\b[0-9a-f]{128}\b",
    re.IGNORECASE,
)


def hide_secrets(text: str) -> str:
    """Replace anything like a token or a password hash by ``***``.

    Example::

        >>> hide_secrets("authorization: Bearer abc")
        'authorization: Bearer ***'
    """
    return _SECRETS.sub(lambda match: f"{match['prefix'] or match['scheme'] or ''}***", text)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return hide_secrets(super().format(record))


def configure_logging(level: str) -> None:
    """Configure logging to stderr.

    Args:
        level: One of `LOG_LEVELS` for the server. Libraries log only warnings and errors, because
            database messages would list values.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(LOGGER).setLevel(level.upper())
