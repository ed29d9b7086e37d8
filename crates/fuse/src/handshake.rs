//! The first message, in which both sides agree on the rest (`FUSE_INIT`).

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno as Os;
use zerocopy::{FromBytes, IntoBytes};

use crate::service::{KernelCapabilities, RequestedCapabilities, Service};
use crate::sys::PAGE;
use crate::wire::{InHeader, Init, InitIn, InitOut, MAJOR, MINOR, MINOR_LEAST, Opcode, OutHeader};

/// What a daemon has agreed on with the kernel, for the next daemon of the connection: the kernel says it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiation {
    /// What the kernel offered.
    pub offer: KernelCapabilities,
    /// What was agreed on of it.
    pub flags: Init,
    /// Most bytes of content in a message.
    pub payload: usize,
}

impl Negotiation {
    /// The same in words.
    pub fn to_words(self) -> [u64; 5] {
        [
            self.offer.minor.into(),
            self.offer.flags.bits(),
            self.offer.max_readahead.into(),
            self.flags.bits(),
            self.payload as u64,
        ]
    }

    /// The reverse; flags that are not known here stay in it.
    pub fn from_words([minor, offered, max_readahead, flags, payload]: [u64; 5]) -> Self {
        Self {
            offer: KernelCapabilities {
                minor: minor as u32,
                flags: Init::from_bits_retain(offered),
                max_readahead: max_readahead as u32,
            },
            flags: Init::from_bits_retain(flags),
            payload: payload as usize,
        }
    }

    /// What it was that this service agrees on, which has to be the same again. One that could take larger messages gets
    /// those that were agreed on.
    ///
    /// # Errors
    /// The service wants anything else; it does not accept the kernel.
    pub(crate) fn resume(&self, service: &dyn Service) -> io::Result<NegotiatedCapabilities> {
        service.accepts(&self.offer).map_err(io::Error::other)?;
        let (agreed, _) = agree(&self.offer, service, false);
        if agreed.flags != self.flags || agreed.payload < self.payload {
            let lacks = self.flags - agreed.flags;
            let has = agreed.flags - self.flags;
            return Err(io::Error::other(format!(
                "the last daemon has agreed with the kernel on something else: {lacks:?} and {} bytes, not {has:?} and {}",
                self.payload, agreed.payload
            )));
        }
        Ok(NegotiatedCapabilities {
            payload: self.payload,
            ..agreed
        })
    }
}

/// What was agreed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NegotiatedCapabilities {
    pub(crate) flags: Init,
    /// Most bytes of content in a message, either way.
    pub(crate) payload: usize,
}

impl NegotiatedCapabilities {
    pub(crate) fn setxattr_ext(&self) -> bool {
        self.flags.contains(Init::SETXATTR_EXT)
    }
}

/// The offer, as it came.
pub(crate) struct Greeting {
    unique: u64,
    pub(crate) offer: KernelCapabilities,
}

/// Whether an error of the device says that the connection is over, which an unmount is, too: a call that is under way
/// meanwhile, as for the release of a file that was just closed, may end as aborted.
pub(crate) fn has_ended(e: Os) -> bool {
    matches!(e, Os::NODEV | Os::CONNABORTED)
}

