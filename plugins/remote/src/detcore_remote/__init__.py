"""Client side of the server's HTTP API; imports no HTTP library until it is used."""

from detcore_remote._context import (
    MOST_CONTEXT_BYTES,
    MOST_CONTEXT_ENTRIES,
    PackedContext,
    pack,
)
from detcore_remote._credentials import (
    KeptToken,
    find_credentials,
    forget_token,
    keep_token,
    kept_token,
    log_in_at,
    normal_url,
    open_session,
    trusted_authorities,
)
from detcore_remote._documents import (
    NUMBER,
    spell_document,
    spell_metrics,
    unspell_document,
    unspell_metrics,
)
from detcore_remote._session import ServerAway, ServerRefused, Session
from detcore_remote._spools import send_spools
from detcore_remote._submit import Detached, HandIn, follow, hand_in, read_events
from detcore_remote._transport import HttpTransport, ServerRecords, connect

__version__ = "0.1.0"

__all__ = [
    "MOST_CONTEXT_BYTES",
    "MOST_CONTEXT_ENTRIES",
    "NUMBER",
    "Detached",
    "HandIn",
    "HttpTransport",
    "KeptToken",
    "PackedContext",
    "ServerAway",
    "ServerRecords",
    "ServerRefused",
    "Session",
    "__version__",
    "connect",
    "find_credentials",
    "follow",
    "forget_token",
    "hand_in",
    "keep_token",
    "kept_token",
    "log_in_at",
    "normal_url",
    "open_session",
    "pack",
    "read_events",
    "send_spools",
    "spell_document",
    "spell_metrics",
    "trusted_authorities",
    "unspell_document",
    "unspell_metrics",
]
