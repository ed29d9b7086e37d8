"""The power of a simulated disk is cut at random moments under five programs: `python3 tests/apps/cuts --help`."""

import os
import sys

sys.dont_write_bytecode = True
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
HERE = os.path.dirname(os.path.abspath(__file__))
# What it has in common with `kills` is there.
sys.path[:0] = [HERE, os.path.normpath(f"{HERE}/../kills")]
from cut import Cuts  # noqa: E402
from run import TOP, main, parser, program  # noqa: E402

p = parser("cuts", "Cuts the power of a simulated disk at random moments under five programs.")
p.add_argument("--disk", default=f"{TOP}/target/release/quayfs-disk", help="the simulated disk (benches/disk)")
options = p.parse_args()
options.disk = program(options.disk)
if os.getuid() != 0:
    sys.exit("cuts: loop devices need root")
main("cuts", options, Cuts)
