"""build.py ARCHIVE DIR [PACKAGE...]: a source tree is unpacked and built on the mount, as the archive has it and as
`cargo` wants it. Without packages the program is built."""

import os
import subprocess
import sys

archive, tree, *packages = sys.argv[1:]


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.returncode}: {done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout


os.mkdir(tree)
run("tar", "-xf", archive, "-C", tree)
run("tar", "--compare", "-f", archive, "-C", tree)
what = [word for package in packages for word in ("-p", package)] or ["--bin", "quayfs"]
os.environ["CARGO_TARGET_DIR"] = f"{tree}/target"
cargo = ["cargo", "build", "--quiet", "--offline", "--locked", "--manifest-path", f"{tree}/Cargo.toml", *what]
run(*cargo)
# What was built is there, and nothing is left to do.
again = run(*cargo, "--message-format", "json")
artifacts = again.count('"reason":"compiler-artifact"')
if not artifacts or '"fresh":false' in again:
    sys.exit(f"what was built is built again: {again[-2000:]}")
run("tar", "--compare", "-f", archive, "-C", tree)
print(artifacts + len(run("tar", "-tf", archive).splitlines()), flush=True)
