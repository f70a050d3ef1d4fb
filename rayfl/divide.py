"""``python -m rayfl.divide FILE``: another name of ``rayfl data divide``."""

import sys

from rayfl.data_command import main

if __name__ == "__main__":
    sys.exit(main(["divide", *sys.argv[1:]]))
