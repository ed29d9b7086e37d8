"""The daemon is killed at random moments under five programs: `python3 tests/apps/kills --help`."""

import os
import sys

sys.dont_write_bytecode = True
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from life import Life  # noqa: E402
from run import main, parser  # noqa: E402

main("kills", parser("kills", "Kills the daemon at random moments under five programs.").parse_args(), Life)
