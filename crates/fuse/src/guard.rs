//! Calls of the file system, from which nothing but an answer may come.

use crate::answer::{Answer, Errno, Out};
use crate::deferred::Postponed;
use crate::request::Request;
use crate::service::Service;
use crate::wire::InHeader;

/// Ends the process when it is dropped by a panic.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The process that asked would wait forever, and later operations would build on what this
            // one left half done. What was acknowledged is durable; the next mount recovers.
            tracing::error!(fatal = true, "a request panicked: the daemon ends");
            std::process::abort();
        }
    }
}

/// Answers a request. A panic ends the process.
pub(crate) fn call(service: &dyn Service, request: &Request<'_>, out: &mut Out<'_>) -> Answer {
    let _bomb = Bomb;
    service.answer(request, out)
}

/// As [`call`], for `fsync` and `fsyncdir`, which may be answered later.
pub(crate) fn call_sync(
    service: &dyn Service,
    request: &Request<'_>,
    out: &mut Out<'_>,
    postpone: &mut dyn FnMut() -> Postponed,
) -> Option<Answer> {
    let _bomb = Bomb;
    service.answer_sync(request, out, postpone)
}

/// As [`call`], where the answer may wait for the kernel.
pub(crate) fn call_waiting(
    service: &dyn Service,
    request: &Request<'_>,
    out: &mut Out<'_>,
) -> Answer {
    let _bomb = Bomb;
    service.answer_waiting(request, out)
}

/// Does what answers have left to do. A panic ends the process.
pub(crate) fn catch_up(service: &dyn Service) {
    let _bomb = Bomb;
    service.catch_up();
}

/// As [`call`], for a request in two parts.
pub(crate) fn answer(
    service: &dyn Service,
    header: InHeader,
    argument: &[u8],
    payload: &[u8],
    out: &mut Out<'_>,
) -> Answer {
    let Ok(request) = Request::parse_split(header, argument, payload) else {
        tracing::warn!("message {} of the kernel makes no sense", header.opcode);
        return Err(Errno::IO);
    };
    call(service, &request, out)
}
