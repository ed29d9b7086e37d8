"""churn.py FILE: overwrites 4 MiB again and again, so that staging fills up and rounds run."""

import os
import sys

try:
    fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
    while True:
        for i in range(64):
            os.pwrite(fd, bytes([i]) * 65536, i * 65536)
        # With `-o writeback` it is only here that the death of the file system is noticed.
        os.fsync(fd)
except OSError:
    sys.exit(10)
