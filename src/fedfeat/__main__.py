"""``python -m fedfeat``."""

from fedfeat.cli import main

main()
