//! What a started process inherits: its standard streams, and nothing else.

/// The lowest descriptor that is no standard stream.
const FIRST_OTHER: i32 = 3;

/// Marks every descriptor above the standard streams, so that no process that is started from now
/// on inherits it.
///
/// Descriptors that this process opened are marked already. Those that it inherited itself, from a
/// shell or a supervisor, are not: a process that outlives the caller would hold its pipes open and
/// its file locks taken.
pub fn keep_from_children() {
    close_fds::set_fds_cloexec(FIRST_OTHER, &[]);
}
