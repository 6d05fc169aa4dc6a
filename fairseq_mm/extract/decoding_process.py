"""What every decoding process does first, so that it never outlives the run that began it."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from typing import Any


def process_context() -> Any:
    """How processes are begun: forked ones start at once; they touch neither torch nor a device."""
    return multiprocessing.get_context("fork" if sys.platform.startswith("linux") else "spawn")


def begin_worker() -> None:
    """Leaves Ctrl-C to the parent, and ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    """A killed parent cannot end its processes, which would wait for work for ever."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
