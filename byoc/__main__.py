"""`python -m byoc`: the command line."""

from byoc.cli import main

main()
