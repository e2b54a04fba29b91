"""Commands ``detcore serve``, ``ui``, ``user`` and ``database``."""
