"""``python -m flfw``: the command ``flfw``."""

import sys

from flfw.command.program import main

if __name__ == "__main__":
    sys.exit(main())
