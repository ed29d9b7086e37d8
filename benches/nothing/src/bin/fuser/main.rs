//! The file system that does nothing behind `fuser`: the same tree, the same rules towards the kernel as far as
//! `fuser` has them, and its way to read requests and to send answers. Serves in the foreground until it is
//! unmounted.

mod service;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use fuser::{Config, MountOption, SessionACL};
use mimalloc::MiMalloc;
use quayfs_nothing::tree::Tree;
use quayfs_options::{MountOptions, OpenPolicy, parse_size};
use service::Nothing;

/// As the other one has it.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The file system that does nothing, behind the crate `fuser`.
#[derive(Debug, Parser)]
struct Args {
    /// Where to mount.
    target: PathBuf,
    /// Options of `quayfs mount`, of which `open` and `threads` mean something here.
    #[arg(short, long)]
    options: Vec<String>,
    /// Memory for files, touched at the start.
    #[arg(long, default_value = "1G")]
    ram: String,
    /// Let the threads share one descriptor.
    #[arg(long)]
    share: bool,
}

fn run(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let options: Vec<&str> = args.options.iter().map(String::as_str).collect();
    let options = MountOptions::parse(&options)?;
    let nothing = Nothing {
        tree: Tree::new(usize::try_from(parse_size(&args.ram)?)?),
        elide: options.open == OpenPolicy::Elide,
    };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("nothing".into()),
        MountOption::Subtype("fuser".into()),
        MountOption::DefaultPermissions,
    ];
    config.acl = SessionACL::All;
    config.n_threads = Some(options.threads.unwrap_or(1));
    config.clone_fd = !args.share;
    Ok(fuser::mount(nothing, &args.target, &config)?)
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("nothing-fuser: {e}");
            ExitCode::FAILURE
        }
    }
}
