"""``python -m rayfl.table``, which ``rayfl table`` is, too."""

import sys

from rayfl.commands.table import main

if __name__ == "__main__":
    sys.exit(main())
