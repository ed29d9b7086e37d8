//! Whether what the mount believes to be free is what is free.

use quayfs_background::{checkpoint, digest};
use quayfs_fs::{Fs, extents};
use quayfs_layout::inode::Inode;
use quayfs_store::damage::Watch;
use quayfs_store::nodelog::NodeLog;
use quayfs_store::ns::alloc::{Allocator, Kind};
use quayfs_store::ns::node::NodeStore;
use quayfs_store::ns::quota::Quotas;

use crate::model::Model;
use crate::quota;

/// Digests, checkpoints and zeroes until nothing is left to do. Operations rest meanwhile.
pub fn finish_background(fs: &Fs) {
    fs.finish_chores();
    fs.sync_all().expect("sync");
    digest::digest_all(&fs.e).expect("digest");
    fs.e.reclaim_windows();
    for _ in 0..200 {
        let moved = checkpoint::round(&fs.e).expect("round").slots;
        checkpoint::zero_freed(&fs.e).expect("zeroing pass");
        if moved == 0 && fs.e.lbns.pending() == 0 {
            return;
        }
    }
    panic!(
        "{} slots staged, {} blocks pending",
        fs.e.staged.len(),
        fs.e.lbns.pending()
    );
}

/// Compares every counter in DRAM with what the media say. The mount is settled and nothing runs.
pub fn check(fs: &Fs, m: &Model) -> Result<(), String> {
    let e = &fs.e;
    let g = e.config.geometry;
    let fresh = NodeStore::attach(e.region.clone(), g, e.config.salt(), Watch::bystander());
    let same = |what: &str, dram: u64, media: u64| {
        if dram == media {
            Ok(())
        } else {
            Err(format!("{what}: {dram} in DRAM, {media} on the media"))
        }
    };
    let lent = e.node_log().map_or(0, NodeLog::blocks);
    same("node pages in use", e.nodes.live(), fresh.live())?;
    let kinds = [
        (Kind::Lbn, g.lbn_bitmap_base, g.visible_blocks()),
        (Kind::Inode, g.ino_bitmap_base, g.inodes()),
        (Kind::Node, g.dyn_bitmap_base, g.dyn_nodes()),
    ];
    for (kind, base, total) in kinds {
        let media = Allocator::open(&fresh, kind, base, total).map_err(|e| e.to_string())?;
        let lent = if kind == Kind::Lbn { lent } else { 0 };
        let free = e.allocator(kind).free() + lent;
        same(&format!("free {kind:?}s"), free, media.free())?;
    }
    let media = Quotas::open(&fresh, &e.config).map_err(|e| e.to_string())?;
    let list = |q: &Quotas| -> Vec<_> {
        let all = quota::all(q).into_iter();
        all.map(|t| (t.subject, t.usage(), t.limits(), t.logged_grace()))
            .collect()
    };
    if list(&e.quotas) != list(&media) {
        return Err(format!(
            "quotas: {:?} in DRAM, {:?} on the media",
            list(&e.quotas),
            list(&media)
        ));
    }
    same(
        "free LBNs",
        g.visible_blocks() - e.lbns.free() - lent,
        m.allocated(),
    )?;
    owners(fs, m)
}

/// No block belongs to two files.
fn owners(fs: &Fs, m: &Model) -> Result<(), String> {
    let mut all = Vec::new();
    for (&ino, _) in m.nodes.iter().filter(|(_, n)| n.is_file()) {
        let handle =
            fs.e.inodes
                .get(&fs.e.nodes, ino)
                .map_err(|e| e.to_string())?;
        if !handle.with(Inode::is_file) {
            return Err(format!("inode {ino} is no file"));
        }
        extents::ensure(&fs.e, &handle).map_err(|e| e.to_string())?;
        let list =
            extents::with(&handle, |x| x.iter().collect::<Vec<_>>()).map_err(|e| e.to_string())?;
        all.extend(
            list.into_iter()
                .map(|(r, lbn)| (lbn, lbn + (r.end - r.start), ino)),
        );
    }
    all.sort_unstable();
    match all.windows(2).find(|w| w[0].1 > w[1].0) {
        Some(w) => Err(format!(
            "inodes {} and {} share LBN {}",
            w[0].2, w[1].2, w[1].0
        )),
        None => Ok(()),
    }
}
