"""The HTTP API of the earlier system, as its own client asks for it.

What its client asks for and detcore has is answered from detcore's records; the rest is refused
with a message that says so.
"""

from detcore.server._determined._router import make_router

__all__ = ["make_router"]
