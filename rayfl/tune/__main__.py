"""``python -m rayfl.tune``."""

import sys

from rayfl.tune.command import main

if __name__ == "__main__":
    sys.exit(main())
