//! State of an open engine that commands and background work share.

pub(crate) mod watermark;
