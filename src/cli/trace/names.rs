//! What inodes and tasks are called, as far as that has been seen.

use super::event::Event;
use procfs::process::Process;
use std::collections::HashMap;

/// The root directory.
const ROOT: u64 = 1;
/// So many directories lie in each other at most, in what is shown.
const DEEP: usize = 64;
/// So many names are kept in mind.
const MOST: usize = 100_000;

/// Where inodes are, by what was asked since the beginning.
#[derive(Debug, Default)]
pub struct Files {
    /// The directory and the name in it.
    places: HashMap<u64, Place>,
    /// The reverse.
    inodes: HashMap<Place, u64>,
}

type Place = (u64, String);

impl Files {
    /// Keeps in mind what a request says, and returns which path it is about.
    pub fn learn(&mut self, event: &Event) -> Option<String> {
        let name = event.name.as_deref().filter(|_| is_entry(&event.op));
        let Some(name) = name else {
            return self.path(event.ino);
        };
        let path = self.path(event.ino).map(|dir| match dir.as_str() {
            "/" => format!("/{name}"),
            dir => format!("{dir}/{name}"),
        });
        if event.result < 0 || event.is_cut {
            return path;
        }
        match event.op.as_str() {
            // Where it goes is not told.
            "unlink" | "rmdir" | "rename" => {
                if let Some(ino) = self.inodes.remove(&(event.ino, name.into())) {
                    self.places.remove(&ino);
                }
            }
            _ if event.child > ROOT => self.put(event.child, (event.ino, name.into())),
            _ => {}
        }
        path
    }

    fn put(&mut self, ino: u64, place: Place) {
        if self.places.len() >= MOST {
            self.places.clear();
            self.inodes.clear();
        }
        // Of several names it is the last one that was seen; what had this name before has none.
        if let Some(old) = self.places.insert(ino, place.clone()) {
            self.inodes.remove(&old);
        }
        if let Some(other) = self.inodes.insert(place, ino).filter(|other| *other != ino) {
            self.places.remove(&other);
        }
    }

    fn path(&self, ino: u64) -> Option<String> {
        let (mut at, mut parts) = (ino, Vec::new());
        while at != ROOT {
            let (dir, name) = self.places.get(&at)?;
            parts.push(name.as_str());
            if parts.len() > DEEP {
                return None;
            }
            at = *dir;
        }
        parts.reverse();
        Some(format!("/{}", parts.join("/")))
    }
}

/// Whether the name of a request is that of an entry of its directory.
fn is_entry(op: &str) -> bool {
    matches!(
        op,
        "lookup"
            | "create"
            | "mknod"
            | "mkdir"
            | "symlink"
            | "link"
            | "unlink"
            | "rmdir"
            | "rename"
            | "rename2"
    )
}

/// Who has asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct By {
    /// The process; none if it has ended, or cannot be seen from here.
    pub pid: Option<u32>,
    /// Its name.
    pub name: Option<String>,
}

/// Processes that tasks belong to.
#[derive(Debug, Default)]
pub struct Processes(HashMap<u32, By>);

impl Processes {
    /// The one of a task.
    pub fn of(&mut self, task: u32) -> By {
        if let Some(by) = self.0.get(&task) {
            return by.clone();
        }
        if self.0.len() >= MOST {
            self.0.clear();
        }
        let by = process(task).unwrap_or_default();
        // What has ended may have been another one of that number.
        if by.pid.is_some() {
            self.0.insert(task, by.clone());
        }
        by
    }
}

fn process(task: u32) -> Option<By> {
    let status = Process::new(i32::try_from(task).ok()?)
        .ok()?
        .status()
        .ok()?;
    Some(By {
        pid: u32::try_from(status.tgid).ok(),
        name: Some(status.name),
    })
}
