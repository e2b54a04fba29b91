"""The page: what is in the records, for people, below ``/ui``.

Pages are made here, of templates and the drawings of `detcore.pages`; one script in them asks for
the same page again while something runs, and puts in what has changed.
"""

from detcore.server._page._routes import make_router

__all__ = ["make_router"]
