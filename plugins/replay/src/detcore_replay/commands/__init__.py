"""The commands ``detcore replay``, ``diverge`` and ``data``, and their output."""
