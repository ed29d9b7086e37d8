//! `quayfs-bench papers`: the papers' mechanisms on and off, side by side.
//!
//! Each cell makes a fresh volume for each run; variants take turns, so that ratios are of neighbours.

mod experiments;
mod free_writes;
mod kernel;
mod mounted;
pub mod page;
mod recovery;
pub mod report;
mod table;
mod together;
mod volume;

use quayfs_options::MountOptions;

use self::experiments::ALL;
use self::kernel::{Ext4, Loop};
use self::mounted::Program;
use self::report::{Cell, ExperimentReport, FORMAT, Papers, Where};
use self::table::{Experiment, Place, Row, Variant, Writes};
use self::volume::{Scratch, Site, Work};
use crate::args::{Level, Papers as Args};
use crate::commands::{failure, until_signalled};
use crate::library::data_alone::DataAlone;
use crate::library::nothing::Nothing;
use crate::{FAILED, USAGE, warn};
use quayfs_bench::machine::Machine;
use quayfs_bench::progress::Progress;
use quayfs_bench::target::Target;
use quayfs_bench::workload::{self, Params, Wishes, Workload};
use quayfs_bench::{Error, Result, commit};
use quayfs_shown::command::{Failure, say};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where regions go unless another place is given.
const SHM: &str = "/dev/shm";

/// Runs what the arguments choose, shows and stores it.
pub fn run(args: Args) -> std::result::Result<(), Failure> {
    let plan = Plan::new(args)?;
    let stop = until_signalled()?;
    let began = SystemTime::now().duration_since(UNIX_EPOCH);
    let site = &plan.site;
    let mut found = Papers {
        papers_format: FORMAT,
        version: env!("CARGO_PKG_VERSION").into(),
        commit: plan.args.commit.clone().or_else(commit),
        command: std::env::args().collect(),
        began: began.map_or(0, |d| d.as_secs()),
        machine: Machine::this(),
        data: describe(site.data.path(), site.data_size).map_err(failure)?,
        pmem: describe(site.pmem.path(), site.pmem_size).map_err(failure)?,
        experiments: Vec::new(),
        failure: None,
    };
    if found.data.fstype == "tmpfs" {
        warn("--data is in memory: what goes to the device costs nothing here");
    }
    let failed = plan.all(&stop, &mut found.experiments).err();
    found.failure = failed.as_ref().map(ToString::to_string);
    say(found.render().trim_end());
    if let Some(json) = &plan.args.json {
        store(json, &found)?;
    }
    failed.map_or(Ok(()), |e| Err(failure(e)))
}

fn store(json: &Path, found: &Papers) -> std::result::Result<(), Failure> {
    let text = serde_json::to_string_pretty(found).map_err(Failure::with(FAILED))?;
    std::fs::write(json, text + "\n")
        .map_err(|e| Failure::new(FAILED, format!("{}: {e}", json.display())))
}

fn describe(path: &Path, bytes: u64) -> Result<Where> {
    let facts = Target::new("", path)?.facts();
    Ok(Where {
        path: facts.path,
        fstype: facts.fstype,
        source: facts.source,
        bytes,
    })
}

struct Plan {
    args: Args,
    experiments: Vec<&'static Experiment>,
    site: Site,
}

/// Something that is run.
struct Planned<'a> {
    row: &'a Row,
    variants: Vec<&'a Variant>,
    workload: Box<dyn Workload>,
    params: Params,
    mounted: bool,
}