/// Waits for the kernel's offer. `None`: it went away without one.
pub(crate) fn greet(device: &OwnedFd) -> io::Result<Option<Greeting>> {
    let mut message = vec![0; 2 * PAGE];
    loop {
        let n = match rustix::io::read(device, &mut message) {
            Ok(0) => return Ok(None),
            Ok(n) => n,
            Err(Os::INTR | Os::AGAIN | Os::NOENT) => continue,
            Err(e) if has_ended(e) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let (header, body) = InHeader::read_from_prefix(&message[..n])
            .map_err(|_| io::Error::other("the kernel sent half a message"))?;
        if Opcode::of(header.opcode) != Some(Opcode::Init) {
            return Err(io::Error::other(format!(
                "the kernel began with message {} instead of FUSE_INIT",
                header.opcode
            )));
        }
        let mut init = InitIn::default();
        let known = body.len().min(size_of::<InitIn>());
        init.as_mut_bytes()[..known].copy_from_slice(&body[..known]);
        if init.major != MAJOR || init.minor < MINOR_LEAST {
            refuse(device, header.unique)?;
            return Err(io::Error::other(format!(
                "the kernel speaks FUSE {}.{}, but {MAJOR}.{MINOR_LEAST} (Linux 5.4) is needed",
                init.major, init.minor
            )));
        }
        let mut flags = u64::from(init.flags);
        if flags & Init::INIT_EXT.bits() != 0 {
            flags |= u64::from(init.flags2) << 32;
        }
        return Ok(Some(Greeting {
            unique: header.unique,
            offer: KernelCapabilities {
                minor: init.minor.min(MINOR),
                flags: Init::from_bits_truncate(flags),
                max_readahead: init.max_readahead,
            },
        }));
    }
}

fn refuse(device: &OwnedFd, unique: u64) -> io::Result<()> {
    let header = OutHeader {
        len: size_of::<OutHeader>() as u32,
        error: -libc::EPROTO,
        unique,
    };
    rustix::io::write(device, header.as_bytes())?;
    Ok(())
}

/// What is asked for where a service asks for these, but for rings.
pub fn wanted(wish: Init) -> Init {
    wish | Init::MAX_PAGES | Init::INIT_EXT | Init::BIG_WRITES | Init::SETXATTR_EXT
}

fn agree(
    offer: &KernelCapabilities,
    service: &dyn Service,
    ring: bool,
) -> (NegotiatedCapabilities, RequestedCapabilities) {
    let wish = service.init(offer);
    let mut want = wanted(wish.flags);
    want.set(Init::OVER_IO_URING, ring);
    let pages = (wish.max_write as usize).div_ceil(PAGE).max(1);
    let agreed = NegotiatedCapabilities {
        flags: offer.flags & want,
        payload: pages * PAGE,
    };
    (agreed, wish)
}

impl Greeting {
    /// Ends the connection before it has begun.
    pub(crate) fn refuse(&self, device: &OwnedFd) -> io::Result<()> {
        refuse(device, self.unique)
    }

    /// What would be agreed on. `ring`: the kernel is to send requests through rings.
    pub(crate) fn agree(
        &self,
        service: &dyn Service,
        ring: bool,
    ) -> (NegotiatedCapabilities, RequestedCapabilities) {
        agree(&self.offer, service, ring)
    }

    /// Answers. From here on the kernel sends requests.
    pub(crate) fn answer(
        &self,
        device: &OwnedFd,
        agreed: &NegotiatedCapabilities,
        wish: &RequestedCapabilities,
    ) -> io::Result<()> {
        let flags = agreed.flags.bits();
        let out = InitOut {
            major: MAJOR,
            minor: self.offer.minor,
            max_readahead: self.offer.max_readahead,
            flags: flags as u32,
            flags2: (flags >> 32) as u32,
            max_background: wish.max_background,
            congestion_threshold: wish.max_background / 4 * 3,
            max_write: wish.max_write,
            time_gran: 1,
            max_pages: (agreed.payload / PAGE).min(usize::from(u16::MAX)) as u16,
            ..InitOut::default()
        };
        let header = OutHeader {
            len: (size_of::<OutHeader>() + size_of::<InitOut>()) as u32,
            error: 0,
            unique: self.unique,
        };
        let mut message = [0; size_of::<OutHeader>() + size_of::<InitOut>()];
        message[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        message[size_of::<OutHeader>()..].copy_from_slice(out.as_bytes());
        rustix::io::write(device, &message)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unmount_ends_a_connection_and_a_failure_does_not() {
        assert!(has_ended(Os::NODEV) && has_ended(Os::CONNABORTED));
        assert!(
            ![Os::NOENT, Os::INTR, Os::AGAIN, Os::IO, Os::PERM]
                .map(has_ended)
                .contains(&true)
        );
    }
}
