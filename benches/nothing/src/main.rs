//! A file system that does nothing, to measure the server by: the protocol, options, transports and
//! rules towards the kernel of QuayFS, with hash maps behind them. Payloads are copied to and from
//! memory; nothing is durable. With `--device` each fsync writes one block there and flushes, which is the least that a
//! durable one can do; calls at one time share the write and the flush. Serves in the foreground until it is unmounted
//! or gets SIGTERM.

mod bound;
mod service;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use bound::Bound;
use clap::Parser;
use mimalloc::MiMalloc;
use quayfs::mount::{Mount, Pending, Place, UnmountMode};
use quayfs_fuse::Stats;
use quayfs_nothing::tree::Tree;
use quayfs_options::{MountOptions, parse_size};
use service::Nothing;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// As the real thing has it.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// A file system in memory that does nothing, to measure others by.
#[derive(Debug, Parser)]
struct Args {
    /// Where to mount.
    target: PathBuf,
    /// Options of `quayfs mount`; those about media are ignored.
    #[arg(short, long)]
    options: Vec<String>,
    /// Memory for files, touched at the start.
    #[arg(long, default_value = "1G")]
    ram: String,
    /// Bind the threads that read /dev/fuse to CPUs, in turn.
    #[arg(long)]
    pin: bool,
    /// Let those threads share one descriptor.
    #[arg(long)]
    share: bool,
    /// How long those threads look for a request before they sleep, in microseconds.
    #[arg(long, default_value_t = 0)]
    poll: u64,
    /// Requests under way in the ring of a CPU.
    #[arg(long)]
    depth: Option<usize>,
    /// A device or file, which fsyncs write a block each to, and flush; those at one time together. Its content is
    /// lost.
    #[arg(long)]
    device: Option<PathBuf>,
}

fn run(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let mut options =
        MountOptions::parse(&args.options.iter().map(String::as_str).collect::<Vec<_>>())?;
    options.subtype = Some("nothing".into());
    let target = args.target.canonicalize()?;
    let bound = args.device.as_deref().map(Bound::open).transpose()?;
    let tree = Tree::new(usize::try_from(parse_size(&args.ram)?)?);
    let place = Place::find(&target)?;
    let (pending, device) = Pending::new("nothing".as_ref(), place, &options)?;
    let read_ahead = options.read_ahead;
    let pending = Mutex::new(Some(pending));
    let mounted = Arc::new(OnceLock::<Mount>::new());
    let mount = Arc::clone(&mounted);
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    thread::spawn(move || {
        for _ in signals.forever() {
            if let Some(Err(e)) = mount.get().map(|m| m.detach(UnmountMode::Lazy)) {
                eprintln!("{e}");
            }
        }
    });
    let stats = Arc::new(Stats::default());
    let mut how = quayfs_server::session::how(&options);
    how.pin = args.pin;
    how.clone = !args.share;
    how.poll = Duration::from_micros(args.poll);
    how.depth = args.depth.unwrap_or(how.depth);
    let nothing = Nothing {
        tree,
        options,
        bound,
        stats: Arc::clone(&stats),
        started: Box::new(move || {
            let Some(pending) = pending.lock().ok().and_then(|mut p| p.take()) else {
                return;
            };
            if let Err(e) = pending.read_ahead(read_ahead) {
                eprintln!("nothing: read_ahead= has no effect: {e}");
            }
            match pending.finish() {
                Ok(mount) => drop(mounted.set(mount)),
                Err(e) => {
                    eprintln!("nothing: {e}");
                    std::process::exit(1);
                }
            }
            println!("ready");
        }),
    };
    Ok(quayfs_fuse::serve(&nothing, device, &how, &stats, None)?)
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("nothing: {e}");
            ExitCode::FAILURE
        }
    }
}
