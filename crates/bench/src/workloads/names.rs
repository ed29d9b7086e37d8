//! Names and attributes that are looked up.

use crate::error::Result;
use crate::meter::Meter;
use crate::name::Name;
use crate::workload::{Flow, Info, Place, Private, Worker, Workload};

const FAMILY: &str = "names";

/// Adds the workloads of this file.
pub fn add(all: &mut Vec<Box<dyn Workload>>) {
    let stat = Info::new("stat", FAMILY, "stat of one of 1,000 cached files").on_files(1000);
    all.push(Box::new(Private {
        info: stat,
        worker: stat_hot,
    }));
    let missing = Info::new(
        "stat-missing",
        FAMILY,
        "stat of a name that is not there, each time another",
    );
    all.push(Box::new(Private {
        info: missing,
        worker: stat_missing,
    }));
}

fn stat_hot<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let dir = place.own_dir(thread)?;
    let mut random = place.random(thread);
    let mut name = Name::new("f");
    let mut setup = Meter::new(0);
    for n in 0..place.params.files {
        let file = setup.create(&dir, name.at(n))?;
        setup.close(file);
    }
    for n in 0..place.params.files {
        setup.stat(&dir, name.at(n))?;
    }
    Ok(Box::new(move |m: &mut Meter| {
        let n = random.below(place.params.files);
        m.stat(&dir, name.at(n))?;
        m.op();
        Ok(Flow::More)
    }))
}

fn stat_missing<'a>(place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
    let dir = place.own_dir(thread)?;
    let mut name = Name::new("missing");
    let mut n = 0;
    Ok(Box::new(move |m: &mut Meter| {
        m.stat_missing(&dir, name.at(n))?;
        m.op();
        n += 1;
        Ok(Flow::More)
    }))
}
