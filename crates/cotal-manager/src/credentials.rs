//! The daemon's credentials on a root: made once, renewed in time, each with its nkey kept.
//!
//! Invariant: a credential that is right is not touched, and a renewal never changes the identity
//! it belongs to (CRD-7).

use cotal_trust::{
    AccountKeys, Minted, UnfitError, UserKey, mint_of_rotation, mint_profile, read_creds,
};
use cotal_wire::Space;
use cotal_wire::accounts::{Account, inhabited};
use cotal_wire::creds::{Creds, KICKS_ARE_THE_HOSTS};
use cotal_wire::permissions::Permissions;
use cotal_wire::profile::{Profile, SystemProfile};
use cotal_workspace::files::{self, Privacy};
use cotal_workspace::{FileStore, Root, Secret, SecretKey, SecretKind, SecretStore, Segment};

use crate::authority::Authority;
use crate::clock::unix_seconds;
use crate::error::ManagerError;

/// The credentials that the daemon of a space runs on.
pub const DAEMON_CREDENTIALS: [SecretKind; 4] = [
    SecretKind::Delivery,
    SecretKind::MembershipRw,
    SecretKind::MembershipObserver,
    SecretKind::ConnectionEvictor,
];

/// Why a credential was minted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// There was none.
    #[error("there was none")]
    Missing,
    /// What was there cannot be parsed, or is not what was signed.
    #[error("the old one was damaged")]
    Damaged,
    /// What was there belongs to another account.
    #[error("the old one was of another account")]
    Foreign,
    /// What was there is past half its life.
    #[error("the old one was past half its life")]
    Aged,
    /// The other one of its pair was renewed.
    #[error("its pair is rotated together")]
    Rotated,
    /// What was there grants something else than its profile.
    #[error("the old one did not grant what its profile grants")]
    Outdated,
}

/// A credential that was minted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewed {
    /// The kind of credential.
    pub kind: SecretKind,
    /// Why.
    pub reason: Reason,
}

/// Who kicks connections of a space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kicks {
    /// Its daemon, with a credential of its own: the broker hosts no other space.
    Daemon,
    /// The multi-space host alone, because a kick reaches every space of the broker (EVC-5).
    Host,
}

impl Kicks {
    fn of(authority: &Authority) -> Result<Self, ManagerError> {
        Ok(if authority.trust().spaces()? > 1 { Self::Host } else { Self::Daemon })
    }

    /// Whether a store is to hold a credential of this kind.
    fn keeps(self, kind: &SecretKind) -> bool {
        self == Self::Daemon || *kind != SecretKind::ConnectionEvictor
    }
}

/// Which credentials the daemon of a space runs on: without the evictor on a broker of several
/// spaces.
///
/// # Errors
/// When the spaces of the root cannot be listed.
pub fn daemon_credentials(authority: &Authority) -> Result<Vec<SecretKind>, ManagerError> {
    let kicks = Kicks::of(authority)?;
    Ok(DAEMON_CREDENTIALS.into_iter().filter(|kind| kicks.keeps(kind)).collect())
}

/// Makes and renews what the daemon of a space needs; tells what was minted. On a broker of several
/// spaces an evictor that is left of an earlier time is removed.
///
/// # Errors
/// When a credential cannot be signed, read or written.
pub fn ensure_daemon_credentials(
    authority: &Authority,
    store: &dyn SecretStore,
) -> Result<Vec<Renewed>, ManagerError> {
    ensure(authority, store, Kicks::of(authority)?)
}

/// The same for the store of a multi-space host, whose lanes never kick themselves, with keys that
/// are this store's own (CRD-7). To be repeated before the credentials are past three quarters of
/// their lives: it renews what is past half.
///
/// # Errors
/// As [`ensure_daemon_credentials`].
pub fn provision_host(
    authority: &Authority,
    store: &dyn SecretStore,
) -> Result<Vec<Renewed>, ManagerError> {
    ensure(authority, store, Kicks::Host)
}

