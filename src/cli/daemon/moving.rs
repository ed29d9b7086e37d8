//! What a daemon has to do with a part of its volume that is moved meanwhile: to note what it writes, or to copy the rest
//! and go on from the new place.

use std::sync::Arc;

use quayfs_fs::volume::{Access, Opening, Volume};
use quayfs_migrate::{LeftBehind, MigrateError, Watched, finish};
use quayfs_restart::{MoveOutcome, Moves};
use tracing::{error, info, warn};

use super::{Job, PREDECESSOR};
use crate::cli::handover::Handover;

/// Names of the jobs: all that is written to the data device is noted; the volume goes on from the new place.
pub const WATCH: &str = "watch";
pub const FINISH: &str = "finish";

/// The job, if it is called so, and is not done.
fn job(handover: Option<&Handover>, name: &str) -> Option<Moves> {
    let job = handover?.job().filter(|job| job.name == name)?;
    let moves = job.file.try_clone().and_then(Moves::left);
    let moves = moves.inspect_err(|e| warn!("a part of the volume was to be moved: {e}"));
    moves.ok().filter(Moves::is_open)
}

/// Whether a part is being moved, or may be: the process that copies may have died.
pub(super) fn is_under_way(handover: &Handover) -> bool {
    [WATCH, FINISH]
        .iter()
        .any(|name| job(Some(handover), name).is_some())
}

/// What says whether something is still moving a part, if this daemon is to note what it writes.
pub(super) fn asked(handover: &Handover) -> Option<Box<dyn Fn() -> bool + Send + Sync>> {
    let moves = job(Some(handover), WATCH)?;
    Some(Box::new(move || moves.is_open() && moves.is_attended()))
}

/// Before the volume is opened: has it lead to the new place. Whatever becomes of that, the volume can be opened.
pub(super) fn before_opening(job_of_mount: &Job, handover: Option<&Handover>) {
    let (Some(handover), Some(moves)) = (handover, job(handover, FINISH)) else {
        return;
    };
    let how = Opening {
        private: true,
        memory: Some(job_of_mount.options.memory_for_region()),
        ..Opening::new(Access::ReadWrite, PREDECESSOR)
    };
    let path = quayfs_shown::path(&moves.path());
    let memory = handover.memory();
    let left = LeftBehind {
        stores: &memory.stores,
        fencing_token: memory.requests.fencing_token(),
    };
    let outcome = match finish(&job_of_mount.volume, &moves, how, &left) {
        Ok(()) => {
            info!("a part of the volume is in {path} now");
            MoveOutcome::Moved
        }
        Err(e @ MigrateError::Uncertain { .. }) => {
            error!("{e}");
            MoveOutcome::Failed(e.to_string())
        }
        Err(e) => {
            warn!("a part of the volume is not moved to {path}, and stays where it is: {e}");
            MoveOutcome::Failed(e.to_string())
        }
    };
    moves.conclude(&outcome);
}

/// After it has been opened, and before anything is written: has that noted.
pub(super) fn after_opening(volume: &mut Volume, handover: Option<&Handover>) {
    if let Some(moves) = job(handover, WATCH) {
        info!("what is written to the data device is noted, since it is being copied");
        volume.watch_device(|device| Arc::new(Watched::new(device, Arc::new(moves))));
    }
}
