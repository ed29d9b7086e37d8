//! What a file system is to this crate.

use crate::answer::{Answer, Out};
use crate::deferred::Postponed;
use crate::request::Request;
use crate::wire::Init;

/// What the kernel offers at the start of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelCapabilities {
    /// Minor version of the protocol that both sides speak.
    pub minor: u32,
    /// What it is able to do.
    pub flags: Init,
    /// Most bytes that it reads ahead.
    pub max_readahead: u32,
}

/// What a file system asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedCapabilities {
    /// Agreed on where the kernel offers it, left out where not.
    pub flags: Init,
    /// Most bytes of one read or write; at least 4096.
    pub max_write: u32,
    /// Requests that the kernel may have under way without a process waiting for them (readahead,
    /// asynchronous direct I/O).
    pub max_background: u16,
}

/// A file system: called from several threads at once.
pub trait Service: Send + Sync {
    /// The kernel has come. Called once, before anything else.
    fn init(&self, offer: &KernelCapabilities) -> RequestedCapabilities;

    /// Whether it can live with what the kernel offers; if not, why not, and the connection is refused. Called
    /// before [`Service::init`].
    ///
    /// # Errors
    /// What is missing, for the user.
    fn accepts(&self, _offer: &KernelCapabilities) -> Result<(), String> {
        Ok(())
    }

    /// Requests are answered from now on.
    fn started(&self);

    /// Answers a request: `out` holds the content where that is a success. The answer to a request
    /// that nothing waits for is dropped.
    ///
    /// # Errors
    /// The errno for the caller. `ENOSYS` to many requests means: never ask again.
    fn answer(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer;

    /// Answers `fsync` and `fsyncdir`, or takes a [`Postponed`] and returns `None`: then that is answered, now or later
    /// and by any thread. What it waits for must not need another answer of the thread that calls.
    fn answer_sync(
        &self,
        request: &Request<'_>,
        out: &mut Out<'_>,
        postpone: &mut dyn FnMut() -> Postponed,
    ) -> Option<Answer> {
        let _ = postpone;
        Some(self.answer(request, out))
    }

    /// Whether the answer to an `ioctl` waits for the kernel, which may send other requests meanwhile: then a
    /// thread that serves no other requests calls [`Service::answer_waiting`], if there are such threads
    /// ([`Options::patient`](crate::Options::patient)). This is not asked for any other kind of request.
    fn waits_for_kernel(&self, _request: &Request<'_>) -> bool {
        false
    }

    /// As [`Service::answer`], by a thread that may wait for the kernel. Where too many answers wait already,
    /// so that the kernel could have no place left for what it sends meanwhile, [`Service::answer`] is called
    /// all the same, and [`Service::catch_up`] afterwards.
    ///
    /// # Errors
    /// As there.
    fn answer_waiting(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer {
        self.answer(request, out)
    }

    /// Does what answers left undone because they could not wait for the kernel. Nothing waits for it.
    fn catch_up(&self) {}
}
