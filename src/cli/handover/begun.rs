//! What a daemon leaves to the one after it, from its first request on.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use quayfs_fuse::{Gate, Keeper, Left, Negotiation};
use quayfs_restart::Requests;
use quayfs_server::session::Succession;

use super::{ANSWERED, CONNECTION, Holder, Memory, POSTINGS, REQUESTS, STORES};

impl Keeper for Kept {
    fn share(&self, descriptor: BorrowedFd<'_>) {
        self.holder.store(CONNECTION, descriptor);
    }

    fn agreed(&self, negotiation: Negotiation) {
        let mut words = self.requests.connection();
        words[..5].copy_from_slice(&negotiation.to_words());
        self.requests.connect(&words);
    }

    fn gate(&self) -> &Gate {
        self.holder.gate()
    }
}

/// Where the connection is kept.
struct Kept {
    holder: Holder,
    requests: Arc<Requests>,
}

/// How a daemon will go on after the first one, which uses this `memory`. `number`: that of the mount.
pub fn begin(holder: Holder, memory: Memory, number: Option<&str>) -> Succession {
    let requests = memory.requests;
    let mut words = requests.connection();
    let numbers = number.and_then(|n| n.split_once(':'));
    if let Some((major, minor)) = numbers.and_then(|(a, b)| a.parse().ok().zip(b.parse().ok())) {
        (words[6], words[7]) = (major, minor);
    }
    requests.connect(&words);
    holder.store(REQUESTS, requests.file().as_fd());
    holder.store(STORES, memory.stores.as_fd());
    holder.store(POSTINGS, memory.postings.file().as_fd());
    succession(holder, requests, None)
}

pub(super) fn succession(
    holder: Holder,
    requests: Arc<Requests>,
    left: Option<Left>,
) -> Succession {
    let keeper = Box::new(Kept {
        holder: holder.clone(),
        requests: Arc::clone(&requests),
    });
    Succession {
        requests,
        keeper,
        left,
        answered: Box::new(move || holder.tell(ANSWERED)),
    }
}
