"""The log of a server on stderr, which never shows a token, a password, or its hash."""

from __future__ import annotations

import logging
import re

LOGGER = "detcore.server"
LOG_LEVELS = ("debug", "info", "warning", "error")
# A safety net: no code logs these on purpose, but an error's text may quote anything.
_SECRETS = re.compile(
    r"(?P<kept>detcore_)[A-Za-z0-9_-]{20,}"
    r"|(?P<scheme>\b(?:bearer|basic)\s+)[^\s'\"]+"
    r"|\$argon2[^\s'\"]+"
    r"|\b[0-9a-f]{128}\b",
    re.IGNORECASE,
)


def hide_secrets(text: str) -> str:
    """Return a text with ``***`` in place of anything like a token or the hash of a password.

    Example::

        >>> hide_secrets("authorization: Bearer abc")
        'authorization: Bearer ***'
    """
    return _SECRETS.sub(lambda found: f"{found['kept'] or found['scheme'] or ''}***", text)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return hide_secrets(super().format(record))


def configure_logging(level: str) -> None:
    """Let this process log to stderr.

    Args:
        level: One of `LOG_LEVELS`, for the server itself; libraries log from warnings on, since
            the messages of the database's library would list values.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(LOGGER).setLevel(level.upper())
