//! The program `quayfs`; under the names `mount.quayfs` and `umount.quayfs` also the helper of
//! mount(8) and umount(8).

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(quayfs::cli::run(std::env::args_os()))
}
