//! One run of a workload: its threads from their preparation to their tallies.
//!
//! All threads meet four times: when they are prepared; when the file system has settled and the
//! warm-up begins; when it has ended; when counters have been read and the measured time begins.
//! They sleep while they wait, so that on few CPUs no thread takes time from the others. A thread that
//! fails says so before the next meeting, and then all end there.

use crate::error::{Error, Result};
use crate::meter::{Latencies, Meter, Tally};
use crate::workload::{Flow, Job, Params, Place, Worker};
use rustix::thread::CpuSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What the runner does while the threads wait.
pub trait Between {
    /// All threads are prepared.
    ///
    /// # Errors
    /// The run fails.
    fn prepared(&mut self) -> Result<()>;

    /// All threads are warm.
    ///
    /// # Errors
    /// The run fails.
    fn warm(&mut self) -> Result<()>;
}

/// Why threads end early.
#[derive(Debug)]
struct Ends<'a> {
    /// Something in the run failed.
    failed: AtomicBool,
    /// The end was asked for from outside.
    stop: &'a AtomicBool,
}

impl Ends<'_> {
    fn now(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || self.stop.load(Ordering::Relaxed)
    }

    fn note<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        result
    }
}

/// Runs the threads of a job and returns what each has done.
///
/// # Errors
/// The first failure of a thread, or of `between`.
pub fn run(
    job: &dyn Job,
    place: &Place<'_>,
    steps: usize,
    pin: bool,
    stop: &AtomicBool,
    between: &mut dyn Between,
) -> Result<Vec<Tally>> {
    let threads = place.params.threads as usize;
    let meeting = &Barrier::new(threads + 1);
    let ends = &Ends {
        failed: AtomicBool::new(false),
        stop,
    };
    let cpus = if pin { allowed_cpus() } else { Vec::new() };
    let cpus = &cpus;
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    pin_to(cpus, thread);
                    one(job, place, thread, steps, meeting, ends)
                })
            })
            .collect();
        meeting.wait();
        let settled = if ends.now() {
            Ok(())
        } else {
            ends.note(between.prepared())
        };
        meeting.wait();
        meeting.wait();
        let warm = if ends.now() {
            Ok(())
        } else {
            ends.note(between.warm())
        };
        meeting.wait();
        let mut tallies = Vec::with_capacity(threads);
        let mut failure = settled.and(warm).err();
        for handle in handles {
            match handle.join() {
                Ok(Ok(tally)) => tallies.push(tally),
                // The one that failed first made the others stop.
                Ok(Err(e)) if matches!(failure, None | Some(Error::Stopped)) => failure = Some(e),
                Ok(Err(_)) => {}
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        match failure {
            Some(e) => Err(e),
            None => Ok(tallies),
        }
    })
}

fn one<'a>(
    job: &'a dyn Job,
    place: &'a Place<'a>,
    thread: usize,
    steps: usize,
    meeting: &Barrier,
    ends: &Ends<'_>,
) -> Result<Tally> {
    let params = place.params;
    let mut meter = Meter::new(steps);
    let made = caught(ends, || job.worker(place, thread));
    meeting.wait();
    meeting.wait();
    let warm = made.and_then(|made| {
        caught(ends, || {
            let mut worker = made?;
            if !ends.now() && !params.warmup().is_zero() {
                meter.restart();
                let end = meter.now() + params.warmup();
                work(&mut *worker, &mut meter, Some(end), u64::MAX, ends)?;
            }
            Ok(worker)
        })
    });
    meeting.wait();
    meeting.wait();
    let mut worker = warm.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    if ends.now() {
        return Err(Error::Stopped);
    }
    meter.restart();
    let end = params.duration().map(|d| meter.now() + d);
    let ops = params.ops.unwrap_or(u64::MAX);
    ends.note(work(&mut *worker, &mut meter, end, ops, ends))?;
    if ends.now() {
        return Err(Error::Stopped);
    }
    Ok(meter.finish())
}

