//! Memory for the content of files, touched before any measurement: the first touch of a page costs
//! more than a request.

use crossbeam_queue::SegQueue;

/// A page.
pub const PAGE: usize = 4096;

/// Content of one page.
pub type Page = Box<[u8; PAGE]>;

/// Pages that are not in use.
#[derive(Debug, Default)]
pub struct Pool {
    free: SegQueue<Page>,
}

impl Pool {
    /// Makes room for so many bytes.
    pub fn with(bytes: usize) -> Self {
        let pool = Self::default();
        for _ in 0..bytes / PAGE {
            pool.free.push(Box::new([1; PAGE]));
        }
        pool
    }

    /// A page with zeros.
    pub fn zeroed(&self) -> Page {
        let mut page = self.any();
        page.fill(0);
        page
    }

    /// A page with anything in it.
    pub fn any(&self) -> Page {
        self.free.pop().unwrap_or_else(|| Box::new([0; PAGE]))
    }

    /// Takes a page back.
    pub fn put(&self, page: Page) {
        self.free.push(page);
    }
}