fn ensure(
    authority: &Authority,
    store: &dyn SecretStore,
    kicks: Kicks,
) -> Result<Vec<Renewed>, ManagerError> {
    let now = unix_seconds();
    let evictor = SecretKey::new(authority.space(), SecretKind::ConnectionEvictor);
    // Before the observer says whose the kicks are: the two together would count as torn.
    if !kicks.keeps(&evictor.kind) {
        store.delete(&evictor)?;
    }
    let mut found = Vec::new();
    for kind in DAEMON_CREDENTIALS.into_iter().filter(|kind| kicks.keeps(kind)) {
        let key = SecretKey::new(authority.space(), kind.clone());
        let secret = store.get(&key)?;
        let read = secret.as_ref().map(|one| read_stored_creds(authority, &kind, one.expose()));
        let reason = judge(authority, &kind, read.as_ref(), now)?;
        found.push(StoredCreds { key, kind, secret, creds: read.and_then(Result::ok), reason });
    }
    rotate_together(&mut found, kicks);
    let rotation = match kicks {
        Kicks::Daemon => format!("{now}-{}", UserKey::generate().public_key()),
        Kicks::Host => KICKS_ARE_THE_HOSTS.to_owned(),
    };
    let mut renewed = Vec::new();
    for StoredCreds { key, kind, secret, reason, .. } in found {
        let Some(reason) = reason else { continue };
        let user = match secret {
            Some(secret) if reason != Reason::Foreign => key_in(secret.expose()),
            None if kind == SecretKind::Delivery && is_own(authority, store) => {
                set_aside(authority)?
            }
            _ => None,
        };
        let user = user.unwrap_or_else(UserKey::generate);
        let minted = mint(authority, &kind, &user, now, &rotation)?;
        store.put(&key, &minted.creds)?;
        renewed.push(Renewed { kind, reason });
    }
    Ok(renewed)
}

/// Whether a store is that of the root itself: a host that stands by has keys of its own.
fn is_own(authority: &Authority, store: &dyn SecretStore) -> bool {
    store.identity() == FileStore::new(authority.root().clone()).identity()
}

/// Reads a stored credential of the space, the daemon's or an agent's, and verifies that the
/// account it belongs to signed it.
///
/// # Errors
/// When the text is damaged, or of another account.
pub fn read_stored_creds(
    authority: &Authority,
    kind: &SecretKind,
    text: &str,
) -> Result<Creds, UnfitError> {
    read_creds(text, account_of(authority, kind))
}

/// Renews what a daemon of the root runs on, unless its credential was taken away: whoever stopped
/// it for good did that, and nothing may give it back by the way. Tells what was minted.
///
/// # Errors
/// As [`ensure_daemon_credentials`].
pub fn renew_daemon_credentials(
    authority: &Authority,
) -> Result<Option<Vec<Renewed>>, ManagerError> {
    renew_in(authority, &FileStore::new(authority.root().clone()))
}

/// The same for what a daemon runs on that reads another store.
///
/// # Errors
/// As [`ensure_daemon_credentials`].
pub fn renew_in(
    authority: &Authority,
    store: &dyn SecretStore,
) -> Result<Option<Vec<Renewed>>, ManagerError> {
    let key = SecretKey::new(authority.space(), SecretKind::Delivery);
    if store.get(&key)?.is_none() {
        return Ok(None);
    }
    ensure_daemon_credentials(authority, store).map(Some)
}

/// Takes the credential of a stopped daemon away (LIF-10). Its key is kept beside the trust
/// material, so that the next credential is the same identity's (CRD-7).
///
/// # Errors
/// When the key cannot be kept; the credential then stays. Or when it cannot be removed.
pub fn set_aside_credential(root: &Root, space: &Space) -> Result<(), ManagerError> {
    let store = FileStore::new(root.clone());
    let key = SecretKey::new(space, SecretKind::Delivery);
    let Some(secret) = store.get(&key)? else {
        return Ok(());
    };
    // Where no key reads, an older one that was kept is still the daemon's.
    if let Some(key) = key_in(secret.expose()) {
        let path = root.delivery_seed(&Segment::from(space));
        let seed = key.seed()?;
        files::replace(&path, format!("{}\n", seed.expose()).as_bytes(), Privacy::Secret)?;
    }
    store.delete(&key)?;
    Ok(())
}

