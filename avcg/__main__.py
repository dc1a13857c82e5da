"""Run the command line with ``python -m avcg``."""

from avcg.cli.main import main

main()
