"""Routes of the client API (``/api/...``)."""
