//! What the kernel is told without having asked.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno as Os;
use zerocopy::{Immutable, IntoBytes};

use crate::handshake::has_ended;
use crate::sys::write_unreadable;
use crate::wire::{
    InvalInode, NOTIFY_INVAL_INODE, NOTIFY_RESEND, NOTIFY_STORE, OutHeader, StoreOut,
};

/// The kernel's ear: a further descriptor of the connection, whichever way requests come.
#[derive(Debug)]
pub struct Notifier(OwnedFd);

impl Notifier {
    /// Of the connection that this device belongs to.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn new(device: impl AsFd) -> io::Result<Self> {
        device.as_fd().try_clone_to_owned().map(Self)
    }

    /// The kernel asks for the attributes of this inode when it needs them next. It may be called while
    /// a request about the inode is being answered: for this the kernel takes no lock of it.
    pub fn attributes_changed(&self, ino: u64) {
        // Negative: attributes alone, no content.
        self.changed(ino, -1, 0);
    }

    /// The same for the attributes and for the pages that these bytes (at least one) are in: the kernel forgets
    /// these pages. Before this returns, it writes pages that were changed through a mapping, and waits for readers
    /// of the pages. So the caller must not be a thread that answers requests, nor hold what a read or a write needs.
    pub fn content_changed(&self, ino: u64, bytes: Range<u64>) {
        let len = (bytes.end - bytes.start).cast_signed();
        self.changed(ino, bytes.start.cast_signed(), len);
    }

    /// The kernel believes from now on that the file has at least `size` bytes, more than none, and asks for its
    /// attributes when it needs them next. Mappings, `sendfile` and the like go by what it believes, without
    /// asking. This may wait for readers of the page that these bytes end in, as [`Notifier::content_changed`] does.
    pub fn grown(&self, ino: u64, size: u64) {
        let body = StoreOut {
            nodeid: ino,
            offset: size - 1,
            size: 1,
            padding: 0,
        };
        let message = head(NOTIFY_STORE, &body, 1);
        // Linux learns the size (`fuse_notify_store`) before it looks for the byte, which it is not to have:
        // the page that it would put it into may have been changed through a mapping.
        match write_unreadable(&self.0, &message) {
            Err(e) => match Os::from_io_error(&e) {
                // It does not remember that inode.
                Some(Os::FAULT | Os::NOENT) => (),
                Some(e) if has_ended(e) => (),
                _ => tracing::warn!("the kernel may not see that inode {ino} has grown: {e}"),
            },
            Ok(()) => tracing::warn!("the kernel took a byte of inode {ino} that is not there"),
        }
    }

    /// Whether the kernel remembers this inode. Asks it by the way to look at the attributes anew. This may wait for
    /// answers to requests, as [`Notifier::content_changed`] does.
    pub fn knows(&self, ino: u64) -> bool {
        let (off, len) = (-1, 0);
        let message = head(NOTIFY_INVAL_INODE, &InvalInode { ino, off, len }, 0);
        let told = rustix::io::retry_on_intr(|| rustix::io::write(&self.0, &message));
        // With the connection the memory of it ends.
        !matches!(told, Err(e) if e == Os::NOENT || has_ended(e))
    }

    fn changed(&self, ino: u64, off: i64, len: i64) {
        let message = head(NOTIFY_INVAL_INODE, &InvalInode { ino, off, len }, 0);
        match rustix::io::retry_on_intr(|| rustix::io::write(&self.0, &message)) {
            // It does not remember that inode.
            Ok(_) | Err(Os::NOENT) => (),
            Err(e) if has_ended(e) => (),
            Err(e) => tracing::warn!("the kernel may show what inode {ino} was before: {e}"),
        }
    }
}

/// Has the kernel send again, marked as such, what any process has read from the connection and not answered.
///
/// # Errors
/// The kernel does not know how (before Linux 6.9); the connection has ended.
pub(crate) fn resend(device: &OwnedFd) -> io::Result<()> {
    let header = OutHeader {
        len: size_of::<OutHeader>() as u32,
        error: NOTIFY_RESEND,
        unique: 0,
    };
    match rustix::io::retry_on_intr(|| rustix::io::write(device, header.as_bytes())) {
        Ok(_) => Ok(()),
        Err(e) if has_ended(e) => Ok(()),
        Err(e) => Err(io::Error::other(format!(
            "the kernel cannot send requests again: {e}"
        ))),
    }
}

/// A notification, but for `more` bytes behind it. Both kinds are of the same size.
fn head<T: IntoBytes + Immutable>(kind: i32, body: &T, more: usize) -> [u8; LEN] {
    const { assert!(size_of::<OutHeader>() + size_of::<T>() == LEN) }
    let header = OutHeader {
        len: (LEN + more) as u32,
        error: kind,
        unique: 0,
    };
    let mut message = [0; LEN];
    message[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
    message[size_of::<OutHeader>()..].copy_from_slice(body.as_bytes());
    message
}

/// Bytes of a notification.
const LEN: usize = 40;

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn words(of: impl FnOnce(&Notifier)) -> Vec<u64> {
        let (ours, kernel) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        of(&Notifier::new(&ours).unwrap());
        let mut message = [0; 64];
        let n = rustix::io::read(&kernel, &mut message).unwrap();
        message[..n]
            .chunks(8)
            .map(|w| u64::from_le_bytes(w.try_into().unwrap()))
            .collect()
    }

    #[test]
    fn a_notification_is_an_answer_to_nothing() {
        let attributes = words(|n| n.attributes_changed(0x1234));
        assert_eq!(attributes, [2 << 32 | 40, 0, 0x1234, u64::MAX, 0]);
        let content = words(|n| n.content_changed(0x1234, 4096..8193));
        assert_eq!(content, [2 << 32 | 40, 0, 0x1234, 4096, 4097]);
    }

    #[test]
    fn a_size_comes_without_the_byte_that_it_ends_with() {
        let file = rustix::fs::memfd_create("device", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(file);
        let notifier = Notifier::new(&file).unwrap();
        notifier.grown(0x1234, 4097);
        // Where the kernel takes what it can read.
        let mut message = Vec::new();
        std::io::Seek::rewind(&mut file).unwrap();
        std::io::Read::read_to_end(&mut file, &mut message).unwrap();
        let words: Vec<u64> = message
            .chunks(8)
            .map(|w| u64::from_le_bytes(w.try_into().unwrap()))
            .collect();
        assert_eq!(words, [4 << 32 | 41, 0, 0x1234, 4096, 1]);
    }
}
