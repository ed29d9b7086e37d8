//! What unpacking an archive of sources does: directories and files of a seed, in the order of a
//! walk, with the calls of GNU tar run by root. One operation is one member of the archive.
//!
//! A directory has 1 to 24 files and, until there are enough of them, up to 5 directories. Sizes of
//! files follow a log-normal distribution with a median of 4 KiB and a mean of 12.6 KiB (sigma 1.5),
//! at most 1 MiB. A file is created, written in pieces of 10 KiB (tar's records), gets its time and
//! mode, and is closed; directories get theirs at the end.
//!
//! What differs from tar: no archive is read, no owner is set, all names are relative to one open
//! directory.

use crate::error::Result;
use crate::fileset::write_whole;
use crate::meter::{FILE_MODE, Meter};
use crate::random::Random;
use crate::workload::{Aligned, Flow, Info, Place, Private, Worker, Workload};
use rand_distr::LogNormal;
use rustix::fs::OFlags;
use std::ffi::CString;

const FAMILY: &str = "archive";
/// Bytes of a record of tar.
const RECORD: usize = 10_240;
const MEDIAN: f64 = 4096.0;
const SIGMA: f64 = 1.5;
const LARGEST: u64 = 1 << 20;
/// Time of all members, in seconds since 1970.
const MTIME: i64 = 1_500_000_000;

const STEPS: &[&str] = &["directory", "file", "finish", "sync"];

/// Adds the workloads of this file.
pub fn add(all: &mut Vec<Box<dyn Workload>>) {
    let info = |name, about| {
        Info::new(name, FAMILY, about)
            .on_files(5000)
            .fixed()
            .steps(STEPS)
    };
    all.push(Box::new(Private {
        info: info(
            "untar",
            "unpack a tree of 5,000 source files of 12 KiB on average; one operation is one member",
        ),
        worker: |place, thread| worker(place, thread, false),
    }));
    all.push(Box::new(Private {
        info: info("untar-sync", "the same, durable at the end: fsync, syncfs"),
        worker: |place, thread| worker(place, thread, true),
    }));
}

/// A member of the archive; one without a size is a directory.
struct Member {
    name: CString,
    size: Option<u64>,
}

/// The members of an archive with this number of files, directories before what is in them.
fn archive(files: u64, random: &mut Random) -> Vec<Member> {
    // Median and sigma are constants that make a distribution.
    let sizes = LogNormal::new(MEDIAN.ln(), SIGMA);
    let mut members = Vec::new();
    let mut rest = files;
    let mut made = 0;
    // Directories that are to be filled; the last is next, so subtrees come in one piece.
    let mut open = vec![String::from("src")];
    while let Some(dir) = open.pop() {
        let name = CString::new(dir.clone()).unwrap_or_default();
        members.push(Member { name, size: None });
        let here = random.between(1, 24).min(rest);
        for n in 0..here {
            let size = sizes.map_or(MEDIAN, |s| random.sample(&s)) as u64;
            let name = CString::new(format!("{dir}/file{n}.c")).unwrap_or_default();
            let size = Some(size.min(LARGEST));
            members.push(Member { name, size });
        }
        rest -= here;
        if rest > 0 {
            // One at least if nothing else is open, or the archive would end too early.
            let least = u64::from(open.is_empty());
            for _ in 0..random.between(least, 5) {
                open.push(format!("{dir}/dir{made}"));
                made += 1;
            }
        } else {
            open.clear();
        }
    }
    members
}

fn worker<'a>(place: &'a Place<'a>, thread: usize, sync: bool) -> Result<Box<dyn Worker + 'a>> {
    let root = place.own_dir(thread)?;
    let mut random = place.random(thread);
    let members = archive(place.params.files, &mut random);
    let mut buffer = Aligned::random(RECORD, &mut random);
    let mut next = 0;
    Ok(Box::new(move |m: &mut Meter| {
        let Some(member) = members.get(next) else {
            return Ok(Flow::Done);
        };
        let dir = &root;
        if let Some(size) = member.size {
            let file = m.create(dir, &member.name)?;
            write_whole(m, &file, buffer.stamped(next as u64), size)?;
            m.set_mtime(&file, MTIME)?;
            m.fchmod(&file, FILE_MODE)?;
            m.close(file);
            m.step(1);
        } else {
            m.mkdir(dir, &member.name)?;
            m.step(0);
        }
        next += 1;
        if next == members.len() {
            // Before, files in them would have changed the times of directories again.
            for directory in members.iter().rev().filter(|d| d.size.is_none()) {
                let fd = m.open(dir, &directory.name, OFlags::DIRECTORY)?;
                m.set_mtime(&fd, MTIME)?;
                m.fchmod(&fd, crate::meter::DIR_MODE)?;
                m.close(fd);
            }
            m.step(2);
            if sync {
                // FUSE file systems are not told of syncfs; an fsync is all they can be asked.
                m.fsync(dir)?;
                m.syncfs(dir)?;
                m.step(3);
            }
        }
        m.op_ended();
        Ok(Flow::More)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn an_archive_has_its_files_and_directories_first() {
        for files in [1, 2, 100, 5000] {
            let members = archive(files, &mut Random::new(3, 0));
            let mut dirs = HashSet::new();
            let mut count = 0;
            for m in &members {
                let name = m.name.to_str().unwrap();
                if let Some((parent, _)) = name.rsplit_once('/') {
                    assert!(dirs.contains(parent), "{name}");
                }
                match m.size {
                    Some(size) => {
                        assert!(size <= LARGEST);
                        count += 1;
                    }
                    None => assert!(dirs.insert(name), "{name}"),
                }
            }
            assert_eq!(count, files);
        }
    }

    #[test]
    fn sizes_are_those_of_sources() {
        let members = archive(50_000, &mut Random::new(1, 0));
        let mut sizes: Vec<u64> = members.iter().filter_map(|m| m.size).collect();
        sizes.sort_unstable();
        let median = sizes[sizes.len() / 2] as f64;
        assert!((median / MEDIAN - 1.0).abs() < 0.05, "{median}");
        let mean = sizes.iter().sum::<u64>() as f64 / sizes.len() as f64;
        // Slightly below that of the distribution, which has no largest.
        assert!((11_500.0..13_000.0).contains(&mean), "{mean}");
    }
}
