//! crashsim
