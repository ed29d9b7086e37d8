//! The search for crashes after which something is wrong.
//!
//! | module | what |
//! |---|---|
//! | [`alphabet`] | the steps that programs are made of |
//! | [`program`] | a program, a mode, and how both are written in one line |
//! | [`scenarios`] | programs that lead to one place |
//! | [`repairs`](mod@repairs) | repairs of damage of every kind |
//! | [`run`](mod@run) | many programs, as long as there is time; what was covered |
//! | [`mutants`] | the same with one flush or fence forgotten, which has to be noticed |
//! | [`place`] | what a place in the source is called |

pub mod alphabet;
pub mod mutants;
pub mod place;
pub mod program;
pub mod repairs;
pub mod run;
pub mod scenarios;
