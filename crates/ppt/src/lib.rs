//! ppt