/// The key in a stored credential: damage to the JWT does not take the identity away (CRD-7).
fn key_in(text: &str) -> Option<UserKey> {
    UserKey::from_seed(&Secret::new(Creds::seed_of(text)?)).ok()
}

/// The key that [`set_aside_credential`] kept, if it reads.
fn set_aside(authority: &Authority) -> Result<Option<UserKey>, ManagerError> {
    let path = authority.root().delivery_seed(&Segment::from(authority.space()));
    let seed = files::read(&path)?;
    Ok(seed.and_then(|seed| UserKey::from_seed(&Secret::new(seed.trim())).ok()))
}

/// What the store has of one credential.
struct StoredCreds {
    key: SecretKey,
    kind: SecretKind,
    secret: Option<Secret>,
    /// What `secret` reads as, where it is a credential of its account.
    creds: Option<Creds>,
    reason: Option<Reason>,
}

/// The `$SYS` pair is rotated together: a daemon refuses one of which a crash replaced only half
/// (EVC-1).
fn rotate_together(found: &mut [StoredCreds], kicks: Kicks) {
    let is_of_pair = |found: &&mut StoredCreds| {
        matches!(found.kind, SecretKind::MembershipObserver | SecretKind::ConnectionEvictor)
    };
    let mut pair: Vec<&mut StoredCreds> = found.iter_mut().filter(is_of_pair).collect();
    let rotation = |found: &StoredCreds| {
        found.creds.as_ref().and_then(|c| c.claims.tag("rotation").map(str::to_owned))
    };
    let torn = pair.windows(2).any(|two| rotation(two[0]) != rotation(two[1]));
    let expected = match kicks {
        Kicks::Host => Some(KICKS_ARE_THE_HOSTS),
        Kicks::Daemon => None,
    };
    let other = pair
        .iter()
        .any(|one| (rotation(one).as_deref() == Some(KICKS_ARE_THE_HOSTS)) != expected.is_some());
    if torn || other || pair.iter().any(|one| one.reason.is_some()) {
        for one in &mut pair {
            one.reason.get_or_insert(Reason::Rotated);
        }
    }
}

/// The account that signs a credential: the `$SYS` pair's is the system account.
fn account_of<'a>(authority: &'a Authority, kind: &SecretKind) -> &'a AccountKeys {
    match kind {
        SecretKind::MembershipObserver | SecretKind::ConnectionEvictor => {
            authority.trust().system()
        }
        SecretKind::Agent(_) => authority.account().keys_of(Account::Agents),
        _ => authority.account().keys(),
    }
}

/// What is wrong with a stored credential, if anything.
fn judge(
    authority: &Authority,
    kind: &SecretKind,
    read: Option<&Result<Creds, UnfitError>>,
    now: i64,
) -> Result<Option<Reason>, ManagerError> {
    let creds = match read {
        None => return Ok(Some(Reason::Missing)),
        Some(Err(UnfitError::Foreign { .. })) => return Ok(Some(Reason::Foreign)),
        Some(Err(_)) => return Ok(Some(Reason::Damaged)),
        Some(Ok(creds)) => creds,
    };
    let claims = &creds.claims;
    if is_past_half(claims.issued_at, claims.expires_at, now) {
        return Ok(Some(Reason::Aged));
    }
    let key = UserKey::from_seed(&Secret::new(&creds.seed))?;
    let granted = permissions(authority, kind, &key)?;
    let is_of_system = matches!(User::of(authority, kind, &key)?, User::System(_));
    let same = claims.pub_allow == granted.pub_allow
        && claims.sub_allow == granted.sub_allow
        && (is_of_system || inhabited(claims) == authority.account().inhabited());
    Ok((!same).then_some(Reason::Outdated))
}

