"""``python -m faverage`` is the command ``faverage``."""

from faverage.cli import main

if __name__ == "__main__":
    main()
