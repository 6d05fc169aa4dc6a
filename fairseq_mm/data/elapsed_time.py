"""Shows on a terminal that a computation without a progress bar is still running."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Callable

# seconds before the line appears, and between two updates of the line
DELAY = 2.0
INTERVAL = 1.0


@contextlib.contextmanager
def elapsed_time(work: str) -> Iterator[Callable[[str], None]]:
    """Show ``work`` and the elapsed time on stderr while the context runs.

    The line appears after two seconds, and is removed at the end. Nothing is shown if stderr is no
    terminal. A thread writes the line, so the context must not fork processes.

    Yields:
        Function that replaces ``work`` by the name of the next part of the computation.
    """
    names = [work]  # the last one is shown
    if sys.stderr is None or not sys.stderr.isatty():
        yield names.append
        return
    is_over = threading.Event()

    def show() -> None:
        from tqdm.auto import tqdm

        if is_over.wait(DELAY):
            return
        # with a delay, tqdm shows nothing before the time is right
        with tqdm(desc=names[-1], bar_format="{desc}: {elapsed}", leave=False, delay=1e-9) as line:
            line.start_t -= DELAY
            line.refresh()
            while not is_over.wait(INTERVAL):
                line.set_description_str(names[-1])

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield names.append
    finally:
        is_over.set()
        thread.join()
