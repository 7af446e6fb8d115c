"""`python -m byoc`: the command line.

Python puts the working directory in front of the import path for `-m`. The folder of a stranger's files
may hold modules and plug-ins of theirs, which are not to be found: the command `byoc` finds none either.
"""

import os
import sys

if sys.path[:1] == [os.getcwd()]:  # noqa: PTH109 - pathlib is a module that would be found there
    del sys.path[0]

from byoc.cli import main

main()
