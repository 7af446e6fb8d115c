"""Exit codes of processes, described for people."""

import signal


def name_signal(code: int) -> str:
    """Return the name of the signal that ended a process with a negative exit code: `SIGSEGV`."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def describe_exit(code: int) -> str:
    """Describe how a process ended, as the end of a sentence that begins with it."""
    return f"ended with exit code {code}" if code >= 0 else f"was killed by {name_signal(code)}"
