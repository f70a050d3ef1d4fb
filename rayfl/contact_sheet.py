"""``python -m rayfl.contact_sheet FILE``: another name of ``rayfl data sheet``."""

import sys

from rayfl.data_command import main

if __name__ == "__main__":
    sys.exit(main(["sheet", *sys.argv[1:]]))
