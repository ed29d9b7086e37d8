#!/bin/sh
# npm.sh [PACKAGE...]: npm installs packages; then again with the daemon killed in the middle.
. "$(dirname "$0")/lib.sh"

[ $# -gt 0 ] || set -- typescript webpack webpack-cli eslint express
command -v npm >/dev/null || fail 'no npm: install nodejs and npm'
export npm_config_cache="$MNT/cache" npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false
project=$MNT/project
tree() { (cd "$project/node_modules" && find . -type f ! -name .package-lock.json -print0 | sort -z | xargs -0 sha256sum); }
works() {
    (cd "$project" && npm ls --all >/dev/null) || fail "$1: npm ls"
    (cd "$project" && npm cache verify >/dev/null) || fail "$1: npm cache verify"
    tree | cmp -s - "$WORK/tree" || fail "$1: the tree differs"
    say "$1: npm ls, npm cache verify, $(wc -l <"$WORK/tree") files as they were"
}

volume 512M 4G
mount_volume
mkdir "$project"
cd "$project"
npm init -y >/dev/null
start=$(date +%s)
quietly npm install "$@"
tree >"$WORK/tree"
say "npm install: $(wc -l <"$WORK/tree") files in $(($(date +%s) - start)) s"
cd /
unmount
fsck_clean
mount_volume
works 'after a remount'
again() { cd "$project" && npm ci --prefer-offline; }
for round in 1 2 3; do
    interrupted "1.$round" again
    quietly sh -c "cd '$project' && npm ci --prefer-offline"
    works "after kill -9 of npm ci, $round"
done
unmount
fsck_clean --data
say 'fsck clean'
