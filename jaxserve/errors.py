"""The one exception that bad input raises, and the warning of input that is not used as it is."""


class InputError(ValueError):
    """Bad input from outside; the message is one sentence naming field, value and what is allowed.

    Outer layers turn it into exit code 2 (command line) or a 4xx answer (HTTP).
    """


class InputWarning(UserWarning):
    """Input is not used as it is; the message is one sentence. The command line prints it."""
