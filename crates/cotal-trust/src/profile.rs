//! Users of the wire's profiles (`wire.md` §1 for the tags, §8 for the permissions).

use cotal_wire::Space;
use cotal_wire::ids::Principal;
use cotal_wire::profile::{Profile, SystemProfile};

use crate::account::{AccountKeys, SpaceAccount};
use crate::error::MintError;
use crate::user::{Minted, UserKey, UserSpec, mint_user};

/// Mints a user of the account of a space that its profile lives in. It expires at `expires_at`
/// (Unix seconds, `None` for never); `Profile::lifetime` says how long a profile's credentials
/// live.
///
/// # Errors
/// As [`mint_user`].
pub fn mint_profile(
    account: &SpaceAccount,
    key: &UserKey,
    profile: &Profile,
    issued_at: i64,
    expires_at: Option<i64>,
) -> Result<Minted, MintError> {
    mint_named(account, key, profile, profile.name(), issued_at, expires_at)
}

/// The same under a name of its own: an agent's display name, which its clients then know.
///
/// # Errors
/// As [`mint_user`].
pub fn mint_named(
    account: &SpaceAccount,
    key: &UserKey,
    profile: &Profile,
    name: &str,
    issued_at: i64,
    expires_at: Option<i64>,
) -> Result<Minted, MintError> {
    let conn = key.conn_id()?;
    let home = profile.account();
    let mut tags = tags(account.space(), profile, &key.principal()?);
    tags.extend(account.tags_of(home));
    let spec = UserSpec {
        name,
        key,
        tags,
        permissions: profile.permissions(account.space(), &conn, account.topology()),
        issued_at,
        expires_at,
    };
    mint_user(account.keys_of(home), &spec)
}

/// Mints a user of the system account that expires after its profile's lifetime.
///
/// `space` is the space it serves, when it serves only one.
///
/// # Errors
/// As [`mint_user`].
pub fn mint_system_profile(
    system: &AccountKeys,
    key: &UserKey,
    profile: &SystemProfile,
    space: Option<&Space>,
    issued_at: i64,
) -> Result<Minted, MintError> {
    mint_system(system, key, profile, space, (issued_at, profile.lifetime()), None)
}

/// The same for one use: the user expires after `life` seconds.
///
/// # Errors
/// As [`mint_user`].
pub fn mint_one_use(
    system: &AccountKeys,
    key: &UserKey,
    profile: &SystemProfile,
    space: &Space,
    issued_at: i64,
    life: i64,
) -> Result<Minted, MintError> {
    mint_system(system, key, profile, Some(space), (issued_at, life), None)
}

/// The same for one of a pair that is rotated together: both carry the tag `rotation:<id>`, so that
/// a rotation that was cut in the middle is seen (EVC-1).
///
/// # Errors
/// As [`mint_user`].
pub fn mint_of_rotation(
    system: &AccountKeys,
    key: &UserKey,
    profile: &SystemProfile,
    space: &Space,
    issued_at: i64,
    rotation: &str,
) -> Result<Minted, MintError> {
    let life = profile.lifetime();
    mint_system(system, key, profile, Some(space), (issued_at, life), Some(rotation))
}

fn mint_system(
    system: &AccountKeys,
    key: &UserKey,
    profile: &SystemProfile,
    space: Option<&Space>,
    (issued_at, life): (i64, i64),
    rotation: Option<&str>,
) -> Result<Minted, MintError> {
    let conn = key.conn_id()?;
    let mut tags = identity_tags(&key.principal()?);
    tags.extend(space.map(|space| format!("space:{space}")));
    tags.extend(rotation.map(|rotation| format!("rotation:{rotation}")));
    let spec = UserSpec {
        name: profile.name(),
        key,
        tags,
        permissions: profile.permissions(&conn),
        issued_at,
        expires_at: Some(issued_at + life),
    };
    mint_user(system, &spec)
}

fn tags(space: &Space, profile: &Profile, own: &Principal) -> Vec<String> {
    let principal = match profile {
        Profile::Agent(grant) => &grant.lifecycle.principal,
        Profile::Delivery(named)
        | Profile::Supervisor(named)
        | Profile::Operator(named)
        | Profile::Observer(named)
        | Profile::Admin(named) => named,
        Profile::MembershipRw
        | Profile::Provisioner
        | Profile::SharedProvisioner
        | Profile::Janitor
        | Profile::Workflow(_) => own,
    };
    let mut tags = identity_tags(principal);
    tags.push(format!("space:{space}"));
    if let Profile::Agent(grant) = profile {
        tags.push(format!("lifecycle:{}", grant.lifecycle.uid));
        tags.extend(grant.role.as_ref().map(|role| format!("role:{role}")));
    }
    if let Profile::Workflow(endpoint) = profile {
        tags.push(format!("endpoint:{endpoint}"));
    }
    tags
}

fn identity_tags(principal: &Principal) -> Vec<String> {
    let (owner, actor) = (principal.owner(), principal.actor());
    vec![format!("owner:{owner}"), format!("actor:{actor}"), format!("principal:{principal}")]
}
