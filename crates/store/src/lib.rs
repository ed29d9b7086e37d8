//! What all operations share, below them: the opened volume as an [`Engine`](engine::Engine) of node pages, allocators,
//! caches, journal and page table; transactions on it; and what becomes of damage.
//!
//! Nothing here knows an operation, a kernel, or what works beside operations ([`reclaim`](engine::Engine::reclaim)
//! asks for it). The modules in the order of the data path.

pub mod txn;

pub mod engine;

pub mod ns;

pub mod ahead;
pub mod behind;
pub mod partial;

pub mod nodelog;

pub mod grace;

pub mod damage;
pub mod error;
pub mod metrics;
