//! What the repository says of itself: documents, their links and their commands, and the shape of the code.

mod blocks;
mod book;
mod docs;
#[path = "../program/mod.rs"]
mod program;
mod shape;