/// Notes a failure. A panic is one too, and has to wait: without this thread the others would never
/// meet.
fn caught<T>(ends: &Ends<'_>, body: impl FnOnce() -> Result<T>) -> std::thread::Result<Result<T>> {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    if !matches!(result, Ok(Ok(_))) {
        ends.failed.store(true, Ordering::Relaxed);
    }
    result
}

/// The measured loop. The time is that of the meter, which has just looked.
fn work(
    worker: &mut dyn Worker,
    meter: &mut Meter,
    end: Option<Instant>,
    ops: u64,
    ends: &Ends<'_>,
) -> Result<()> {
    while meter.ops() < ops && end.is_none_or(|end| meter.now() < end) && !ends.now() {
        if worker.go(meter)? == Flow::Done {
            break;
        }
    }
    Ok(())
}

fn allowed_cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .collect()
}

/// Binds the calling thread to a CPU, in turn. Where that is refused it stays free.
fn pin_to(cpus: &[usize], thread: usize) {
    if !cpus.is_empty() {
        let mut set = CpuSet::new();
        set.set(cpus[thread % cpus.len()]);
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

/// What all threads have done together.
#[derive(Clone, Debug)]
pub struct Total {
    /// System calls, bytes, operations.
    pub sum: Tally,
    /// Operations of each thread.
    pub thread_ops: Vec<u64>,
    /// From the first begin to the last end, without what each thread excluded.
    pub seconds: f64,
    /// Operations per second.
    pub ops_per_s: f64,
}

/// Merges the tallies of at least one thread.
pub fn merge(tallies: Vec<Tally>, params: &Params) -> Option<Total> {
    let thread_ops: Vec<u64> = tallies.iter().map(|t| t.ops).collect();
    let busy = |t: &Tally| (t.ended - t.begun).saturating_sub(t.excluded);
    // Where time is excluded, threads exclude different amounts of it at different moments, so each
    // has a rate of its own.
    let rates: f64 = tallies
        .iter()
        .map(|t| t.ops as f64 / busy(t).as_secs_f64().max(1e-9))
        .sum();
    let longest = tallies.iter().map(busy).max()?;
    let excluded = tallies.iter().any(|t| !t.excluded.is_zero());
    let mut all = tallies.into_iter();
    let mut sum = all.next()?;
    for t in all {
        sum.calls.add(&t.calls);
        sum.bytes_written += t.bytes_written;
        sum.bytes_read += t.bytes_read;
        sum.ops += t.ops;
        sum.begun = sum.begun.min(t.begun);
        sum.ended = sum.ended.max(t.ended);
        sum.excluded += t.excluded;
        join(&mut sum.all, &t.all);
        for (s, t) in sum.steps.iter_mut().zip(&t.steps) {
            join(s, t);
        }
    }
    let wall = if excluded {
        longest
    } else {
        sum.ended - sum.begun
    };
    let seconds = wall.max(Duration::from_nanos(1)).as_secs_f64();
    let ops_per_s = if excluded && params.threads > 1 {
        rates
    } else {
        sum.ops as f64 / seconds
    };
    Some(Total {
        sum,
        thread_ops,
        seconds,
        ops_per_s,
    })
}

fn join(into: &mut Latencies, from: &Latencies) {
    // Both were made with the same bounds.
    let added = into.add(from);
    debug_assert!(added.is_ok(), "{added:?}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Info, Wishes};

    fn params(threads: u32) -> Params {
        let wishes = Wishes {
            threads: Some(threads),
            ..Wishes::default()
        };
        Params::new(&Info::new("x", "x", "x"), &wishes).unwrap()
    }

    fn tally(begun: Instant, from: u64, to: u64, excluded: u64, ops: u64) -> Tally {
        let mut t = Meter::new(1).finish();
        t.begun = begun + Duration::from_secs(from);
        t.ended = begun + Duration::from_secs(to);
        t.excluded = Duration::from_secs(excluded);
        (t.ops, t.calls.write, t.bytes_written) = (ops, 2 * ops, 4096 * ops);
        for n in 0..ops {
            t.all.saturating_record(n);
            t.steps[0].saturating_record(n);
        }
        t
    }

    #[test]
    fn threads_are_added_over_the_whole_time() {
        let now = Instant::now();
        let all = vec![tally(now, 0, 9, 0, 30), tally(now, 1, 10, 0, 50)];
        let total = merge(all, &params(2)).unwrap();
        assert_eq!((total.seconds, total.ops_per_s), (10.0, 8.0));
        assert_eq!(total.thread_ops, [30, 50]);
        let sum = total.sum;
        assert_eq!((sum.ops, sum.calls.write), (80, 160));
        assert_eq!(sum.bytes_written, 80 * 4096);
        assert_eq!((sum.all.len(), sum.steps[0].len()), (80, 80));
    }

    /// Fails, or panics, where it is told to.
    struct Trap(&'static str);

    impl Trap {
        fn at(&self, place: &'static str) -> Result<()> {
            match self.0.strip_prefix("panic ") {
                Some(p) if p == place => panic!("as told"),
                None if self.0 == place => Err(Error::Usage(format!("failed: {place}"))),
                _ => Ok(()),
            }
        }
    }

    impl Job for Trap {
        fn worker<'a>(&'a self, _: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
            if thread == 1 {
                self.at("setup")?;
            }
            let mut turn = 0;
            Ok(Box::new(move |m: &mut Meter| {
                turn += 1;
                if thread == 1 && turn == 1 {
                    self.at("warm-up")?;
                }
                m.op();
                Ok(Flow::More)
            }))
        }
    }

    impl Between for Trap {
        fn prepared(&mut self) -> Result<()> {
            self.at("prepared")
        }

        fn warm(&mut self) -> Result<()> {
            self.at("warm")
        }
    }

    fn trapped(place: &'static str) -> Result<Vec<Tally>> {
        let dir = tempfile::tempdir().unwrap();
        let mut params = params(3);
        (params.warmup, params.seconds, params.ops) = (0.001, 600.0, Some(5));
        let stop = AtomicBool::new(false);
        let here = Place::new(&params, dir.path(), &stop)?;
        run(&Trap(place), &here, 0, false, &stop, &mut Trap(place))
    }

    #[test]
    fn a_failure_anywhere_ends_all_threads_and_is_told() {
        assert_eq!(trapped("nowhere").unwrap().len(), 3);
        for place in ["setup", "warm-up", "prepared", "warm"] {
            let e = trapped(place).unwrap_err().to_string();
            assert_eq!(e, format!("failed: {place}"));
        }
    }

    #[test]
    fn a_panic_ends_all_threads() {
        for place in ["panic setup", "panic warm-up"] {
            std::panic::catch_unwind(|| trapped(place)).unwrap_err();
        }
    }

    #[test]
    fn somebody_outside_can_end_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut params = params(2);
        (params.warmup, params.seconds) = (0.0, 600.0);
        let stop = AtomicBool::new(false);
        let here = Place::new(&params, dir.path(), &stop).unwrap();
        let result = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                stop.store(true, Ordering::Relaxed);
            });
            run(&Trap(""), &here, 0, true, &stop, &mut Trap(""))
        });
        assert!(matches!(result, Err(Error::Stopped)), "{result:?}");
    }

    #[test]
    fn what_is_excluded_does_not_count() {
        let now = Instant::now();
        let total = merge(vec![tally(now, 0, 10, 6, 40)], &params(1)).unwrap();
        assert_eq!((total.seconds, total.ops_per_s), (4.0, 10.0));
        let all = vec![tally(now, 0, 10, 6, 40), tally(now, 0, 10, 8, 60)];
        assert_eq!(merge(all, &params(2)).unwrap().ops_per_s, 40.0);
        assert!(merge(Vec::new(), &params(1)).is_none());
    }
}
