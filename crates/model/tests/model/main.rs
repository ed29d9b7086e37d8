//! The models of the protocol hold, miss what is taken out of them, and are those of the documents.

mod models;
mod orderings;
mod page;
