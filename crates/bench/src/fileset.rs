//! A set of files of which some exist, from which threads take one after the other, as in Filebench.

use crate::error::Result;
use crate::handle::Handle;
use crate::meter::Meter;
use crate::random::Random;
use crate::workload::{Aligned, Place, make_dir};
use std::ffi::{CStr, CString};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Files of one directory at most, and directories.
#[derive(Clone, Copy, Debug)]
pub enum Width {
    /// All files in one directory.
    One,
    /// So many in each, in as many levels as it takes.
    Tree(u64),
}

/// The set.
#[derive(Debug)]
pub struct Fileset {
    files: Vec<File>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct File {
    name: CString,
    directory: CString,
    size: u64,
}

#[derive(Debug)]
struct State {
    entries: Vec<Entry>,
    next_existing: usize,
    next_missing: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    exists: bool,
    /// A thread is creating or removing it.
    busy: bool,
    /// Threads that have it open.
    open: u32,
}

/// Chooses the size of the next file.
pub type Sizes = dyn Fn(&mut Random) -> u64;

impl Fileset {
    /// A set of `count` files below the directory of a run, of which about 80 in 100 exist.
    ///
    /// # Errors
    /// What the file system said.
    pub fn make(place: &Place<'_>, count: u64, width: Width, sizes: &Sizes) -> Result<Self> {
        let mut random = place.random(usize::MAX);
        let mut dirs = Dirs::new(width);
        let mut setup = Meter::new(0);
        let mut buffer = Aligned::random(1 << 20, &mut random);
        let mut files = Vec::with_capacity(count as usize);
        let mut entries = Vec::with_capacity(count as usize);
        for n in 0..count {
            place.go_on()?;
            let (directory, name) = dirs.name(place.dir(), n)?;
            let file = File {
                name: place.dir().whole_path(&name),
                directory: place.dir().whole_path(&directory),
                size: sizes(&mut random),
            };
            let exists = random.below(100) < 80;
            if exists {
                let fd = setup.create(place.dir(), &file.name)?;
                write_whole(&mut setup, &fd, buffer.stamped(n), file.size)?;
                setup.close(fd);
            }
            files.push(file);
            entries.push(Entry {
                exists,
                busy: false,
                open: 0,
            });
        }
        Ok(Self {
            files,
            state: Mutex::new(State {
                entries,
                next_existing: 0,
                next_missing: 0,
            }),
        })
    }

    /// The whole path of a file.
    pub fn name(&self, file: usize) -> &CStr {
        &self.files[file].name
    }

    /// The whole path of its directory.
    pub fn directory(&self, file: usize) -> &CStr {
        &self.files[file].directory
    }

    /// The size that it has when it is written as a whole.
    pub fn size(&self, file: usize) -> u64 {
        self.files[file].size
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next file that does not exist; no other thread gets it until [`created`](Self::created).
    pub fn take_missing(&self) -> Option<usize> {
        let mut s = self.state();
        let file = s.find(s.next_missing, |e| !e.exists && !e.busy)?;
        s.next_missing = file + 1;
        s.entries[file].busy = true;
        Some(file)
    }

    /// A file has been created, and is open.
    pub fn created(&self, file: usize) {
        let mut s = self.state();
        let e = &mut s.entries[file];
        (e.exists, e.busy, e.open) = (true, false, e.open + 1);
    }

    /// The next file that exists, to be opened; no thread removes it until [`closed`](Self::closed).
    pub fn take_existing(&self) -> Option<usize> {
        let mut s = self.state();
        let file = s.find(s.next_existing, |e| e.exists && !e.busy)?;
        s.next_existing = file + 1;
        s.entries[file].open += 1;
        Some(file)
    }

    /// A file has been closed.
    pub fn closed(&self, file: usize) {
        self.state().entries[file].open -= 1;
    }

    /// The next file that exists, to be removed; nothing if a thread has just that file open.
    pub fn take_victim(&self) -> Option<usize> {
        let mut s = self.state();
        let file = s.find(s.next_existing, |e| e.exists && !e.busy)?;
        s.next_existing = file + 1;
        let e = &mut s.entries[file];
        if e.open > 0 {
            return None;
        }
        e.busy = true;
        Some(file)
    }

    /// A file has been removed.
    pub fn removed(&self, file: usize) {
        let mut s = self.state();
        let e = &mut s.entries[file];
        (e.exists, e.busy) = (false, false);
    }

    /// How many exist.
    pub fn existing(&self) -> usize {
        self.state().entries.iter().filter(|e| e.exists).count()
    }
}

impl State {
    /// The first from `start` on, in rotation.
    fn find(&self, start: usize, like: impl Fn(&Entry) -> bool) -> Option<usize> {
        let n = self.entries.len();
        (start..n)
            .chain(0..start.min(n))
            .find(|i| like(&self.entries[*i]))
    }
}

/// Writes `size` bytes at the position, all of `data` over and over, each time with one call.
pub fn write_whole(m: &mut Meter, file: &Handle<'_>, data: &[u8], size: u64) -> Result<()> {
    let mut rest = size as usize;
    while rest > 0 {
        let len = rest.min(data.len());
        m.write(file, &data[..len])?;
        rest -= len;
    }
    Ok(())
}

/// Directories of a tree, made as they are needed.
struct Dirs {
    width: Width,
    made: u64,
}

impl Dirs {
    fn new(width: Width) -> Self {
        Self { width, made: 0 }
    }

