//! Byte strings that do not fit an inode: link targets and extended-attribute sets, in a chain
//! of node pages that belongs to one inode.

use quayfs_layout::Ino;
use quayfs_layout::node::{self, HEADER, NodeKind, OFF_NEXT, OFF_USED, PAYLOAD, used};

use crate::error::Result;
use crate::txn::{PageSource, Txn};

/// Node pages that `len` bytes take.
pub fn pages_for(len: usize) -> u64 {
    len.div_ceil(PAYLOAD) as u64
}

/// Writes a new chain and returns its first page, 0 for no bytes.
pub fn create(txn: &mut Txn<'_>, ino: Ino, bytes: &[u8]) -> Result<u32> {
    let mut next = 0u32;
    for piece in bytes.chunks(PAYLOAD).rev() {
        let id = txn.new_node(NodeKind::Blob, ino)?;
        txn.write(id, OFF_NEXT, &next.to_le_bytes());
        txn.write(id, OFF_USED, &(piece.len() as u32).to_le_bytes());
        txn.write(id, HEADER, piece);
        next = id;
    }
    Ok(next)
}

/// Calls `each` with the pages of a chain of at most `max` bytes.
pub fn walk(
    src: &dyn PageSource,
    ino: Ino,
    first: u32,
    max: usize,
    mut each: impl FnMut(u32, &[u8]),
) -> Result<()> {
    let mut id = first;
    let mut left = pages_for(max);
    while id != 0 {
        let page = src.read(id)?;
        let n = used(&page[..]) as usize;
        let ours = node::kind(&page[..]) == Some(NodeKind::Blob) && node::owner(&page[..]) == ino;
        if !ours || n > PAYLOAD || left == 0 {
            let what = format_args!("inode {ino}: {id} is not its blob page");
            return Err(src.damaged(&what));
        }
        left -= 1;
        each(id, &page[HEADER..HEADER + n]);
        id = node::next(&page[..]);
    }
    Ok(())
}

/// Reads a chain.
pub fn read(src: &dyn PageSource, ino: Ino, first: u32, max: usize) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    walk(src, ino, first, max, |_, piece| {
        out.extend_from_slice(piece)
    })?;
    Ok(out)
}

/// Replaces bytes of a chain from byte `at` on, in its pages.
pub fn overwrite(
    txn: &mut Txn<'_>,
    ino: Ino,
    (first, max): (u32, usize),
    at: usize,
    bytes: &[u8],
) -> Result<()> {
    let mut pages = Vec::new();
    walk(txn, ino, first, max, |id, piece| {
        pages.push((id, piece.len()))
    })?;
    let mut start = 0;
    for (id, len) in pages {
        let (from, to) = (at.max(start), (at + bytes.len()).min(start + len));
        if from < to {
            txn.write(id, HEADER + from - start, &bytes[from - at..to - at]);
        }
        start += len;
    }
    Ok(())
}

/// Frees a chain; returns how many pages it had.
pub fn free(txn: &mut Txn<'_>, ino: Ino, first: u32, max: usize) -> Result<u64> {
    let mut ids = Vec::new();
    walk(txn, ino, first, max, |id, _| ids.push(id))?;
    for id in &ids {
        txn.free_node(*id)?;
    }
    Ok(ids.len() as u64)
}
