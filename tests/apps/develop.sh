#!/bin/sh
# develop.sh: git and cargo on this project, inside the mount; then with the daemon killed in the middle.
. "$(dirname "$0")/lib.sh"

volume 1G 8G
mount_volume
cd "$MNT"
mkdir tree
(cd "$HERE/../.." && git archive HEAD) | tar -x -C tree
cd tree
git init -q . && git add -A
git -c user.name=t -c user.email=t@example.org commit -qm all
git gc -q --aggressive --prune=now
git fsck --full --strict 2>&1 | grep -v '^notice' | grep . && fail 'git fsck found something'
[ -z "$(git status --porcelain)" ] || fail 'git status is not clean'
say "git: $(git ls-files | wc -l) files added, committed, packed, checked"
build() { cd "$MNT/tree" && CARGO_TARGET_DIR=$MNT/target cargo build -q; }
start=$(date +%s)
build
"$MNT/target/debug/quayfs" --version >/dev/null
say "cargo build: done in $(($(date +%s) - start)) s, the binary runs"
cd /
unmount
fsck_clean --data
mount_volume
"$MNT/target/debug/quayfs" --version >/dev/null
(cd "$MNT/tree" && git fsck --full --strict >/dev/null 2>&1) || fail 'git fsck after a remount'
for round in 1 2 3; do
    rm -rf "$MNT/target"
    interrupted "$((5 * round))" build
    (build) || fail "cargo build after kill -9, $round"
    "$MNT/target/debug/quayfs" --version >/dev/null
    (cd "$MNT/tree" && git fsck --full --strict >/dev/null 2>&1) || fail "git fsck after kill -9, $round"
    say "after kill -9, $round: cargo build goes on, the binary runs, git fsck clean"
done
unmount
fsck_clean --data
say 'fsck clean'
