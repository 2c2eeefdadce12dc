"""A wall clock of one process that can be set: a library that is loaded before libc's own.

libfaketime changes how long threads wait, which a clock that is set does not.
"""

import os
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
static long shift(void) {
    static volatile long *seconds;
    if (!seconds) {
        int file = open(getenv("SHIFTED_CLOCK"), O_RDONLY);
        seconds = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    }
    return *seconds;
}
int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, now);
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) now->tv_sec += shift();
    return result;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    int result = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return result;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"""


@dataclass
class ShiftedClock:
    file: Path
    library: Path

    @classmethod
    def build(cls, folder: Path) -> "ShiftedClock":
        """Skips where there is no compiler."""
        if shutil.which("cc") is None:
            pytest.skip("no C compiler on this machine")
        library = folder / "clock.so"
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), "-x", "c", "-", "-ldl"]
        subprocess.run(command, input=_SOURCE, text=True, check=True, timeout=60)
        clock = cls(folder / "clock", library)
        clock.set(0)
        return clock

    def set(self, seconds: int) -> None:
        """So many seconds ahead of the machine's clock; below 0: behind it."""
        if not self.file.exists():
            self.file.write_bytes(bytes(8))
        with self.file.open("r+b") as file:
            file.write(struct.pack("@l", seconds))

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "LD_PRELOAD": str(self.library), "SHIFTED_CLOCK": str(self.file)}
