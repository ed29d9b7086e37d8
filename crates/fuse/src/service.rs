//! What a file system is to this crate.

use crate::answer::{Answer, Out};
use crate::request::Request;
use crate::wire::Init;

/// What the kernel offers at the start of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Minor version of the protocol that both sides speak.
    pub minor: u32,
    /// What it is able to do.
    pub flags: Init,
    /// Most bytes that it reads ahead.
    pub max_readahead: u32,
}

/// What a file system asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Agreed on where the kernel offers it, left out where not.
    pub flags: Init,
    /// Most bytes of one read or write; at least 4096.
    pub max_write: u32,
    /// Requests that the kernel may have under way without anybody waiting (readahead, asynchronous
    /// direct I/O).
    pub max_background: u16,
}

/// A file system: called from several threads at once.
pub trait Service: Send + Sync {
    /// The kernel has come. Called once, before anything else.
    fn init(&self, offer: &Offer) -> Wish;

    /// Requests are answered from now on.
    fn started(&self);

    /// Answers a request: `out` holds the content where that is a success. What a request with
    /// nobody waiting for it is answered with is dropped.
    ///
    /// # Errors
    /// The errno for the caller. `ENOSYS` to many requests means: never ask again.
    fn answer(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer;
}
