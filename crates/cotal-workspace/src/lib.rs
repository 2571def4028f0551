//! The files of a workspace root: secrets, records, registry, logs and manifest (`wire.md` §9).
//!
//! Purpose: one place knows where each file lives, how it is written so that a crash leaves the
//! old or the new content and never half of one, and how strictly it is read back. Invariant: a
//! secret is `0600` inside a `0700` directory, and no write follows a symbolic link.
//!
//! Nothing here reads the environment or prints; paths and instants are arguments.

pub mod disk;
pub mod files;
pub mod host;
pub mod identity;
pub mod lock;
pub mod log;
pub mod manifest;
pub mod mesh;
pub mod process;
pub mod record;
pub mod registry;
pub mod root;
pub mod secret;

mod store;
mod strict;

pub use files::FileError;
pub use host::{HostFile, HostLane};
pub use identity::{Identity, Share};
pub use lock::Reservation;
pub use log::RotatingLog;
pub use manifest::HostManifest;
pub use mesh::{Durability, MeshFile, Mode};
pub use record::{Component, PidFile, RecordState};
pub use registry::{MeshEntry, MeshRegistry};
pub use root::{Root, RootError, Segment, SegmentError};
pub use secret::{
    Secret, SecretKey, SecretKind, connection_evictor_creds_key, delivery_creds_key,
    membership_observer_creds_key, membership_rw_creds_key,
};
pub use store::{
    FileStore, MemoryStore, SecretStore, StoreError, StoreIdentity, workspace_secret_store,
};
