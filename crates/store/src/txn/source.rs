//! Where pages come from: what is published, what a transaction has changed, what is only looked at.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use quayfs_layout::BLOCK;

use crate::damage::Watch;
use crate::error::{FsError, Result};
use crate::ns::node::{NodeStore, Page, PageBytes};
use crate::ns::tags::Tags;

/// A source of the newest version of node pages.
pub trait PageSource {
    /// The newest version of node `id`.
    fn read(&self, id: u32) -> Result<PageRef<'_>>;

    /// The node as its home has it; `None` if it has none.
    fn home(&self, id: u32) -> Result<Option<PageBytes>>;

    /// Where the nodes are.
    fn store(&self) -> &NodeStore;

    /// What a page says cannot be true: the watch of this source takes notice.
    fn damaged(&self, what: &dyn fmt::Display) -> FsError;
}

impl<S: PageSource + ?Sized> PageSource for Arc<S> {
    fn read(&self, id: u32) -> Result<PageRef<'_>> {
        (**self).read(id)
    }

    fn home(&self, id: u32) -> Result<Option<PageBytes>> {
        (**self).home(id)
    }

    fn store(&self) -> &NodeStore {
        (**self).store()
    }

    fn damaged(&self, what: &dyn fmt::Display) -> FsError {
        (**self).damaged(what)
    }
}

/// A node page, shared or private to a transaction.
pub enum PageRef<'a> {
    /// Published.
    Shared(Arc<Page>),
    /// Made by the transaction that shows it.
    Own(&'a PageBytes),
    /// Published, with what the transaction that shows it has changed.
    Changed(PageBytes),
}

impl PageRef<'_> {
    /// Where the entries of a leaf of a directory are.
    pub fn tags(&self) -> Cow<'_, Tags> {
        match self {
            Self::Shared(p) => Cow::Borrowed(p.tags()),
            Self::Own(p) => Cow::Owned(Tags::of(&p[..])),
            Self::Changed(p) => Cow::Owned(Tags::of(&p[..])),
        }
    }
}

impl Deref for PageRef<'_> {
    type Target = [u8; BLOCK];

    fn deref(&self) -> &[u8; BLOCK] {
        match self {
            Self::Shared(p) => p.bytes(),
            Self::Own(p) => p,
            Self::Changed(p) => p,
        }
    }
}

impl PageSource for NodeStore {
    fn read(&self, id: u32) -> Result<PageRef<'_>> {
        self.page(id).map(PageRef::Shared)
    }

    fn home(&self, id: u32) -> Result<Option<PageBytes>> {
        Self::home(self, id)
    }

    fn store(&self) -> &NodeStore {
        self
    }

    fn damaged(&self, what: &dyn fmt::Display) -> FsError {
        self.watch().damaged(what)
    }
}

/// Pages for a caller that looks for damage: what is found has no consequence for the mount.
pub struct Aside<'s> {
    store: &'s NodeStore,
    watch: Watch,
}

impl<'s> Aside<'s> {
    /// A view of the same pages.
    pub fn new(store: &'s NodeStore) -> Self {
        Self {
            store,
            watch: Watch::bystander(),
        }
    }

    /// The watch that counts what is found.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }
}

impl PageSource for Aside<'_> {
    fn read(&self, id: u32) -> Result<PageRef<'_>> {
        let page = self.store.look_page(id);
        page.map(PageRef::Shared).map_err(|f| self.watch.damaged(f))
    }

    fn home(&self, id: u32) -> Result<Option<PageBytes>> {
        self.store.look_home(id).map_err(|f| self.watch.damaged(f))
    }

    fn store(&self) -> &NodeStore {
        self.store
    }

    fn damaged(&self, what: &dyn fmt::Display) -> FsError {
        self.watch.damaged(what)
    }
}
