"""Broken and hostile inputs for everything that reads: files, folders, requests. Run it with ``python -m fuzz``."""
