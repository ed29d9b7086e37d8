//! The data of a volume in one file, in another file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use quayfs_shown::progress::{Meter, Unit};
use rustix::fs::{SeekFrom, copy_file_range, seek};
use rustix::io::Errno;

/// Bytes at a time.
const PIECE: u64 = 16 << 20;
/// The same where they pass through memory.
const BUFFER: u64 = 1 << 20;

/// Copies so many bytes from an offset in one file to one in another, whose holes stay holes; a file system that can share
/// blocks shares them. Durable when the file is synced.
///
/// # Errors
/// Those of the system, which may have no room.
pub(super) fn copy_data(
    (from, start): (&File, u64),
    (to, new_start): (&File, u64),
    len: u64,
    meter: &Meter,
) -> io::Result<()> {
    meter.begin("copying the data", len, Unit::Bytes);
    let end = start + len;
    let mut at = start;
    while let Some(data) = found(from, SeekFrom::Data(at))?.filter(|at| *at < end) {
        let hole = found(from, SeekFrom::Hole(data))?.unwrap_or(end).min(end);
        meter.add(data - at);
        at = data;
        while at < hole {
            let n = copy_some(from, at, (to, at - start + new_start), hole - at)?;
            at += n;
            meter.add(n);
        }
    }
    meter.add(end - at);
    Ok(())
}

fn found(file: &File, what: SeekFrom) -> io::Result<Option<u64>> {
    match seek(file, what) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Copies some of it, and says how much.
fn copy_some(from: &File, at: u64, (to, new): (&File, u64), most: u64) -> io::Result<u64> {
    let (mut here, mut there) = (at, new);
    let n = most.min(PIECE) as usize;
    match copy_file_range(from, Some(&mut here), to, Some(&mut there), n) {
        Ok(n) if n > 0 => return Ok(n as u64),
        Ok(_) | Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {}
        Err(e) => return Err(e.into()),
    }
    let mut buffer = vec![0; most.min(BUFFER) as usize];
    from.read_exact_at(&mut buffer, at)?;
    to.write_all_at(&buffer, new)?;
    Ok(buffer.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_are_copied_and_holes_stay_holes() {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let (start, new_start, len) = (8192, 4096, 40 * BUFFER);
        from.set_len(start + len + 4096).unwrap();
        to.set_len(new_start + len).unwrap();
        from.write_all_at(&[9; 4096], 0).unwrap();
        from.write_all_at(&[1; 5000], start).unwrap();
        let middle = vec![2; 18 * BUFFER as usize];
        from.write_all_at(&middle, start + 5 * BUFFER).unwrap();
        from.write_all_at(&[3; 4096], start + len - 4096).unwrap();
        // Behind the data is nothing that counts.
        from.write_all_at(&[4; 4096], start + len).unwrap();
        let meter = Meter::default();
        copy_data((&from, start), (&to, new_start), len, &meter).unwrap();
        let mut old = vec![0; len as usize];
        let mut new = vec![0; len as usize];
        from.read_exact_at(&mut old, start).unwrap();
        to.read_exact_at(&mut new, new_start).unwrap();
        assert!(old == new);
        let mut before = [7; 4096];
        to.read_exact_at(&mut before, 0).unwrap();
        assert_eq!(before, [0; 4096]);
        assert_eq!(to.metadata().unwrap().len(), new_start + len);
        let blocks =
            |file: &File| std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
        assert!(
            blocks(&to) <= blocks(&from),
            "{} {}",
            blocks(&to),
            blocks(&from)
        );
        assert_eq!(meter.look().unwrap().done, len);
    }
}
