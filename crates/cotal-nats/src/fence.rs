//! A fence: what a handle may write is asked before each write, so that no caller can forget to.

use std::fmt;
use std::sync::Arc;

/// Whether writes may go out now. Cheap to clone.
#[derive(Clone)]
pub struct Fence(Arc<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fence").field(&self.is_open()).finish()
    }
}

impl Fence {
    /// A fence that is asked before each write.
    pub fn new(may_write: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(may_write))
    }

    /// Whether writes may go out at this moment.
    pub(crate) fn is_open(&self) -> bool {
        (self.0)()
    }
}
