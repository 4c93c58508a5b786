"""The one exception that bad input raises."""


class InputError(ValueError):
    """Bad input from outside; the message is one sentence naming field, value and what is allowed.

    Outer layers turn it into exit code 2 (command line) or a 4xx answer (HTTP).
    """