impl Plan {
    fn new(args: Args) -> std::result::Result<Self, Failure> {
        let usage = |text: String| Failure::new(USAGE, text);
        let mut experiments: Vec<&'static Experiment> = Vec::new();
        for name in &args.experiments {
            let matching = ALL.iter().filter(|e| name == "all" || e.name == name);
            let before = experiments.len();
            experiments.extend(matching);
            if experiments.len() == before {
                let names: Vec<_> = ALL.iter().map(|e| e.name).collect();
                let names = names.join(", ");
                return Err(usage(format!("no experiment is called `{name}`: {names}")));
            }
        }
        if experiments.is_empty() {
            experiments.extend(ALL);
        }
        let mut rows = experiments.iter().flat_map(|e| e.rows);
        if !rows.any(|r| is_chosen(&args.workloads, r.workload) && !chosen(&args, r).is_empty()) {
            let why = "no row of these experiments has such a workload and variant";
            return Err(usage(why.into()));
        }
        if args.repeat == 0 {
            return Err(usage("--repeat takes a positive number".into()));
        }
        MountOptions::parse(&[args.options.as_deref().unwrap_or_default()])
            .map_err(|e| usage(format!("--options: {e}")))?;
        if let Some(json) = &args.json {
            // Better now than after an hour.
            std::fs::File::create(json)
                .map_err(|e| Failure::new(FAILED, format!("{}: {e}", json.display())))?;
        }
        let loops = |r: &Row| r.on_loops && is_chosen(&args.workloads, r.workload);
        let mut rows = experiments.iter().flat_map(|e| e.rows);
        if args.level != Level::Ops && rows.any(loops) && !rustix::process::geteuid().is_root() {
            warn("rows beside ext4 are left out: they need root, for loop devices and mount(8)");
        }
        let quayfs = Program::find(args.quayfs.clone());
        if args.level != Level::Ops {
            quayfs.check()?;
        }
        let data = args.data.clone().unwrap_or_else(std::env::temp_dir);
        let shm = PathBuf::from(SHM);
        let pmem = args.pmem.clone();
        let pmem = pmem.unwrap_or_else(|| if shm.is_dir() { shm } else { data.clone() });
        let mounts = args.dir.clone().unwrap_or_else(std::env::temp_dir);
        let site = Site {
            data: Scratch::below(&data, "data").map_err(failure)?,
            pmem: Scratch::below(&pmem, "pmem").map_err(failure)?,
            mounts: Scratch::below(&mounts, "mounts").map_err(failure)?,
            quayfs,
            pmem_size: args.pmem_size,
            data_size: args.data_size,
            written: OnceLock::new(),
        };
        Ok(Self {
            args,
            experiments,
            site,
        })
    }

