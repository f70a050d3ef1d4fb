"""The one exception that is meant for people."""


class UserError(Exception):
    """Something the user can put right: a bad setting, missing or damaged data, an impossible request.

    The message says what is wrong and what to do. The command lines print it without a traceback and exit
    with code 2.
    """
