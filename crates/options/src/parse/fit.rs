//! Which options exclude each other.

use super::super::{
    Acls, AtimePolicy, DataMode, Durability, MountOptions, OpenPolicy, OptionError, Permissions,
    Restart, Transport,
};
use super::{Parser, SAID_TWICE};

impl Parser<'_> {
    /// The options, if they fit together.
    pub(super) fn finish(self) -> Result<MountOptions, OptionError> {
        let o = &self.options;
        data_and_durability(o)?;
        self.recovery()?;
        node_log(o)?;
        atomic_writes(o)?;
        restart(o)?;
        permissions(o)?;
        access_times(o)?;
        self.ablated_checkpoint()?;
        Ok(self.options)
    }

    fn recovery(&self) -> Result<(), OptionError> {
        match self.norecovery {
            Some(word) if !self.options.read_only => conflict(
                word,
                "rw",
                "a mount that writes has to recover what a crash has left; say ro, which writes to no device",
            ),
            _ => Ok(()),
        }
    }

    fn ablated_checkpoint(&self) -> Result<(), OptionError> {
        let o = &self.options;
        if let Some(ablated) = o.ablation.checkpoint
            && o.checkpoint != ablated
            && let Some((_, said)) = self.said.iter().find(|(a, _)| *a == "checkpoint")
        {
            let second = format!("ablation=checkpoint:{}", ablated.name());
            return conflict(*said, second, SAID_TWICE);
        }
        Ok(())
    }
}

fn data_and_durability(o: &MountOptions) -> Result<(), OptionError> {
    if o.data != DataMode::Journal && o.durability == Some(Durability::Op) {
        return conflict(
            o.data.to_string(),
            "durability=op",
            "data outside the journal is durable at a commit only; drop one of them",
        );
    }
    Ok(())
}

fn node_log(o: &MountOptions) -> Result<(), OptionError> {
    let may_be_op = o.durability.is_none() && o.data == DataMode::Journal;
    if o.ablation.node_log_on_device && (may_be_op || o.durability == Some(Durability::Op)) {
        return conflict(
            "ablation=nodelog:ssd",
            "durability=op",
            "records reach the data device at a commit; say durability=commit, or data=ordered",
        );
    }
    Ok(())
}

fn atomic_writes(o: &MountOptions) -> Result<(), OptionError> {
    if o.atomic_writes && o.writeback_cache {
        return conflict(
            "atomic_writes",
            "writeback",
            "what the kernel collects has no order; drop one of them",
        );
    }
    if o.atomic_writes && o.open == OpenPolicy::Elide {
        return conflict(
            "atomic_writes",
            "open=elide",
            "what belongs together is told by the open file it was written through; drop one of them",
        );
    }
    Ok(())
}

fn restart(o: &MountOptions) -> Result<(), OptionError> {
    if o.restart == Some(Restart::On) && o.transport == Transport::Uring {
        return conflict(
            "restart",
            "transport=uring",
            "what the kernel has put into a ring is lost with the daemon; drop one of them",
        );
    }
    Ok(())
}

fn permissions(o: &MountOptions) -> Result<(), OptionError> {
    if o.permissions != Permissions::Owner {
        return Ok(());
    }
    if o.allow_other {
        return conflict(
            "permissions=owner",
            "allow_other",
            "others may enter only where the kernel checks permissions; drop one of them",
        );
    }
    if o.idmap {
        return conflict(
            "permissions=owner",
            "idmap",
            "the kernel maps ids only where it checks permissions; drop one of them",
        );
    }
    if o.acls == Some(Acls::On) {
        return conflict(
            "permissions=owner",
            "acl",
            "lists mean something only where the kernel checks permissions; drop one of them",
        );
    }
    Ok(())
}

fn access_times(o: &MountOptions) -> Result<(), OptionError> {
    if o.atime == AtimePolicy::StrictAtime && o.open == OpenPolicy::Elide {
        return conflict(
            "strictatime",
            "open=elide",
            "the kernel reports every read only of files that it may not open by itself; drop one of them",
        );
    }
    Ok(())
}

fn conflict(
    first: impl Into<String>,
    second: impl Into<String>,
    why: &'static str,
) -> Result<(), OptionError> {
    Err(OptionError::Contradiction {
        first: first.into(),
        second: second.into(),
        why,
    })
}
