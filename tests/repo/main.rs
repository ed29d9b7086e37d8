//! What the repository says of itself: documents and their links, and the shape of the code.

mod docs;
#[path = "../program/mod.rs"]
mod program;
mod shape;