fn is_past_half(issued_at: i64, expires_at: Option<i64>, now: i64) -> bool {
    expires_at.is_some_and(|end| now >= issued_at + (end - issued_at) / 2)
}

/// One of the daemon's users: of the space's account, or of the system account.
enum User {
    Space(Profile),
    System(SystemProfile),
}

impl User {
    fn of(authority: &Authority, kind: &SecretKind, key: &UserKey) -> Result<Self, ManagerError> {
        let own = key.principal().map_err(cotal_trust::MintError::from)?;
        Ok(match kind {
            SecretKind::MembershipRw => Self::Space(Profile::MembershipRw),
            SecretKind::MembershipObserver => Self::System(SystemProfile::MembershipObserver {
                accounts: authority.account().inhabited(),
            }),
            SecretKind::ConnectionEvictor => Self::System(SystemProfile::ConnectionEvictor),
            _ => Self::Space(Profile::Delivery(own)),
        })
    }
}

fn permissions(
    authority: &Authority,
    kind: &SecretKind,
    key: &UserKey,
) -> Result<Permissions, ManagerError> {
    let conn = key.conn_id().map_err(cotal_trust::MintError::from)?;
    Ok(match User::of(authority, kind, key)? {
        User::Space(profile) => {
            profile.permissions(authority.space(), &conn, authority.account().topology())
        }
        User::System(profile) => profile.permissions(&conn),
    })
}

pub(crate) fn mint(
    authority: &Authority,
    kind: &SecretKind,
    key: &UserKey,
    now: i64,
    rotation: &str,
) -> Result<Minted, ManagerError> {
    Ok(match User::of(authority, kind, key)? {
        User::Space(profile) => {
            let expires_at = authority.lifetime_of(&profile).map(|life| now + life);
            mint_profile(authority.account(), key, &profile, now, expires_at)?
        }
        User::System(profile) => {
            let (system, space) = (authority.trust().system(), authority.space());
            mint_of_rotation(system, key, &profile, space, now, rotation)?
        }
    })
}

#[cfg(test)]
mod tests {
    use cotal_workspace::MemoryStore;

    use super::*;

    fn authority() -> (tempfile::TempDir, Authority, FileStore) {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::init(dir.path()).unwrap();
        let space = Space::parse("main").unwrap();
        let authority = Authority::create_or_open(&root, &space).unwrap();
        (dir, authority, FileStore::new(root))
    }

    fn get(store: &dyn SecretStore, authority: &Authority, kind: &SecretKind) -> Creds {
        let key = SecretKey::new(authority.space(), kind.clone());
        Creds::parse(store.get(&key).unwrap().unwrap().expose()).unwrap()
    }

    #[test]
    fn a_second_run_touches_nothing() {
        let (_dir, authority, store) = authority();
        let made = ensure_daemon_credentials(&authority, &store).unwrap();
        assert_eq!(made.len(), DAEMON_CREDENTIALS.len());
        assert_eq!(ensure_daemon_credentials(&authority, &store).unwrap(), []);
    }

    #[test]
    fn crd_1_and_7_the_daemon_is_its_nkey_and_a_renewal_keeps_it() {
        let (_dir, authority, store) = authority();
        ensure_daemon_credentials(&authority, &store).unwrap();
        let before = get(&store, &authority, &SecretKind::Delivery);
        let principal = before.claims.principal().unwrap();
        assert_eq!(principal.actor(), before.claims.subject.as_str());
        assert!(!before.claims.pub_allow.iter().any(|subject| subject == ">"));

        let key = UserKey::from_seed(&Secret::new(&before.seed)).unwrap();
        let old = unix_seconds() - 13 * 3_600;
        let aged = mint(&authority, &SecretKind::Delivery, &key, old, "r").unwrap();
        let at = SecretKey::new(authority.space(), SecretKind::Delivery);
        store.put(&at, &aged.creds).unwrap();
        let renewed = ensure_daemon_credentials(&authority, &store).unwrap();
        let (kind, reason) = (SecretKind::Delivery, Reason::Aged);
        assert_eq!(renewed, [Renewed { kind, reason }]);
        let after = get(&store, &authority, &SecretKind::Delivery);
        assert_eq!(after.claims.subject, before.claims.subject);
        assert!(after.claims.expires_at > before.claims.expires_at.map(|end| end - 2));
    }

