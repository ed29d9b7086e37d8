//! What the kernel is told without having asked.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno as Os;
use zerocopy::IntoBytes;

use crate::wire::{InvalInode, NOTIFY_INVAL_INODE, OutHeader};

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
        let body = InvalInode {
            ino,
            // Negative: attributes alone, no content.
            off: -1,
            len: 0,
        };
        let header = OutHeader {
            len: (size_of::<OutHeader>() + size_of::<InvalInode>()) as u32,
            error: NOTIFY_INVAL_INODE,
            unique: 0,
        };
        let mut message = [0; size_of::<OutHeader>() + size_of::<InvalInode>()];
        message[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        message[size_of::<OutHeader>()..].copy_from_slice(body.as_bytes());
        match rustix::io::retry_on_intr(|| rustix::io::write(&self.0, &message)) {
            // It does not remember that inode.
            Ok(_) | Err(Os::NOENT) => (),
            Err(e) => tracing::warn!("the kernel may show old attributes of inode {ino}: {e}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn a_notification_is_an_answer_to_nothing() {
        let (ours, kernel) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        Notifier::new(&ours).unwrap().attributes_changed(0x1234);
        let mut message = [0; 64];
        let n = rustix::io::read(&kernel, &mut message).unwrap();
        let words: Vec<u64> = message[..n]
            .chunks(8)
            .map(|w| u64::from_le_bytes(w.try_into().unwrap()))
            .collect();
        assert_eq!(words, [2 << 32 | 40, 0, 0x1234, u64::MAX, 0]);
    }
}