    /// The names of the directory of file `n` and of the file, below `root`; the directory is there
    /// afterwards. Files come in their order.
    fn name(&mut self, root: &Handle<'_>, n: u64) -> Result<(CString, CString)> {
        let path = match self.width {
            Width::One => "set".to_owned(),
            Width::Tree(width) => {
                let mut path = String::new();
                let mut dir = n / width;
                while dir > 0 {
                    path.insert_str(0, &format!("/d{}", dir % width));
                    dir /= width;
                }
                format!("set{path}")
            }
        };
        let first = match self.width {
            Width::One => n == 0,
            Width::Tree(width) => n.is_multiple_of(width),
        };
        if first {
            let ends = path.match_indices('/').map(|(at, _)| at);
            for end in ends.chain([path.len()]) {
                make_dir(root, &CString::new(&path[..end]).unwrap_or_default())?;
            }
            self.made += 1;
        }
        let name = CString::new(format!("{path}/f{n}")).unwrap_or_default();
        Ok((CString::new(path).unwrap_or_default(), name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Info, Params, Wishes};
    use std::sync::atomic::AtomicBool;

    fn set(dir: &std::path::Path, count: u64, width: Width) -> Fileset {
        let params = Params::new(&Info::new("x", "x", "x"), &Wishes::default()).unwrap();
        let stop = AtomicBool::new(false);
        let place = Place::new(&params, dir, &stop).unwrap();
        Fileset::make(&place, count, width, &|r| r.between(1, 5000)).unwrap()
    }

    #[test]
    fn files_are_taken_in_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let set = set(dir.path(), 50, Width::One);
        let existing: Vec<usize> = (0..50)
            .filter(|f| dir.path().join(set.name(*f).to_str().unwrap()).exists())
            .collect();
        assert_eq!(set.existing(), existing.len());
        assert!((30..50).contains(&existing.len()), "{existing:?}");
        for f in &existing {
            let path = dir.path().join(set.name(*f).to_str().unwrap());
            assert_eq!(path.metadata().unwrap().len(), set.size(*f));
        }
        for f in existing.iter().chain(&existing) {
            assert_eq!(set.take_existing(), Some(*f));
        }
        // Open, so it is no victim; the one behind is.
        assert_eq!(set.take_victim(), None);
        set.closed(existing[1]);
        assert_eq!(set.take_victim(), None, "open twice");
        set.closed(existing[2]);
        set.closed(existing[2]);
        assert_eq!(set.take_victim(), Some(existing[2]));
        set.removed(existing[2]);
        assert_eq!(set.existing(), existing.len() - 1);
        // Every file that does not exist can be created once.
        let missing: Vec<usize> = std::iter::from_fn(|| set.take_missing()).collect();
        assert_eq!(missing.len(), 50 - existing.len() + 1);
        assert!(missing.contains(&existing[2]));
        missing.iter().for_each(|f| set.created(*f));
        assert_eq!((set.existing(), set.take_missing()), (50, None));
    }

    #[test]
    fn trees_have_their_width() {
        let dir = tempfile::tempdir().unwrap();
        let set = set(dir.path(), 1000, Width::Tree(10));
        let real = dir.path().canonicalize().unwrap();
        for (whole, below) in [
            (set.name(7), "set/f7"),
            (set.name(57), "set/d5/f57"),
            (set.name(123), "set/d1/d2/f123"),
            (set.directory(123), "set/d1/d2"),
        ] {
            let whole = std::path::Path::new(whole.to_str().unwrap());
            assert_eq!(whole, real.join(below));
        }
        for path in ["set", "set/d5", "set/d9/d9"] {
            let entries = std::fs::read_dir(dir.path().join(path)).unwrap();
            let files = entries.filter(|e| e.as_ref().unwrap().file_type().unwrap().is_file());
            assert!((4..=10).contains(&files.count()), "{path}");
        }
    }
}
