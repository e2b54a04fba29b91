"""``python -m detcore`` is the `detcore` command."""

from detcore.cli import main

if __name__ == "__main__":
    main()
