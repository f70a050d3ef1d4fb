"""``python -m rayfl.run``, which ``rayfl run`` is, too."""

import sys

from rayfl.commands.run import main

if __name__ == "__main__":
    sys.exit(main())
