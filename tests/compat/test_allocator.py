import os
import subprocess
import sys

import pytest

from fairseq_mm.compat import allocator

# allocates and frees the same block again and again, and prints the pages that the kernel cleared;
# the module runs without its package, whose imports take seconds
PROGRAM = f"""
import resource
import runpy

keep_freed_memory = runpy.run_path({allocator.__file__!r})["keep_freed_memory"]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

print(keep_freed_memory())
for times in (1, 20):
    before = faults()
    for _ in range(times):
        b"1" * 2**26
    print(faults() - before)
"""


needs_glibc = pytest.mark.skipif(
    not (sys.platform == "linux" and os.confstr("CS_GNU_LIBC_VERSION")), reason="glibc is missing"
)


def run_python(program, **variables):
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MALLOC_") and name != "GLIBC_TUNABLES"
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def run_program(**variables):
    is_set, once, repeated = run_python(PROGRAM, **variables)
    return is_set == "True", int(once), int(repeated)


@needs_glibc
def test_freed_memory_is_used_again():
    is_set, once, repeated = run_program()
    assert is_set
    assert once > 0
    # without the setting, each of the 20 blocks costs as many pages as the first
    assert repeated < once / 10


# keeps a freed block, forks, and prints the MB that both processes have in memory
FORKING = f"""
import os
import runpy

runpy.run_path({allocator.__file__!r})["keep_freed_memory"]()

def resident():
    fields = dict(line.split(":") for line in open("/proc/self/status"))
    return int(fields["RssAnon"].split()[0]) // 1000

b"1" * 2**27
print(resident(), flush=True)
if os.fork() == 0:
    print(resident(), flush=True)
    os._exit(0)
os.wait()
print(resident())
"""


@needs_glibc
def test_a_forked_process_does_not_hold_freed_memory():
    before, child, parent = map(int, run_python(FORKING))
    assert before > 128
    assert child < before - 100
    assert parent < before - 100


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES"])
def test_the_users_own_setting_stays(name):
    is_set, once, repeated = run_program(**{name: "glibc.malloc.check=0" if "G" in name else "2"})
    assert not is_set
    # a block that is mapped goes back to the kernel at once
    assert repeated > 10 * once > 0 or name == "MALLOC_MMAP_MAX_"
