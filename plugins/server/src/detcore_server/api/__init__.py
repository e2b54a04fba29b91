"""The routes of the client, ``/api/...``: each a function that answers with a document."""
