//! The mint helpers of whoever provisions the stores of delivery hosts (standby provisioning).
//!
//! Each gives the text of one bounded credential, to be written under its key of a host's store:
//! `cotal_workspace::delivery_creds_key` and its kin. The signing keys stay with the caller.

use cotal_trust::UserKey;
use cotal_wire::creds::KICKS_ARE_THE_HOSTS;
use cotal_workspace::{Secret, SecretKind};

use crate::authority::Authority;
use crate::clock::unix_seconds;
use crate::credentials::mint;
use crate::error::ManagerError;

/// A profile of the space's account that a delivery host runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostProfile {
    /// The daemon itself.
    Delivery,
    /// The writer of the membership feed.
    MembershipRw,
}

/// Mints a credential of `profile` for `key`, which stays the same across renewals and differs from
/// that of every other host (CRD-7).
///
/// # Errors
/// When it cannot be signed.
pub fn mint_creds(
    authority: &Authority,
    profile: HostProfile,
    key: &UserKey,
) -> Result<Secret, ManagerError> {
    let kind = match profile {
        HostProfile::Delivery => SecretKind::Delivery,
        HostProfile::MembershipRw => SecretKind::MembershipRw,
    };
    Ok(mint(authority, &kind, key, unix_seconds(), KICKS_ARE_THE_HOSTS)?.creds)
}

/// Mints the `$SYS` observer of the space's accounts. `rotation` is that of the evictor minted with
/// it; none where the daemon never kicks itself: in a multi-space host, or on a broker of several
/// spaces.
///
/// # Errors
/// When it cannot be signed.
pub fn mint_membership_observer_creds(
    authority: &Authority,
    key: &UserKey,
    rotation: Option<&str>,
) -> Result<Secret, ManagerError> {
    let rotation = rotation.unwrap_or(KICKS_ARE_THE_HOSTS);
    Ok(mint(authority, &SecretKind::MembershipObserver, key, unix_seconds(), rotation)?.creds)
}

/// Mints a kick-only `$SYS` user. Its kick reaches every account of the broker, so it belongs on a
/// trusted delivery host that serves the only space of its broker, and nowhere else.
///
/// # Errors
/// When it cannot be signed.
pub fn mint_connection_evictor_creds(
    authority: &Authority,
    key: &UserKey,
    rotation: &str,
) -> Result<Secret, ManagerError> {
    Ok(mint(authority, &SecretKind::ConnectionEvictor, key, unix_seconds(), rotation)?.creds)
}