    #[test]
    fn crd_7_and_lif_10_a_credential_that_was_taken_away_comes_back_under_its_key() {
        let (_dir, authority, store) = authority();
        ensure_daemon_credentials(&authority, &store).unwrap();
        let before = get(&store, &authority, &SecretKind::Delivery);
        set_aside_credential(authority.root(), authority.space()).unwrap();
        set_aside_credential(authority.root(), authority.space()).unwrap();
        assert_eq!(renew_daemon_credentials(&authority).unwrap(), None, "nothing gives it back");
        let renewed = ensure_daemon_credentials(&authority, &store).unwrap();
        let (kind, reason) = (SecretKind::Delivery, Reason::Missing);
        assert_eq!(renewed, [Renewed { kind, reason }]);
        let after = get(&store, &authority, &SecretKind::Delivery);
        assert_eq!(after.claims.subject, before.claims.subject);
        assert_eq!(renew_daemon_credentials(&authority).unwrap(), Some(Vec::new()));
    }

    #[test]
    fn damaged_foreign_and_outdated_credentials_are_replaced() {
        let (_dir, own, store) = authority();
        let (_other_dir, foreign, _) = authority();
        ensure_daemon_credentials(&own, &store).unwrap();
        let at = SecretKey::new(own.space(), SecretKind::MembershipRw);
        let key = UserKey::generate();
        let theirs = mint(&foreign, &at.kind, &key, unix_seconds(), "r").unwrap().creds;
        let (account, profile) = (own.account(), Profile::Provisioner);
        let now = unix_seconds();
        let other = mint_profile(account, &key, &profile, now, Some(now + 86_400)).unwrap();
        for (text, reason) in [
            (Secret::new("garbage"), Reason::Damaged),
            (theirs, Reason::Foreign),
            (other.creds, Reason::Outdated),
        ] {
            store.put(&at, &text).unwrap();
            let renewed = ensure_daemon_credentials(&own, &store).unwrap();
            let kind = SecretKind::MembershipRw;
            assert_eq!(renewed, [Renewed { kind, reason }]);
        }
        let empty = MemoryStore::new("m");
        assert_eq!(ensure_daemon_credentials(&own, &empty).unwrap().len(), 4);
    }

    /// The text with the character at `at` of part `part` of its JWT changed.
    fn damaged(creds: &Creds, part: usize) -> Secret {
        let mut parts: Vec<String> = creds.jwt.split('.').map(str::to_owned).collect();
        let at = parts[part].len() / 2;
        let other = if &parts[part][at..=at] == "A" { "B" } else { "A" };
        parts[part].replace_range(at..=at, other);
        Secret::new(Creds::render(&parts.join("."), &creds.seed))
    }

    #[test]
    fn crd_7_a_jwt_damaged_in_any_part_is_minted_anew_for_its_key() {
        let (_dir, authority, store) = authority();
        ensure_daemon_credentials(&authority, &store).unwrap();
        for kind in [SecretKind::Delivery, SecretKind::MembershipRw] {
            for part in 0..3 {
                let before = get(&store, &authority, &kind);
                let at = SecretKey::new(authority.space(), kind.clone());
                store.put(&at, &damaged(&before, part)).unwrap();
                let renewed = ensure_daemon_credentials(&authority, &store).unwrap();
                let wanted = Renewed { kind: kind.clone(), reason: Reason::Damaged };
                assert_eq!(renewed, [wanted], "part {part}");
                let after = get(&store, &authority, &kind);
                assert_eq!(after.claims.subject, before.claims.subject, "part {part}");
                assert_eq!(ensure_daemon_credentials(&authority, &store).unwrap(), []);
            }
        }
    }

