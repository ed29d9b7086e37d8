//! What a machine did before it lost power, and whether it is there afterwards. Built by `lab/run.sh`
//! with rustc alone, since it runs in a guest that has nothing.
//!
//! Three writers, each in a directory of its own, do operations that follow from their number; each is
//! one request and so is there as a whole or not at all. `records write DIR N N N` goes on after
//! operation N and says `ack WRITER N` when one has returned. `records verify DIR N N N` finds the
//! number that each directory is at, which is no smaller than the one given, and prints them.
//!
//! `records canary DEVICE N` writes to a disk and never flushes it; `records sing DEVICE` prints what
//! is there of it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::exit;

const BLOCK: usize = 4096;
const TABLES: u64 = 3;
const BLOCKS: u64 = 512;
/// How far a writer may be ahead of what the console has shown.
const AHEAD: u64 = 4000;
const O_DIRECT: i32 = 0o40000;

/// A sequence of numbers that follows from one.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A block says whose it is: writer, file, place, number; the rest follows from that.
fn block(writer: u64, table: u64, at: u64, n: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(BLOCK);
    for word in [0x7175_6179_6c61_6221, writer, table, at, n] {
        out.extend_from_slice(&u64::to_le_bytes(word));
    }
    let mut x = mix(writer << 56 ^ table << 48 ^ at << 32 ^ n);
    while out.len() < BLOCK {
        out.extend_from_slice(&x.to_le_bytes());
        x = mix(x);
    }
    out
}

fn line(writer: u64, n: u64) -> String {
    let tail = "-".repeat((mix(n) % 300) as usize);
    format!("writer {writer} number {n} {tail}\n")
}

/// What operation `n` of a writer does.
enum Op {
    /// Blocks of a table.
    Put { table: u64, at: u64, count: u64 },
    /// A line of the log.
    Line,
    /// The log becomes empty.
    Clear,
    /// A table becomes shorter, or longer by zeros.
    Cut { table: u64, blocks: u64 },
    /// An empty file of this number.
    Make,
    /// The oldest of the files gets a new name.
    Rename,
    /// The oldest of the files goes.
    Remove,
}

fn op(writer: u64, n: u64) -> Op {
    let x = mix(writer << 48 ^ n);
    let (table, y) = ((x >> 8) % TABLES, mix(x));
    match x % 20 {
        0..10 => {
            let count = [1, 1, 4, 16][(y % 4) as usize];
            let at = (y >> 8) % (BLOCKS - count);
            Op::Put { table, at, count }
        }
        10..14 => Op::Line,
        14 => Op::Cut {
            table,
            blocks: y % BLOCKS,
        },
        15..17 => Op::Make,
        17 => Op::Rename,
        18 => Op::Remove,
        _ if n % 7 == 0 => Op::Clear,
        _ => Op::Line,
    }
}

/// A writer's directory as its history says.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Tree {
    /// Of each table the number of the operation that wrote each block; 0 is zeros.
    tables: BTreeMap<u64, Vec<u64>>,
    log: Vec<u64>,
    /// Names in the order of age.
    files: Vec<String>,
}

impl Tree {
    fn apply(&mut self, writer: u64, n: u64) {
        match op(writer, n) {
            Op::Put { table, at, count } => {
                let t = self.tables.entry(table).or_default();
                let end = (at + count) as usize;
                t.resize(t.len().max(end), 0);
                t[at as usize..end].fill(n);
            }
            Op::Line => self.log.push(n),
            Op::Clear => self.log.clear(),
            Op::Cut { table, blocks } => {
                if let Some(t) = self.tables.get_mut(&table) {
                    t.resize(blocks as usize, 0);
                }
            }
            Op::Make => self.files.push(format!("made{n}")),
            Op::Rename if !self.files.is_empty() => {
                self.files.remove(0);
                self.files.push(format!("named{n}"));
            }
            Op::Remove if !self.files.is_empty() => drop(self.files.remove(0)),
            Op::Rename | Op::Remove => {}
        }
    }

    fn after(writer: u64, n: u64) -> Self {
        let mut tree = Self::default();
        (1..=n).for_each(|i| tree.apply(writer, i));
        tree
    }
}

/// Does operation `n` in `dir`, whose state before it is `tree`.
fn perform(dir: &Path, tree: &Tree, writer: u64, n: u64) -> io::Result<()> {
    let open = |name: &str| OpenOptions::new().write(true).open(dir.join(name));
    match op(writer, n) {
        Op::Put { table, at, count } => {
            let data: Vec<u8> = (at..at + count)
                .flat_map(|i| block(writer, table, i, n))
                .collect();
            open(&format!("table{table}"))?.write_all_at(&data, at * BLOCK as u64)
        }
        Op::Line => {
            let mut log = OpenOptions::new().append(true).open(dir.join("log"))?;
            log.write_all(line(writer, n).as_bytes())
        }
        Op::Clear => open("log")?.set_len(0),
        Op::Cut { table, blocks } if tree.tables.contains_key(&table) => {
            open(&format!("table{table}"))?.set_len(blocks * BLOCK as u64)
        }
        Op::Make => File::create_new(dir.join(format!("made{n}"))).map(drop),
        Op::Rename if !tree.files.is_empty() => {
            fs::rename(dir.join(&tree.files[0]), dir.join(format!("named{n}")))
        }
        Op::Remove if !tree.files.is_empty() => fs::remove_file(dir.join(&tree.files[0])),
        Op::Cut { .. } | Op::Rename | Op::Remove => Ok(()),
    }
}

