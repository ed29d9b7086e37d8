"""fsx.py PROGRAM FILE SEED lazy|followed UNTIL: fsx, again and again, until the file UNTIL is there."""

import os
import subprocess
import sys

program, file, seed, mode, until = sys.argv[1:]
OPERATIONS = 5000
CONFIGURATION = f"""flen = 1048576
nomsyncafterwrite = {"true" if mode == "lazy" else "false"}
[opsize]
min = 1
max = 65536
align = 1
[weights]
close_open = 1
invalidate = 1
mapread = 10
mapwrite = 10
read = 10
write = 10
truncate = 10
fsync = 1
fdatasync = 1
posix_fallocate = 5
punch_hole = 5
sendfile = 5
posix_fadvise = 2
copy_file_range = 5
"""
home = os.getcwd()
rules = os.path.join(home, os.path.basename(file) + ".toml")
with open(rules, "w") as f:
    f.write(CONFIGURATION)
done, seed = 0, int(seed)
while not os.path.exists(until):
    words = [program, "-f", rules, "-S", str(seed), "-N", str(OPERATIONS), "-q", "-P", home, file]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    if run.returncode or "A-OK" not in run.stdout:
        sys.exit(f"fsx, seed {seed}, ends with {run.returncode}: {(run.stdout + run.stderr)[-1500:]}")
    done, seed = done + OPERATIONS, seed + 1000
print(done, flush=True)