    fn levels(&self) -> &'static [bool] {
        match self.args.level {
            Level::Ops => &[false],
            Level::Mount => &[true],
            Level::Both => &[false, true],
        }
    }

    /// The cells of an experiment, in their order.
    fn planned<'a>(&self, e: &'a Experiment) -> Result<Vec<Planned<'a>>> {
        let mut all = Vec::new();
        let args = &self.args;
        for &mounted in self.levels() {
            for row in e.rows {
                let mut variants = chosen(args, row);
                // The kernel mounts what there is.
                variants.retain(|v| !mounted || v.is_real());
                if row.on_loops && !(mounted && rustix::process::geteuid().is_root()) {
                    continue;
                }
                if !is_chosen(&args.workloads, row.workload) || variants.is_empty() {
                    continue;
                }
                let chosen = |n: &&u32| args.threads.is_empty() || args.threads.contains(n);
                let mut threads: Vec<u32> = row.threads.iter().filter(chosen).copied().collect();
                if threads.is_empty() && row.threads.len() == 1 {
                    // Those that do not scale are run all the same.
                    threads.extend(row.threads);
                }
                for threads in threads {
                    let workload = workload::select(&[row.workload.into()])?.remove(0);
                    let wishes = Wishes {
                        threads: Some(threads),
                        seconds: Some(match args.ops {
                            Some(_) => args.seconds,
                            None => args.seconds.max(row.least_seconds),
                        }),
                        warmup: Some(args.warmup),
                        ops: args.ops,
                        file_bytes: args.file_size.or(row.file_bytes),
                        files: args.files.or(row.files),
                        seed: args.seed,
                    };
                    let params = Params::new(workload.info(), &wishes)?;
                    all.push(Planned {
                        row,
                        variants: variants.clone(),
                        workload,
                        params,
                        mounted,
                    });
                }
            }
        }
        Ok(all)
    }

    fn all(&self, stop: &AtomicBool, found: &mut Vec<ExperimentReport>) -> Result<()> {
        let mut planned = Vec::new();
        for e in &self.experiments {
            planned.push((*e, self.planned(e)?));
        }
        let repeat = u64::from(self.args.repeat);
        let runs = planned.iter().flat_map(|(_, cells)| cells);
        let runs: u64 = runs.map(|p| p.variants.len() as u64 * repeat).sum();
        let progress = Progress::new(runs);
        for (e, cells) in planned {
            let mut report = ExperimentReport::new(e);
            let result = self.one(e, &cells, stop, &progress, &mut report);
            found.push(report);
            result?;
        }
        Ok(())
    }

    fn one(
        &self,
        e: &Experiment,
        cells: &[Planned<'_>],
        stop: &AtomicBool,
        progress: &Progress,
        report: &mut ExperimentReport,
    ) -> Result<()> {
        for planned in cells {
            let mut cell = self.cell(planned);
            let result = self.fill(e, planned, stop, progress, &mut cell);
            cell.summarize(planned.row);
            if cell.workload.targets.iter().any(|t| !t.samples.is_empty()) {
                report.cells.push(cell);
            }
            result?;
        }
        let whole = self.args.workloads.is_empty() && self.args.variants.is_empty();
        if e.recovery && whole && self.levels().contains(&false) {
            progress.say(format!("{}: recovery", e.name));
            let sizes = recovery::Sizes {
                files: self.args.recovery_files.clone(),
                data: self.args.recovery_data.clone(),
            };
            let repeat = self.args.repeat;
            recovery::measure(&self.site, &sizes, repeat, stop, &mut report.recovery)?;
        }
        Ok(())
    }

    /// Options of all variants: those of the row, then those of the command line.
    fn options(&self, row: &Row) -> String {
        let more = self.args.options.as_deref().unwrap_or_default();
        join(row.options, more)
    }

    fn cell(&self, planned: &Planned<'_>) -> Cell {
        let row = planned.row;
        let level = match planned.mounted {
            true => Level::Mount,
            false => Level::Ops,
        };
        let level = (level, row.page_cache);
        let what = (&*planned.workload, &planned.params);
        let variants = &planned.variants;
        Cell::new(
            level,
            variants,
            self.options(row),
            what,
            self.site.pmem_size,
        )
    }

    fn fill(
        &self,
        e: &Experiment,
        planned: &Planned<'_>,
        stop: &AtomicBool,
        progress: &Progress,
        cell: &mut Cell,
    ) -> Result<()> {
        let repeat = self.args.repeat;
        for repetition in 0..repeat {
            let targets = &mut cell.workload.targets;
            for (&variant, target) in planned.variants.iter().zip(targets) {
                let (name, threads) = (planned.row.workload, planned.params.threads);
                let now = repetition + 1;
                let (e, v) = (e.name, variant.name);
                progress.say(format!("{e}: {name} ({threads}) on {v} ({now}/{repeat})"));
                let sample = self.run(planned, variant, stop);
                let mut sample = sample.map_err(|e| match stop.load(Ordering::Relaxed) {
                    true => Error::Stopped,
                    false => e,
                })?;
                sample.repetition = repetition;
                target.samples.push(sample);
                progress.advance();
            }
        }
        Ok(())
    }

    fn run(
        &self,
        planned: &Planned<'_>,
        variant: &Variant,
        stop: &AtomicBool,
    ) -> Result<quayfs_bench::report::Sample> {
        let work = Work {
            workload: &*planned.workload,
            params: &planned.params,
            stop,
            one_byte: (planned.variants.iter()).any(|v| v.writes != Writes::Real),
            page_cache: planned.row.page_cache,
        };
        if variant.place == Place::Nowhere {
            return volume::run_on_library(&work, &Nothing::default());
        }
        if let Place::Ext4(journal) = variant.place {
            return Ext4::mount(&self.site, journal, variant.options)?.run(&work);
        }
        let options = join(&self.options(planned.row), variant.options);
        let device: Option<Loop> = match planned.row.on_loops {
            true => Some(self.site.on_loop()?),
            false => None,
        };
        let fresh = self.site.fresh(variant, device.as_ref())?;
        if variant.place == Place::DataAlone {
            return volume::run_on_library(&work, &DataAlone::on(fresh.device()?));
        }
        if planned.mounted {
            fresh.run_on_mount(&work, &options, &self.site)
        } else {
            fresh.run_on_ops(&work, &options)
        }
    }
}

/// Whether a name is among those that were asked for; all are if none was.
fn is_chosen(names: &[String], name: &str) -> bool {
    names.is_empty() || names.iter().any(|n| n == name)
}

/// The variants of a row that were asked for.
fn chosen<'a>(args: &Args, row: &'a Row) -> Vec<&'a Variant> {
    let is_chosen = |v: &&Variant| is_chosen(&args.variants, v.name);
    row.variants.iter().filter(is_chosen).collect()
}

/// Two lists of options as one.
fn join(a: &str, b: &str) -> String {
    let lists: Vec<&str> = [a, b].into_iter().filter(|o| !o.is_empty()).collect();
    lists.join(",")
}
