//! What system calls cost in messages of the kernel, as docs/performance.md has it. Counts depend on
//! nothing but the kernel and the daemon, so they are compared exactly.
//!
//! A test binary of its own: it sets the umask of its process.
//!
//! Needs `/dev/fuse`; QUAYFS_SKIP_FUSE=1 does without.

mod program;

use program::{Mounted, Scene, Start as _, as_nobody, can_be_root, can_mount};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Often enough that what happens once in a while vanishes in rounding.
const TIMES: usize = 40;
/// Names in a directory that is listed.
const NAMES: usize = 1000;

/// Messages by kind.
type Messages = BTreeMap<String, u64>;

fn messages(m: &Mounted) -> Messages {
    let status = m.info();
    let messages = status["messages"].as_object().unwrap();
    messages
        .iter()
        .map(|(k, n)| (k.clone(), n.as_u64().unwrap()))
        .collect()
}

/// One row of the table: what is done [`TIMES`] times.
struct Row {
    name: &'static str,
    /// Before it is counted.
    prepare: fn(&Path, usize),
    act: Act,
}

enum Act {
    Each(fn(&Path, usize)),
    /// In one process of its own.
    All(fn(&Path)),
    /// Once, of much; the cost is that of all of it.
    Once(fn(&Path)),
}

fn file(dir: &Path, n: usize) -> PathBuf {
    dir.join(format!("f{n}"))
}

fn nothing(_: &Path, _: usize) {}

fn make(dir: &Path, n: usize) {
    fs::write(file(dir, n), [1; 8192]).unwrap();
}

/// A file that exists and whose content and attributes the kernel knows.
fn known(dir: &Path, n: usize) {
    make(dir, n);
    fs::read(file(dir, n)).unwrap();
    fs::metadata(dir).unwrap();
}

fn create_write_fsync(dir: &Path, n: usize) {
    let mut f = File::create_new(file(dir, n)).unwrap();
    f.write_all(&[2; 4096]).unwrap();
    f.sync_all().unwrap();
}

fn overwrite_fsync(dir: &Path, n: usize) {
    let f = OpenOptions::new().write(true).open(file(dir, n)).unwrap();
    f.write_all_at(&[3; 4096], 0).unwrap();
    f.sync_all().unwrap();
}

fn append_fsync(dir: &Path, n: usize) {
    let mut f = OpenOptions::new().append(true).open(file(dir, n)).unwrap();
    f.write_all(&[4; 4096]).unwrap();
    f.sync_all().unwrap();
}

/// The mail server of Filebench: delete one; create one, append, fsync; read one, append, fsync; read
/// one.
fn varmail(dir: &Path, n: usize) {
    let read_all = |f: &mut File| {
        let mut content = Vec::new();
        f.read_to_end(&mut content).unwrap();
    };
    fs::remove_file(file(dir, n)).unwrap();
    create_write_fsync(dir, n + TIMES);
    let path = file(dir, n + 2 * TIMES);
    let mut f = OpenOptions::new()
        .read(true)
        .append(true)
        .open(path)
        .unwrap();
    read_all(&mut f);
    f.write_all(&[5; 4096]).unwrap();
    f.sync_all().unwrap();
    drop(f);
    read_all(&mut File::open(file(dir, n + TIMES)).unwrap());
}

/// Makes [`NAMES`] files, the first time.
fn crowd(dir: &Path, n: usize) {
    for i in 0..if n == 0 { NAMES } else { 0 } {
        fs::write(file(dir, i), [1]).unwrap();
    }
}

fn list(dir: &Path) {
    let mut seen = 0;
    for entry in fs::read_dir(dir).unwrap() {
        // Rust's own asks for the birth time too, which no listing tells the kernel.
        let stat = rustix::fs::lstat(entry.unwrap().path()).unwrap();
        assert_eq!(stat.st_size, 1);
        seen += 1;
    }
    assert_eq!(seen, NAMES);
}

