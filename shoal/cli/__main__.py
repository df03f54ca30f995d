"""`python -m shoal.cli`, for when the entry point is not on PATH."""

from shoal.cli import main

main()
