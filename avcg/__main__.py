"""``python -m avcg``."""

from avcg.cli import main

main()
