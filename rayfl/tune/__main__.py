"""``python -m rayfl.tune``."""

import sys

from rayfl.commands.tune import main

if __name__ == "__main__":
    sys.exit(main())
