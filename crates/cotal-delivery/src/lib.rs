//! The delivery daemon as a library: a lane is one space's daemon.