#[track_caller]
fn run(command: &mut Command) {
    let out = command.capture().unwrap();
    assert!(
        out.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
}

fn archive(dir: &Path, n: usize) {
    if n > 0 {
        return;
    }
    let (from, to) = (dir.join("from"), dir.join("to"));
    fs::create_dir(&from).unwrap();
    fs::create_dir(to).unwrap();
    (0..TIMES).for_each(|i| make(&from, i));
    let mut tar = Command::new("tar");
    run(tar.current_dir(&from).args(["-cf", "../archive", "."]));
}

fn unpack(dir: &Path) {
    let mut tar = Command::new("tar");
    run(tar
        .current_dir(dir.join("to"))
        .args(["-xf", "../archive", "--owner=0"]));
}

/// [`TIMES`] transactions of two rows each, or with `n == 0` the database for them.
fn sqlite(dir: &Path, mode: &str, times: usize) {
    const PROGRAM: &str = "import sqlite3, sys
path, mode, times = sys.argv[1:]
db = sqlite3.connect(path, isolation_level=None)
db.execute(f'PRAGMA journal_mode={mode}')
db.execute('PRAGMA synchronous=FULL')
db.execute('CREATE TABLE IF NOT EXISTS t (a INTEGER PRIMARY KEY, b TEXT)')
for i in range(int(times)):
    db.execute('BEGIN IMMEDIATE')
    db.execute('INSERT INTO t (b) VALUES (?)', ('x' * 100,))
    db.execute('UPDATE t SET b = ? WHERE a = 1', (str(i),))
    db.execute('COMMIT')
";
    let mut python = Command::new("python3");
    python.args(["-c", PROGRAM]).arg(dir.join("db"));
    run(python.args([mode, &times.to_string()]));
}

const ROWS: [Row; 21] = [
    Row {
        name: "stat",
        prepare: known,
        act: Act::Each(|dir, n| assert!(fs::metadata(file(dir, n)).unwrap().is_file())),
    },
    Row {
        name: "lookup of a missing name",
        prepare: nothing,
        act: Act::Each(|dir, n| assert!(!file(dir, n).exists())),
    },
    Row {
        name: "the same again",
        prepare: |dir, n| assert!(!file(dir, n).exists()),
        act: Act::Each(|dir, n| assert!(!file(dir, n).exists())),
    },
    Row {
        name: "open, read 4 KiB, close",
        prepare: known,
        act: Act::Each(|dir, n| {
            let f = File::open(file(dir, n)).unwrap();
            f.read_exact_at(&mut [0; 4096], 0).unwrap();
        }),
    },
    Row {
        name: "create, close",
        prepare: nothing,
        act: Act::Each(|dir, n| drop(File::create_new(file(dir, n)).unwrap())),
    },
    Row {
        name: "create, write, fsync, close",
        prepare: nothing,
        act: Act::Each(create_write_fsync),
    },
    Row {
        name: "overwrite, fsync",
        prepare: known,
        act: Act::Each(overwrite_fsync),
    },
    Row {
        name: "the same again",
        prepare: |dir, n| {
            known(dir, n);
            overwrite_fsync(dir, n);
        },
        act: Act::Each(overwrite_fsync),
    },
    Row {
        name: "append, fsync",
        prepare: known,
        act: Act::Each(append_fsync),
    },
    Row {
        name: "the same again",
        prepare: |dir, n| {
            known(dir, n);
            append_fsync(dir, n);
        },
        act: Act::Each(append_fsync),
    },
    Row {
        name: "write, then stat",
        prepare: known,
        act: Act::Each(|dir, n| {
            let f = OpenOptions::new().write(true).open(file(dir, n)).unwrap();
            f.write_all_at(&[3; 4096], 0).unwrap();
            assert_eq!(f.metadata().unwrap().size(), 8192);
        }),
    },
    Row {
        name: "truncate",
        prepare: known,
        act: Act::Each(|dir, n| {
            let f = OpenOptions::new().write(true).open(file(dir, n)).unwrap();
            f.set_len(100).unwrap();
        }),
    },
    Row {
        name: "rename",
        prepare: known,
        act: Act::Each(|dir, n| fs::rename(file(dir, n), dir.join(format!("g{n}"))).unwrap()),
    },
    Row {
        name: "unlink",
        prepare: known,
        act: Act::Each(|dir, n| fs::remove_file(file(dir, n)).unwrap()),
    },
    Row {
        name: "mkdir",
        prepare: nothing,
        act: Act::Each(|dir, n| fs::create_dir(file(dir, n)).unwrap()),
    },
    Row {
        name: "rmdir",
        prepare: |dir, n| fs::create_dir(file(dir, n)).unwrap(),
        act: Act::Each(|dir, n| fs::remove_dir(file(dir, n)).unwrap()),
    },
    Row {
        name: "a Varmail loop",
        prepare: |dir, n| {
            make(dir, n);
            make(dir, n + 2 * TIMES);
        },
        act: Act::Each(varmail),
    },
    Row {
        name: "list 1,000 names, stat each",
        prepare: crowd,
        act: Act::Once(list),
    },
    Row {
        name: "unpack a file of a tar archive",
        prepare: archive,
        act: Act::All(unpack),
    },
    Row {
        name: "SQLite transaction, `DELETE`",
        prepare: |dir, n| sqlite(dir, "DELETE", usize::from(n == 0)),
        act: Act::All(|dir| sqlite(dir, "DELETE", TIMES)),
    },
    Row {
        name: "SQLite transaction, `WAL`",
        prepare: |dir, n| sqlite(dir, "WAL", usize::from(n == 0)),
        act: Act::All(|dir| sqlite(dir, "WAL", TIMES)),
    },
];

/// What one of so many times costs, as the table shows it: kinds in the order of their names, rounded.
fn cost(before: &Messages, after: &Messages, times: usize) -> BTreeMap<String, usize> {
    let mut cost = BTreeMap::new();
    for (kind, n) in after {
        // By one of them `quayfs info` asked.
        let asked = u64::from(kind == "getxattr");
        let n = n - before.get(kind).unwrap_or(&0) - asked;
        let each = (n as usize + times / 2) / times;
        // However the kernel packs them, it forgets each inode once.
        if each > 0 && kind != "forget" && kind != "batch_forget" {
            cost.insert(kind.clone(), each);
        }
    }
    cost
}

fn measure(column: &Column) -> Vec<(String, String)> {
    let options = format!("{},durability=op", column.options);
    let m = Mounted::on(Scene::open_to_all(), &options);
    fs::set_permissions(m.mnt(), Permissions::from_mode(column.root)).unwrap();
    // What is asked once a mount is asked here.
    let warm = m.0.mnt().join("warm");
    fs::create_dir(&warm).unwrap();
    known(&warm, 0);
    append_fsync(&warm, 0);
    fs::read_dir(&warm).unwrap().count();
    ROWS.iter()
        .filter(|row| !column.stranger || matches!(row.act, Act::Each(_)))
        .enumerate()
        .map(|(i, row)| {
            let dir = m.0.mnt().join(format!("d{i}"));
            fs::create_dir(&dir).unwrap();
            for n in 0..TIMES {
                (row.prepare)(&dir, n);
            }
            if let Act::Once(_) = row.act {
                // The kernel forgets what it knows.
                m.umount();
                m.mount(&options);
                fs::metadata(&dir).unwrap();
                fs::read_dir(&warm).unwrap().count();
            }
            let before = messages(&m);
            match row.act {
                Act::Each(act) if column.stranger => {
                    as_nobody(|| (0..TIMES).for_each(|n| act(&dir, n)));
                }
                Act::Each(act) => (0..TIMES).for_each(|n| act(&dir, n)),
                Act::All(act) | Act::Once(act) => act(&dir),
            }
            let after = messages(&m);
            let times = match row.act {
                Act::Once(_) => 1,
                Act::Each(_) | Act::All(_) => TIMES,
            };
            let mut cost = cost(&before, &after, times);
            if options.contains("writeback") && matches!(row.act, Act::All(_)) {
                // Times have the grain of a tick, and how many ticks a program takes cannot be known.
                cost.remove("setattr");
            }
            let sum: usize = cost.values().sum();
            let kinds: Vec<_> = cost
                .iter()
                .map(|(kind, n)| {
                    if *n == 1 {
                        kind.clone()
                    } else {
                        format!("{n} {kind}")
                    }
                })
                .collect();
            (row.name.to_owned(), format!("{sum}: {}", kinds.join(", ")))
        })
        .map(|(name, text)| (name, text.trim_end_matches(": ").to_owned()))
        .collect()
}

/// A column of a table in docs/performance.md: its head, and what the mount is told.
struct Column {
    head: &'static str,
    options: &'static str,
    /// Another user does it, in a tree that is open to all, and owns nothing there but what that user
    /// has made. Calls only, no programs.
    stranger: bool,
    /// Permissions of the root directory.
    root: u32,
}

/// The user who has mounted does it.
const OWN: [Column; 5] = {
    const fn own(head: &'static str, options: &'static str) -> Column {
        Column {
            head,
            options,
            stranger: false,
            root: 0o755,
        }
    }
    [
        own("`ablation=messages:all`", "ablation=messages:all"),
        own("`open=answer`", "open=answer"),
        own("`open=elide`", "open=elide"),
        own(
            "`open=elide`, `permissions=owner`",
            "open=elide,permissions=owner",
        ),
        own(
            "`open=elide`, `permissions=owner`, `writeback`",
            "open=elide,permissions=owner,writeback",
        ),
    ]
};

/// Others do it, with `open=elide`.
const OTHERS: [Column; 3] = {
    const fn other(head: &'static str, options: &'static str, root: u32) -> Column {
        Column {
            head,
            options,
            stranger: true,
            root,
        }
    }
    [
        other("`acl`", "open=elide,allow_other,acl", 0o755),
        other(
            "`acl`, after `chmod g= MOUNTPOINT`",
            "open=elide,allow_other,acl",
            0o705,
        ),
        other("`noacl`", "open=elide,allow_other,noacl", 0o755),
    ]
};

#[test]
fn the_documented_messages_are_those_that_come() {
    if !can_mount() {
        return;
    }
    compare(&OWN);
}

#[test]
fn the_documented_messages_of_others_are_those_that_come() {
    if !can_be_root() {
        return;
    }
    compare(&OTHERS);
}

fn compare(columns: &[Column]) {
    rustix::process::umask(rustix::fs::Mode::empty());
    let measured: Vec<_> = columns.iter().map(measure).collect();
    let heads: Vec<_> = columns.iter().map(|c| c.head).collect();
    let header = format!("| | {} |", heads.join(" | "));
    let table: Vec<String> = (0..measured[0].len())
        .map(|i| {
            let cells: Vec<_> = measured.iter().map(|c| c[i].1.as_str()).collect();
            format!("| {} | {} |", measured[0][i].0, cells.join(" | "))
        })
        .collect();
    let doc = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/performance.md");
    let doc = fs::read_to_string(doc).unwrap();
    let documented: Vec<_> = doc
        .lines()
        .skip_while(|l| *l != header)
        .skip(2)
        .take_while(|l| l.starts_with('|'))
        .collect();
    assert_eq!(
        documented,
        table,
        "the table should be:\n{header}\n|---{}|\n{}\n",
        "|---".repeat(columns.len()),
        table.join("\n")
    );
}