fn write(dir: &Path, writer: u64, from: u64) -> io::Result<()> {
    let dir = dir.join(format!("w{writer}"));
    if from == 0 {
        // Of no number: what is not there yet is as good as empty.
        fs::create_dir_all(&dir)?;
        for name in (0..TABLES)
            .map(|t| format!("table{t}"))
            .chain(["log".into()])
        {
            OpenOptions::new()
                .create(true)
                .append(true)
                .open(dir.join(name))?;
        }
    }
    let mut tree = Tree::after(writer, from);
    for n in from + 1.. {
        perform(&dir, &tree, writer, n)?;
        tree.apply(writer, n);
        println!("ack {writer} {n}");
    }
    Ok(())
}

/// Reads a directory back. What is foreign, torn or out of place ends the program.
fn read(dir: &Path, writer: u64) -> io::Result<Tree> {
    let mut tree = Tree::default();
    let dir = dir.join(format!("w{writer}"));
    let Ok(list) = fs::read_dir(&dir) else {
        return Ok(tree);
    };
    for entry in list {
        let name = entry?.file_name().into_string().unwrap_or_default();
        let data = fs::read(dir.join(&name))?;
        if let Some(t) = name.strip_prefix("table") {
            let table = t.parse().unwrap_or(99);
            let numbers: Vec<u64> = data
                .chunks(BLOCK)
                .enumerate()
                .map(|(i, b)| number(writer, table, i as u64, b))
                .collect();
            if !numbers.is_empty() {
                tree.tables.insert(table, numbers);
            }
        } else if name == "log" {
            for text in String::from_utf8_lossy(&data).split_inclusive('\n') {
                let n = text
                    .split(' ')
                    .nth(3)
                    .and_then(|n| n.parse().ok())
                    .unwrap_or(0);
                if text != line(writer, n) {
                    wrong(&format!("w{writer}/log: foreign line {text:?}"));
                }
                tree.log.push(n);
            }
        } else {
            tree.files.push(name);
        }
    }
    Ok(tree)
}

/// The number in a block; 0 for zeros.
fn number(writer: u64, table: u64, at: u64, data: &[u8]) -> u64 {
    if data.iter().all(|b| *b == 0) {
        return 0;
    }
    let word = |i: usize| {
        data.get(8 * i..8 * i + 8)
            .map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap_or_default()))
    };
    let n = word(4);
    if data != block(writer, table, at, n) {
        wrong(&format!(
            "w{writer}/table{table} block {at}: torn or foreign: {:x} {} {} {} {}",
            word(0),
            word(1),
            word(2),
            word(3),
            word(4)
        ));
    }
    n
}

fn wrong(what: &str) -> ! {
    println!("finding: {what}");
    exit(1);
}

/// The number that the directory is at, from `least` on.
fn verify(dir: &Path, writer: u64, least: u64) -> io::Result<u64> {
    let mut found = read(dir, writer)?;
    found.files.sort();
    let mut tree = Tree::after(writer, least);
    for n in least..least + AHEAD {
        let mut now = tree.clone();
        now.files.sort();
        now.tables.retain(|_, t| !t.is_empty());
        if now == found {
            return Ok(n);
        }
        tree.apply(writer, n + 1);
    }
    let sure = Tree::after(writer, least);
    for (table, now) in &sure.tables {
        let there = found.tables.get(table).cloned().unwrap_or_default();
        for (at, (a, b)) in now
            .iter()
            .zip(&there)
            .enumerate()
            .filter(|(_, (a, b))| a != b)
            .take(5)
        {
            println!("w{writer}/table{table} block {at}: number {b}, at {least} it was {a}");
        }
    }
    wrong(&format!(
        "w{writer}: as after no operation from {least} on; {} lines (last {:?}; at {least} {:?}), {} files ({})",
        found.log.len(),
        found.log.last(),
        sure.log.last(),
        found.files.len(),
        sure.files.len()
    ));
}

/// Writes `n` to the beginning of a disk, past the cache of this machine, and never flushes.
fn canary(device: &str, n: u64) -> io::Result<()> {
    let disk = OpenOptions::new()
        .write(true)
        .custom_flags(O_DIRECT)
        .open(device)?;
    let mut buffer = vec![0; 2 * BLOCK];
    let skip = buffer.as_ptr().align_offset(BLOCK);
    buffer[skip..skip + 8].copy_from_slice(&n.to_le_bytes());
    disk.write_all_at(&buffer[skip..skip + BLOCK], 0)
}

fn sing(device: &str) -> io::Result<u64> {
    let mut disk = File::open(device)?;
    let mut word = [0; 8];
    disk.seek(SeekFrom::Start(0))?;
    disk.read_exact(&mut word)?;
    Ok(u64::from_le_bytes(word))
}

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<u64> = words
        .iter()
        .skip(2)
        .filter_map(|w| w.parse().ok())
        .collect();
    let dir = Path::new(&words[1]);
    match words[0].as_str() {
        "write" => std::thread::scope(|s| {
            for (writer, from) in (0..).zip(numbers) {
                s.spawn(move || {
                    let e = write(dir, writer, from).expect_err("writers do not end");
                    wrong(&format!("writer {writer}: {e}"));
                });
            }
        }),
        "verify" => {
            let at: io::Result<Vec<String>> = (0..)
                .zip(numbers)
                .map(|(w, n)| verify(dir, w, n).map(|n| n.to_string()))
                .collect();
            println!("{}", at?.join(" "));
        }
        "canary" => canary(&words[1], numbers[0])?,
        _ => println!("{}", sing(&words[1])?),
    }
    io::stdout().flush()
}
