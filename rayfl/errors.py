"""The one exception that is meant for people, and how command lines tell of it."""

import signal
import sys
from collections.abc import Callable


class UserError(Exception):
    """Something the user can put right: a bad setting, missing or damaged data, an impossible request.

    The message says what is wrong and what to do. The command lines print it without a traceback and exit
    with code 2.
    """


def exit_code(command: Callable[[], int | None]) -> int:
    """Run a command; tell what is wrong in one line on standard error.

    Returns:
        What the command returns (None is 0), 2 after an error of the user's, 130 after Ctrl-C.
    """
    try:
        return command() or 0
    except UserError as error:
        print(f"rayfl: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("rayfl: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
