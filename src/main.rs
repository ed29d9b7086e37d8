//! The program `quayfs`; under the names `mount.quayfs`, `umount.quayfs`, `fsck.quayfs` and `mkfs.quayfs` also the helper
//! of mount(8), umount(8), fsck(8) and mkfs(8).

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// Operations allocate page copies that the digest thread frees: with the C library's allocator that took
/// most of the time of a create.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    ExitCode::from(quayfs::cli::run(std::env::args_os()))
}
