//! A simulated disk: a file system with one file, `disk`, which behaves like an SSD with a volatile write cache in
//! front of IMAGE. Behind a loop device with direct I/O it is a block device whose power can be cut, and which is as
//! slow as it is told to be.
//!
//! What is written is in the cache until an `fsync`, which is the disk's flush; SIGUSR1 cuts the power: of each sector
//! that no flush covers, one version that it had since then, or what it had before, is in IMAGE, and every request
//! fails. SIGTERM and SIGINT unmount, and what is in the cache reaches IMAGE when the last file is closed.
//!
//! Flushes are served one after the other. Requests that come meanwhile are served too, but Linux sends few: it lets no
//! write pass an `fsync` of the same file, and a loop device none of its flushes.

mod cache;
mod device;
mod service;

use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use clap::Parser;
use quayfs::mount::{Mount, Pending, Place, UnmountMode};
use quayfs_fuse::{Idle, Stats};
use quayfs_options::MountOptions;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use device::Device;
use service::Disk;

/// Threads that serve while others wait: as many as requests that Linux has under way.
const SPARE: usize = 64;

/// A simulated disk with a volatile write cache. SIGUSR1 cuts its power.
#[derive(Debug, Parser)]
struct Args {
    /// The content of the disk, a file that is there.
    image: PathBuf,
    /// Where to mount.
    target: PathBuf,
    /// How long a flush takes, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    flush_takes: u64,
    /// Most reads and writes a second; 0: as many as come.
    #[arg(long, value_name = "N", default_value_t = 0)]
    requests: u32,
    /// Decides what a power cut keeps.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
}

fn run(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let image = File::options().read(true).write(true).open(&args.image)?;
    let takes = Duration::from_millis(args.flush_takes);
    let device = Arc::new(Device::new(image, takes, args.requests, args.seed)?);
    let mut options = MountOptions::parse(&["transport=dev"])?;
    options.subtype = Some("disk".into());
    let place = Place::find(&args.target.canonicalize()?)?;
    let (pending, connection) = Pending::new(&args.image, place, &options)?;
    let pending = Mutex::new(Some(pending));
    let mounted = Arc::new(OnceLock::<Mount>::new());
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1])?;
    let (disk, mount) = (Arc::clone(&device), Arc::clone(&mounted));
    thread::spawn(move || {
        for signal in signals.forever() {
            if signal != SIGUSR1 {
                if let Some(Err(e)) = mount.get().map(|m| m.detach(UnmountMode::Lazy)) {
                    eprintln!("disk: {e}");
                }
            } else if let Some(cut) = disk.cut() {
                let (kept, pending) = (cut.kept, cut.pending);
                println!("cut: {kept} of {pending} sectors that were not flushed were kept");
            }
        }
    });
    let mut how = quayfs_server::session::how(&options);
    how.spare = SPARE;
    // A device keeps no CPU awake.
    how.idle = Idle::Halt;
    let disk = Disk {
        device: &device,
        started: Box::new(move || {
            let Some(pending) = pending.lock().ok().and_then(|mut p| p.take()) else {
                return;
            };
            match pending.finish() {
                Ok(mount) => drop(mounted.set(mount)),
                Err(e) => {
                    eprintln!("disk: {e}");
                    std::process::exit(1);
                }
            }
            println!("ready");
        }),
    };
    quayfs_fuse::serve(&disk, connection, &how, &Stats::default(), None)?;
    device.end();
    Ok(())
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("disk: {e}");
            ExitCode::FAILURE
        }
    }
}
