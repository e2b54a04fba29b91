"""Client side of the server's HTTP API; imports no HTTP library until it is used."""

from detcore._records import document_of
from detcore.remote._context import MOST_CONTEXT_BYTES, MOST_CONTEXT_ENTRIES, PackedContext, pack
from detcore.remote._credentials import (
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
from detcore.remote._deliver import send_spools
from detcore.remote._reads import (
    NUMBER,
    ServerRecords,
    spell_document,
    spell_metrics,
    unspell_document,
    unspell_metrics,
)
from detcore.remote._session import ServerAway, ServerRefused, Session
from detcore.remote._submit import HandIn, hand_in, read_events, read_outcome

__all__ = [
    "MOST_CONTEXT_BYTES",
    "MOST_CONTEXT_ENTRIES",
    "NUMBER",
    "HandIn",
    "KeptToken",
    "PackedContext",
    "ServerAway",
    "ServerRecords",
    "ServerRefused",
    "Session",
    "document_of",
    "find_credentials",
    "forget_token",
    "hand_in",
    "keep_token",
    "kept_token",
    "log_in_at",
    "normal_url",
    "open_session",
    "pack",
    "read_events",
    "read_outcome",
    "send_spools",
    "spell_document",
    "spell_metrics",
    "trusted_authorities",
    "unspell_document",
    "unspell_metrics",
]
