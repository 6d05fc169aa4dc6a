"""Makes glibc's allocator keep freed memory in processes that compute on a CPU.

By default, glibc returns large blocks of memory to the kernel as soon as they are freed. PyTorch
frees and allocates large tensors of the same sizes in every batch, so that the kernel clears their
pages each time. This takes a third of the time of extracting image features.

Before a process forks, freed memory goes back to the kernel. A forked data worker would otherwise
hold it, too: as soon as the training uses these pages again, the kernel copies them for the worker.
"""

import contextlib
import ctypes
import functools
import os
from typing import Optional

# numbers of mallopt(3)
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_freed_memory() -> bool:
    """Let this process and its forks keep freed memory for new tensors; before a fork, free memory
    is returned to the kernel. Return False, and change nothing, unless the C library is glibc
    without settings by environment variables (``MALLOC_...``, ``GLIBC_TUNABLES``)."""
    glibc = _load_glibc()
    is_configured = any(x.startswith("MALLOC_") or x == "GLIBC_TUNABLES" for x in os.environ)
    if glibc is None or is_configured:
        return False
    # mallopt takes an int: -1 becomes the largest size, and a number of bytes that does not fit,
    # such as 2**34, becomes 0, with which every free gives memory back
    if not (glibc.mallopt(_M_MMAP_MAX, 0) and glibc.mallopt(_M_TRIM_THRESHOLD, -1)):
        return False
    os.register_at_fork(before=release_freed_memory)
    return True


def release_freed_memory() -> None:
    """Return freed memory to the kernel, if the C library is glibc."""
    glibc = _load_glibc()
    if glibc is not None:
        glibc.malloc_trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error says that a device, or the machine, has too little memory."""
    parts = ("out of memory", "not enough memory", "can't allocate memory", "bad_alloc")
    text = str(error)
    # oneDNN says no more than this; the longer text of an operation that it lacks is another.
    is_said = text == "could not create a primitive" or any(part in text for part in parts)
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and is_said)


@functools.cache
def _load_glibc() -> Optional[ctypes.CDLL]:
    """Return the C library; None if it is not glibc."""
    with contextlib.suppress(OSError, ValueError):  # other systems know no such name
        if (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"):
            return ctypes.CDLL(None)
    return None
