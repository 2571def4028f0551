//! Trust material: operator, account and user JWTs and creds files.
//!
//! Purpose: the one place that holds signing keys. The delivery daemon never depends on this
//! crate, so it cannot hold one. Invariant: no user is minted without a permissions block (a
//! system-account user without one is a broker admin, and an empty allow list would allow all),
//! and no seed leaves a `0600` file except inside the credential it belongs to.
//!
//! The JWTs are made here, without `nats-jwt-rs`: its one release serialises a claim wrongly, and
//! the form is small enough to be tested whole against a real broker.
//!
//! Instants are arguments, in Unix seconds as JWTs count them.

mod account;
mod claims;
mod error;
mod jwt;
mod profile;
mod retained;
mod space_file;
mod trust;
mod user;
mod verify;

pub use account::{AccountKeys, SpaceAccount};
pub use error::{MintError, TrustError};
pub use profile::{mint_named, mint_of_rotation, mint_one_use, mint_profile, mint_system_profile};
pub use retained::{retain_system, retained_system};
pub use trust::Trust;
pub use user::{CONNECT_HEADROOM, Minted, UserKey, UserSpec, check_connect_line, mint_user};
pub use verify::{UnfitError, read_creds};
