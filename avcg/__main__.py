"""``python -m avcg``."""

from avcg.cli.main import main

main()