    #[test]
    fn evc_1_damage_to_one_of_the_pair_rotates_both() {
        let (_dir, authority, store) = authority();
        ensure_daemon_credentials(&authority, &store).unwrap();
        let at = SecretKey::new(authority.space(), SecretKind::ConnectionEvictor);
        let evictor = get(&store, &authority, &at.kind);
        store.put(&at, &damaged(&evictor, 2)).unwrap();
        let renewed = ensure_daemon_credentials(&authority, &store).unwrap();
        let (first, second) = (SecretKind::MembershipObserver, SecretKind::ConnectionEvictor);
        let wanted = [(first, Reason::Rotated), (second, Reason::Damaged)];
        assert_eq!(renewed, wanted.map(|(kind, reason)| Renewed { kind, reason }));
    }

    #[test]
    fn lif_10_what_is_taken_away_damaged_comes_back_under_its_key() {
        let (_dir, authority, store) = authority();
        ensure_daemon_credentials(&authority, &store).unwrap();
        let before = get(&store, &authority, &SecretKind::Delivery);
        let at = SecretKey::new(authority.space(), SecretKind::Delivery);
        store.put(&at, &damaged(&before, 0)).unwrap();
        set_aside_credential(authority.root(), authority.space()).unwrap();
        ensure_daemon_credentials(&authority, &store).unwrap();
        let after = get(&store, &authority, &SecretKind::Delivery);
        assert_eq!(after.claims.subject, before.claims.subject);
    }

    #[test]
    fn evc_5_on_a_broker_of_several_spaces_no_space_is_given_a_kick_credential() {
        let (_dir, authority, store) = authority();
        ensure_daemon_credentials(&authority, &store).unwrap();
        let evictor = SecretKey::new(authority.space(), SecretKind::ConnectionEvictor);
        assert!(store.get(&evictor).unwrap().is_some());
        let beta = Space::parse("beta").unwrap();
        let other = Authority::create_or_open(authority.root(), &beta).unwrap();
        ensure_daemon_credentials(&other, &store).unwrap();
        assert_eq!(store.get(&SecretKey::new(&beta, SecretKind::ConnectionEvictor)).unwrap(), None);

        let renewed = ensure_daemon_credentials(&authority, &store).unwrap();
        let (kind, reason) = (SecretKind::MembershipObserver, Reason::Rotated);
        assert_eq!(renewed, [Renewed { kind: kind.clone(), reason }]);
        assert_eq!(store.get(&evictor).unwrap(), None, "the earlier one was left");
        let observer = get(&store, &authority, &kind);
        assert_eq!(observer.claims.tag("rotation"), Some(KICKS_ARE_THE_HOSTS));
        assert_eq!(ensure_daemon_credentials(&authority, &store).unwrap(), []);
    }

    #[test]
    fn crd_7_each_host_has_a_key_of_its_own_and_keeps_it() {
        let (_dir, authority, store) = authority();
        ensure_daemon_credentials(&authority, &store).unwrap();
        let own = get(&store, &authority, &SecretKind::Delivery);
        // Also while the root's own daemon is stopped for good and its key kept.
        set_aside_credential(authority.root(), authority.space()).unwrap();
        let (east, west) = (MemoryStore::new("east"), MemoryStore::new("west"));
        let provisioned = |store: &MemoryStore| {
            provision_host(&authority, store).unwrap();
            get(store, &authority, &SecretKind::Delivery).claims.subject
        };
        let (first, second) = (provisioned(&east), provisioned(&west));
        assert_ne!(first, second);
        assert!(first != own.claims.subject && second != own.claims.subject);
        assert_eq!(provisioned(&east), first);
        let evictor = SecretKey::new(authority.space(), SecretKind::ConnectionEvictor);
        assert_eq!(east.get(&evictor).unwrap(), None, "a lane never kicks");
    }

    #[test]
    fn half_a_life_is_the_renewal_point() {
        assert!(!is_past_half(100, Some(200), 149));
        assert!(is_past_half(100, Some(200), 150));
        assert!(!is_past_half(100, None, i64::MAX));
    }
}
