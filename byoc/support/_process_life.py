"""Processes that end with the one that started them."""

import os
import select
import signal
from threading import Thread


def end_with_parent(life: int) -> None:
    """Have this process group killed as soon as the other end of a pipe, a descriptor, is closed.

    Linux does so even while code keeps the interpreter busy (fcntl(2), F_SETSIG). The workers of
    codegens have the same function of their own, since they import nothing of byoc.
    """
    import fcntl  # noqa: PLC0415 - not on Windows

    if not hasattr(fcntl, "F_SETSIG"):
        Thread(target=_await_end, args=(life,), daemon=True).start()
        return
    fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgid(0))
    fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([life], [], [], 0)[0]:  # it was closed meanwhile
        os.killpg(0, signal.SIGKILL)


def _await_end(life: int) -> None:
    os.read(life, 1)
    os.killpg(0, signal.SIGKILL)
