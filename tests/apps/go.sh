#!/bin/sh
# go.sh [MODULE]: Go fetches and builds a program; then again with the daemon killed in the middle.
. "$(dirname "$0")/lib.sh"

module=${1:-github.com/junegunn/fzf}
command -v go >/dev/null || fail 'no go: install golang-go'
export GOPATH="$MNT/path" GOCACHE="$MNT/cache" GOTMPDIR="$MNT/tmp" GOBIN="$MNT/bin" GOFLAGS=-mod=mod
project=$MNT/project
build() { (cd "$project" && go build -o "$MNT/bin/" "$module"); }
works() {
    (cd "$project" && quietly go mod verify)
    "$MNT/bin/$(basename "$module")" --version >/dev/null || fail "$1: the program does not run"
    sum=$(sha256sum "$MNT/bin/$(basename "$module")" | cut -d ' ' -f 1)
    [ "${first:=$sum}" = "$sum" ] || fail "$1: another binary"
    say "$1: go mod verify, the same binary, which runs"
}

volume 512M 4G
mount_volume
mkdir "$project" "$MNT/tmp" "$MNT/bin"
start=$(date +%s)
cd "$project"
quietly go mod init test
quietly go get "$module"
cd /
quietly build
say "go get, go build: $(find "$MNT/path" "$MNT/cache" -type f | wc -l) files in $(($(date +%s) - start)) s"
works 'built'
unmount
fsck_clean
mount_volume
works 'after a remount'
for round in 1 2 3; do
    quietly go clean -cache
    interrupted "4.$round" build
    quietly build
    works "after kill -9, $round"
done
unmount
fsck_clean --data
say 'fsck clean'
