//! How long the parts of a volume are, and how they are laid out, where nothing else was wished.

use quayfs_layout::BLOCK;
use quayfs_layout::geometry::{Geometry, GeometryError, Wishes};
use std::io;
use std::path::Path;

use super::medium::Medium;
use super::{DATA_DEFAULT, MkfsError, PMEM_DEFAULT, io_at};

/// Least and most bytes of a region that shares a device with the data, made without a wish; the most where it is a
/// sixteenth of the device, and not less than a 64th.
const REGION_MIN: u64 = 64 << 20;
const REGION_MAX: u64 = 4 << 30;
/// Most bytes for staging in a region that shares a device with the data: what more would gain by absorbing writes, a commit
/// that writes it there first loses, and a mount looks at all slots.
pub(super) const STAGING_MAX: u64 = 1 << 30;
/// Which part of a region on a disk is its batch log, how long that is at most, and at least: in shorter regions there is
/// none.
const BATCH_LOG_SHARE: u64 = 16;
const BATCH_LOG_MAX: u64 = 32 << 20;
const BATCH_LOG_LEAST: u64 = 1 << 20;
/// Least bytes of a device that holds both.
const TOGETHER_MIN: u64 = 32 << 20;
/// Most staging buffers made without a wish.
const BUFFERS_DEFAULT: u32 = 4;
/// Slots that a staging buffer should have before there is another one.
const SLOTS_WANTED: u64 = 2048;

/// Bytes of the region and of the data of a volume in a directory.
pub(super) fn lengths_of_two(
    volume: &Path,
    pmem: &Medium,
    data: &Medium,
) -> Result<(u64, u64), MkfsError> {
    let data_len = match data.len {
        Some(n) => n,
        None => default_data_len(volume).map_err(io_at(volume))?,
    };
    Ok((whole_blocks(pmem.len.unwrap_or(PMEM_DEFAULT)), data_len))
}

/// The same for a volume in one medium, whose region gets `wish` or a usual part of it.
pub(super) fn lengths_of_one(
    volume: &Path,
    medium: &Medium,
    wish: Option<u64>,
) -> Result<(u64, u64), MkfsError> {
    let all = whole_blocks(medium.len.unwrap_or_default());
    let fail = |why| Err(MkfsError::Together(volume.into(), why));
    if all < TOGETHER_MIN {
        return fail("too small for a volume: one device or file has at least 32 MiB");
    }
    let pmem_len = wish.unwrap_or_else(|| region_len(all));
    if pmem_len >= all {
        return fail("the region would leave nothing for data: choose a smaller --pmem-size");
    }
    let pmem_len = whole_blocks(pmem_len);
    Ok((pmem_len, all - pmem_len))
}

/// Bytes of the region of a volume on a device of so many bytes: it holds metadata, and what has been written lately. Each
/// block has 12 bytes of map and checksums in it; a 64th leaves room for a file for each 20 to 50 KiB of a large device.
pub fn region_len(all: u64) -> u64 {
    const SHARE: u64 = 16;
    const SHARE_OF_LARGE: u64 = 64;
    let wanted = (all / SHARE).clamp(REGION_MIN, REGION_MAX);
    let wanted = wanted.max(all / SHARE_OF_LARGE).min(all / 2);
    wanted.next_multiple_of(1 << 20)
}

/// As many staging buffers as stay useful.
pub(super) fn layout(
    pmem_len: u64,
    data_len: u64,
    buffers: Option<u32>,
    wishes: Wishes,
) -> Result<Geometry, GeometryError> {
    let compute = |n| Geometry::compute_with(pmem_len, data_len, n, wishes);
    if let Some(n) = buffers {
        return compute(n);
    }
    let mut n = BUFFERS_DEFAULT;
    loop {
        let g = compute(n);
        match g {
            Ok(g) if g.slots_per_buffer < SLOTS_WANTED && n > 1 => n /= 2,
            Err(GeometryError::PmemTooSmall { .. }) if n > 1 => n /= 2,
            other => return other,
        }
    }
}

/// The same on a disk: with a batch log, if there is room for one.
pub(super) fn layout_on_disk(memory: &Geometry, data_len: u64, wishes: Wishes) -> Geometry {
    let batch_log = (memory.pmem_len / BATCH_LOG_SHARE).min(BATCH_LOG_MAX);
    if batch_log < BATCH_LOG_LEAST {
        return *memory;
    }
    let wishes = Wishes {
        batch_log,
        ..wishes
    };
    let buffers = Some(memory.buffers as u32);
    layout(memory.pmem_len, data_len, buffers, wishes).unwrap_or(*memory)
}

/// A quarter of the free space of the file system that holds `dir`, or will, at most [`DATA_DEFAULT`].
fn default_data_len(dir: &Path) -> io::Result<u64> {
    let there = dir.ancestors().find(|dir| dir.exists()).unwrap_or(dir);
    let s = rustix::fs::statvfs(there)?;
    let free = s.f_bavail.saturating_mul(s.f_frsize);
    Ok((free / 4).min(DATA_DEFAULT) / BLOCK as u64 * BLOCK as u64)
}

fn whole_blocks(len: u64) -> u64 {
    len / BLOCK as u64 * BLOCK as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "| device | region | staging | room for data | files, about |";

    /// A row of the table in docs/sizing.md: what mkfs makes of a disk of this size when nothing else is wished.
    fn row(all: u64) -> String {
        let pmem = region_len(all);
        let wishes = Wishes {
            mirror: None,
            staging: Some(STAGING_MAX),
            batch_log: 0,
        };
        let memory = layout(pmem, all - pmem, None, wishes).unwrap();
        let g = layout_on_disk(&memory, all - pmem, wishes);
        let staging = g.buffers * g.slots_per_buffer * BLOCK as u64;
        let room = g.visible_blocks() * BLOCK as u64;
        let [all, region, staging, room] = [all, pmem, staging, room].map(short);
        format!(
            "| {all} | {region} | {staging} | {room} | {} |",
            rounded(g.files_about())
        )
    }

    /// The largest unit that it has at least one of.
    fn short(bytes: u64) -> String {
        let (unit, name) = match bytes.ilog2() {
            40.. => (1u64 << 40, "TiB"),
            30.. => (1 << 30, "GiB"),
            _ => (1 << 20, "MiB"),
        };
        match bytes % unit {
            0 => format!("{} {name}", bytes / unit),
            _ => format!("{:.1} {name}", bytes as f64 / unit as f64),
        }
    }

    /// Two digits that count, and commas.
    fn rounded(n: u64) -> String {
        let unit = 10u64.pow(n.ilog10().saturating_sub(1));
        let digits = (n / unit * unit).to_string();
        let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().collect();
        let groups = groups.iter().map(|g| String::from_utf8_lossy(g));
        groups.collect::<Vec<_>>().join(",")
    }

    #[test]
    fn the_documented_sizes_are_those_that_are_made() {
        let sizes = [1, 8, 64, 256, 1 << 10, 4 << 10, 16 << 10].map(|n| n << 30);
        let table: Vec<String> = sizes.into_iter().map(row).collect();
        let page = include_str!("../../../docs/sizing.md").lines();
        let documented: Vec<_> = page
            .skip_while(|l| *l != HEADER)
            .skip(2)
            .take_while(|l| l.starts_with('|'))
            .collect();
        let want = table.join("\n");
        assert_eq!(
            documented, table,
            "the table should be:\n{HEADER}\n|---|---|---|---|---|\n{want}\n"
        );
    }
}
