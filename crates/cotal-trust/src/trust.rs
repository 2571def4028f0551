//! The trust material of a root: operator, system account and one account per space.
//!
//! Invariant: a key that exists is never replaced. Files are created in one order (operator,
//! system, accounts) and each in one step, so a crash leaves a prefix that the next run
//! completes; a gap in that order is a loss and is refused. What the JWTs say depends on the
//! files alone, so a second `up` presents the broker with the very same texts.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use cotal_wire::accounts::{Account, Topology};
use cotal_wire::{ConnId, Space};
use cotal_workspace::files::{self, FileError, Privacy};
use cotal_workspace::lock::FileLock;
use cotal_workspace::{Root, Segment};
use nkeys::{KeyPair, KeyPairType};
use serde::{Deserialize, Serialize};

use crate::account::{AccountKeys, SpaceAccount};
use crate::claims;
use crate::error::{TrustError, malformed};
use crate::jwt::{Envelope, sign};
use crate::space_file::AccountFile;

const OPERATOR_NAME: &str = "cotal";
pub(crate) const SYSTEM_NAME: &str = "SYS";
/// Under this key a revocation holds for every user.
const EVERYBODY: &str = "*";

/// The signing keys of a root.
pub struct Trust {
    root: Root,
    operator: KeyPair,
    system: AccountKeys,
    operator_jwt: String,
    system_jwt: String,
}

/// `auth/system.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct SystemFile {
    pub(crate) seed: String,
    issued_at: i64,
}

impl Trust {
    /// Opens the trust material of a root, and makes what is not there yet.
    ///
    /// # Errors
    /// When a file is malformed or lost, or cannot be read or written.
    pub fn create_or_open(root: &Root, now: i64) -> Result<Self, TrustError> {
        files::private_dir(&root.auth_dir())?;
        let _held = lock(root)?;
        if files::read(&root.operator_seed())?.is_none() {
            refuse_if_lost(root, &root.operator_seed(), &[root.system_file()])?;
            let seed = KeyPair::new_operator().seed().map_err(crate::MintError::from)?;
            create(&root.operator_seed(), &format!("{seed}\n"))?;
        }
        if files::read(&root.system_file())?.is_none() {
            refuse_if_lost(root, &root.system_file(), &[])?;
            let seed = KeyPair::new_account().seed().map_err(crate::MintError::from)?;
            create(&root.system_file(), &encode(&SystemFile { seed, issued_at: now })?)?;
        }
        Self::open(root)
    }

    /// Opens trust material that must exist.
    ///
    /// # Errors
    /// When it does not, is malformed, or cannot be read.
    pub fn open(root: &Root) -> Result<Self, TrustError> {
        let operator = operator(root)?;
        let path = root.system_file();
        let text = files::read(&path)?.ok_or_else(|| TrustError::Lost {
            missing: path.clone(),
            witness: root.operator_seed(),
        })?;
        let file: SystemFile = decode(&path, &text)?;
        let system = AccountKeys::from_seed(SYSTEM_NAME, &file.seed).map_err(malformed(&path))?;
        let none = BTreeMap::new();
        let claims = claims::Account::new(false, &none);
        let system_jwt = system.sign_account(&operator, claims, file.issued_at)?;
        let operator_jwt = sign_operator(&operator, &system.public_key(), file.issued_at)?;
        Ok(Self { root: root.clone(), operator, system, operator_jwt, system_jwt })
    }

    /// The operator JWT, which the broker's configuration holds; it names the system account.
    #[must_use]
    pub fn operator_jwt(&self) -> &str {
        &self.operator_jwt
    }

    /// The system account's keys, which sign `$SYS` users.
    #[must_use]
    pub fn system(&self) -> &AccountKeys {
        &self.system
    }

    /// The system account's JWT.
    #[must_use]
    pub fn system_jwt(&self) -> &str {
        &self.system_jwt
    }

    /// Every account as the broker's resolver preloads it: id and JWT, the system account first.
    ///
    /// # Errors
    /// When an account's file is malformed or unreadable.
    pub fn preload(&self) -> Result<Vec<(String, String)>, TrustError> {
        let mut all = vec![(self.system.public_key(), self.system_jwt.clone())];
        all.extend(self.accounts()?.iter().flat_map(SpaceAccount::jwts));
        Ok(all)
    }

    /// The accounts of a space, made as `topology` says when there are none.
    ///
    /// # Errors
    /// When their file is malformed, or cannot be read or written.
    pub fn space_account(
        &self,
        space: &Space,
        topology: Topology,
        now: i64,
    ) -> Result<SpaceAccount, TrustError> {
        let _held = lock(&self.root)?;
        if let Some(account) = self.find_account(space)? {
            return Ok(account);
        }
        let file = AccountFile::generate(space, topology, now)?;
        let path = self.root.account_file(&Segment::from(&file.space));
        create(&path, &encode(&file)?)?;
        self.account(&path, file)
    }

    /// Gives a space of one account the other two. Its own account stays what it is and becomes the
    /// durable one. Repeating it changes nothing.
    ///
    /// # Errors
    /// When the space has no account, or its file cannot be read or written.
    pub fn isolate(&self, space: &Space, now: i64) -> Result<SpaceAccount, TrustError> {
        let _held = lock(&self.root)?;
        let (path, mut file) = self.account_file(space)?;
        if file.isolate(now)? {
            files::replace(&path, encode(&file)?.as_bytes(), Privacy::Secret)?;
        }
        self.account(&path, file)
    }

    /// Notes that the move that [`Self::isolate`] began is finished.
    ///
    /// # Errors
    /// When the space has no account, or its file cannot be read or written.
    pub fn finish_isolation(&self, space: &Space) -> Result<(), TrustError> {
        let _held = lock(&self.root)?;
        let (path, mut file) = self.account_file(space)?;
        if file.moved() {
            files::replace(&path, encode(&file)?.as_bytes(), Privacy::Secret)?;
        }
        Ok(())
    }

    /// Refuses every JWT of whichever user of one of the space's accounts issued at or before `at`.
    ///
    /// # Errors
    /// As [`Self::revoke`].
    pub fn revoke_everybody(
        &self,
        space: &Space,
        account: Account,
        at: i64,
        now: i64,
    ) -> Result<SpaceAccount, TrustError> {
        self.revoke_users(space, account, &mut std::iter::once((EVERYBODY, at)), now)
    }

    fn account_file(&self, space: &Space) -> Result<(PathBuf, AccountFile), TrustError> {
        let path = self.root.account_file(&Segment::from(space));
        let text = files::read(&path)?.ok_or_else(|| TrustError::NoAccount(space.clone()))?;
        let file = decode(&path, &text)?;
        Ok((path, file))
    }

    /// The account of a space, if it has one.
    ///
    /// # Errors
    /// When its file is malformed or unreadable.
    pub fn find_account(&self, space: &Space) -> Result<Option<SpaceAccount>, TrustError> {
        let path = self.root.account_file(&Segment::from(space));
        let Some(text) = files::read(&path)? else {
            return Ok(None);
        };
        let file: AccountFile = decode(&path, &text)?;
        if file.space != *space {
            return Err(malformed(&path)(format!("it is the account of space {}", file.space)));
        }
        self.account(&path, file).map(Some)
    }

    /// How many spaces have an account.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn spaces(&self) -> Result<usize, TrustError> {
        Ok(account_files(&self.root)?.len())
    }

    /// Every space's account, by name.
    ///
    /// # Errors
    /// When a file is malformed or unreadable.
    pub fn accounts(&self) -> Result<Vec<SpaceAccount>, TrustError> {
        let mut accounts = Vec::new();
        for path in account_files(&self.root)? {
            if let Some(text) = files::read(&path)? {
                accounts.push(self.account(&path, decode(&path, &text)?)?);
            }
        }
        Ok(accounts)
    }

    /// Refuses every JWT of each user of one of the space's accounts issued at or before its
    /// instant, and returns the accounts, of which that one's JWT is now to be pushed to the
    /// broker. Repeating it changes nothing.
    ///
    /// # Errors
    /// When the space has no account, or its file cannot be read or written.
    pub fn revoke(
        &self,
        space: &Space,
        account: Account,
        users: &[(ConnId, i64)],
        now: i64,
    ) -> Result<SpaceAccount, TrustError> {
        let mut users = users.iter().map(|(user, at)| (user.as_str(), *at));
        self.revoke_users(space, account, &mut users, now)
    }

    fn revoke_users(
        &self,
        space: &Space,
        account: Account,
        users: &mut dyn Iterator<Item = (&str, i64)>,
        now: i64,
    ) -> Result<SpaceAccount, TrustError> {
        let _held = lock(&self.root)?;
        let (path, mut file) = self.account_file(space)?;
        if file.revoke(account, users, now) {
            files::replace(&path, encode(&file)?.as_bytes(), Privacy::Secret)?;
        }
        self.account(&path, file)
    }

    fn account(&self, path: &Path, file: AccountFile) -> Result<SpaceAccount, TrustError> {
        file.sign(path, &self.operator)
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust")
            .field("root", &self.root.dir())
            .field("operator", &self.operator.public_key())
            .field("system", &self.system)
            .finish_non_exhaustive()
    }
}

fn operator(root: &Root) -> Result<KeyPair, TrustError> {
    let path = root.operator_seed();
    let seed = files::read(&path)?.ok_or_else(|| TrustError::NoOperator(path.clone()))?;
    let pair = KeyPair::from_seed(seed.trim())
        .map_err(|_| malformed(&path)("the seed cannot be parsed".to_owned()))?;
    if pair.key_pair_type() != KeyPairType::Operator {
        return Err(malformed(&path)("the seed is not an operator's".to_owned()));
    }
    Ok(pair)
}

fn sign_operator(operator: &KeyPair, system: &str, now: i64) -> Result<String, TrustError> {
    let envelope = Envelope {
        jti: None,
        iat: now,
        iss: String::new(),
        name: OPERATOR_NAME,
        sub: &operator.public_key(),
        exp: None,
        nats: claims::Operator::new(system),
    };
    Ok(sign(envelope, operator)?)
}

/// Held by whoever changes trust material, so that two processes never make two keys for one
/// thing or lose each other's revocation.
fn lock(root: &Root) -> Result<FileLock, TrustError> {
    Ok(FileLock::exclusive(&root.auth_dir().join("lock"))?)
}

fn refuse_if_lost(root: &Root, missing: &Path, later: &[PathBuf]) -> Result<(), TrustError> {
    let accounts = account_files(root)?;
    match later.iter().chain(&accounts).find(|path| path.exists()) {
        Some(witness) => {
            Err(TrustError::Lost { missing: missing.to_owned(), witness: witness.clone() })
        }
        None => Ok(()),
    }
}

/// The `account.json` of every space directory, sorted.
fn account_files(root: &Root) -> Result<Vec<PathBuf>, TrustError> {
    let dir = root.auth_dir();
    let failed = |source| FileError::Io { operation: "list", path: dir.clone(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path().join("account.json");
        if path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn create(path: &Path, text: &str) -> Result<(), TrustError> {
    Ok(files::create(path, text.as_bytes(), Privacy::Secret)?)
}

fn encode<T: Serialize>(file: &T) -> Result<String, TrustError> {
    Ok(serde_json::to_string_pretty(file).map_err(crate::MintError::from)? + "\n")
}

/// The parser's message could quote the file, so only the place of the fault is told.
pub(crate) fn decode<T: for<'de> Deserialize<'de>>(
    path: &Path,
    text: &str,
) -> Result<T, TrustError> {
    serde_json::from_str(text)
        .map_err(|e| malformed(path)(format!("line {}, column {}", e.line(), e.column())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn root() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::init(dir.path()).unwrap();
        (dir, root)
    }

    fn alpha() -> Space {
        Space::parse("alpha").unwrap()
    }

    fn user() -> ConnId {
        ConnId::parse(&KeyPair::new_user().public_key()).unwrap()
    }

    #[test]
    fn a_second_run_presents_the_very_same_jwts() {
        let (_dir, root) = root();
        let first = Trust::create_or_open(&root, 100).unwrap();
        first.space_account(&alpha(), Topology::Three, 101).unwrap();
        let second = Trust::create_or_open(&root, 999).unwrap();
        second.space_account(&alpha(), Topology::Three, 999).unwrap();
        assert_eq!(first.operator_jwt(), second.operator_jwt());
        assert_eq!(first.preload().unwrap(), second.preload().unwrap());
        assert_eq!(first.preload().unwrap().len(), 4);
    }

    #[test]
    fn a_crash_after_any_file_is_completed_by_the_next_run() {
        let (_dir, root) = root();
        let trust = Trust::create_or_open(&root, 100).unwrap();
        let operator = trust.operator.public_key();
        std::fs::remove_file(root.system_file()).unwrap();
        let again = Trust::create_or_open(&root, 200).unwrap();
        assert_eq!(again.operator.public_key(), operator);
    }

    #[test]
    fn a_lost_key_is_never_quietly_replaced() {
        let (_dir, root) = root();
        assert!(matches!(Trust::open(&root), Err(TrustError::NoOperator(_))));
        let trust = Trust::create_or_open(&root, 100).unwrap();
        trust.space_account(&alpha(), Topology::Three, 100).unwrap();
        for lost in [root.system_file(), root.operator_seed()] {
            let text = std::fs::read(&lost).unwrap();
            std::fs::remove_file(&lost).unwrap();
            let error = Trust::create_or_open(&root, 200).unwrap_err();
            assert!(
                matches!(&error, TrustError::Lost { missing, .. } if *missing == lost),
                "{error}"
            );
            assert!(!lost.exists());
            std::fs::write(&lost, text).unwrap();
        }
        Trust::create_or_open(&root, 300).unwrap();
    }

    #[test]
    fn concurrent_first_runs_agree_on_one_set_of_keys() {
        let (_dir, root) = root();
        let preloads: Vec<_> = std::thread::scope(|scope| {
            let run = || {
                let trust = Trust::create_or_open(&root, 100).unwrap();
                trust.space_account(&alpha(), Topology::Three, 100).unwrap();
                trust.preload().unwrap()
            };
            let runs: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
            runs.into_iter().map(|r| r.join().unwrap()).collect()
        });
        assert!(preloads.windows(2).all(|pair| pair[0] == pair[1]));
    }

    #[test]
    fn revocations_are_kept_repeatable_and_always_newer() {
        let (_dir, root) = root();
        let trust = Trust::create_or_open(&root, 100).unwrap();
        trust.space_account(&alpha(), Topology::Three, 100).unwrap();
        let (bob, eve) = (user(), user());
        let revoke = |user: &ConnId, at, now| {
            trust.revoke(&alpha(), Account::Agents, &[(user.clone(), at)], now).unwrap()
        };
        let first = revoke(&bob, 100, 100);
        let same = revoke(&bob, 90, 500);
        assert_eq!(first.jwts(), same.jwts());
        let second = revoke(&eve, 100, 100);
        let kept = Trust::open(&root).unwrap().find_account(&alpha()).unwrap().unwrap();
        assert_eq!(kept.jwts(), second.jwts());
        assert_eq!(kept.revocations_of(Account::Agents).len(), 2);
        assert!(kept.revocations_of(Account::Durable).is_empty());
        let issued = |account: &SpaceAccount, of| issued_at(account.jwt_of(of));
        let agents = [issued(&first, Account::Agents), issued(&second, Account::Agents)];
        assert_eq!((agents, issued(&second, Account::Durable)), ([101, 102], 100));
        let beta = Space::parse("beta").unwrap();
        let nobody = trust.revoke(&beta, Account::Agents, &[(bob, 1)], 1);
        assert!(matches!(nobody, Err(TrustError::NoAccount(_))));
    }

    #[test]
    fn a_space_of_one_account_keeps_it_when_it_is_moved_to_three() {
        let (_dir, root) = root();
        let trust = Trust::create_or_open(&root, 100).unwrap();
        let one = trust.space_account(&alpha(), Topology::One, 100).unwrap();
        assert_eq!((one.topology(), one.jwts().len()), (Topology::One, 1));
        assert_eq!(one.public_key(), one.keys_of(Account::Agents).public_key());
        trust.revoke(&alpha(), Account::Agents, &[(user(), 100)], 100).unwrap();

        let three = trust.isolate(&alpha(), 100).unwrap();
        assert_eq!((three.topology(), three.jwts().len()), (Topology::Three, 3));
        assert_eq!(three.public_key(), one.public_key());
        assert_ne!(three.public_key(), three.keys_of(Account::Agents).public_key());
        assert_eq!(three.revocations_of(Account::Durable).len(), 1);
        assert_eq!(issued_at(three.jwt_of(Account::Durable)), 102);
        assert_eq!(trust.isolate(&alpha(), 500).unwrap().jwts(), three.jwts());
        assert!(three.is_moving(), "an interrupted move is seen");
        trust.finish_isolation(&alpha()).unwrap();
        let kept = trust.find_account(&alpha()).unwrap().unwrap();
        assert!(!kept.is_moving() && kept.jwts() == three.jwts());
    }

    fn issued_at(jwt: &str) -> i64 {
        let body = jwt.split('.').nth(1).unwrap();
        let json = data_encoding::BASE64URL_NOPAD.decode(body.as_bytes()).unwrap();
        serde_json::from_slice::<serde_json::Value>(&json).unwrap()["iat"].as_i64().unwrap()
    }

    #[test]
    fn every_file_is_private_and_no_seed_is_shown() {
        let (_dir, root) = root();
        let trust = Trust::create_or_open(&root, 100).unwrap();
        let account = trust.space_account(&alpha(), Topology::Three, 100).unwrap();
        let shown = format!("{trust:?} {account:?}");
        let account_file = root.account_file(&Segment::from(&alpha()));
        for path in [root.operator_seed(), root.system_file(), account_file.clone()] {
            let mode = |p: &Path| p.metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
            let text = std::fs::read_to_string(&path).unwrap();
            let seed = text.split(['"', '\n']).find(|t| t.len() == 58 && t.starts_with('S'));
            assert!(!shown.contains(seed.unwrap()), "{shown}");
        }
        let text = std::fs::read_to_string(&account_file).unwrap();
        std::fs::write(&account_file, text.replace("issuedAt", "SAHIDDEN")).unwrap();
        let error = trust.find_account(&alpha()).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("SAHIDDEN"), "{error}");
    }

    #[test]
    fn a_file_of_another_space_or_kind_of_key_is_refused() {
        let (_dir, root) = root();
        let trust = Trust::create_or_open(&root, 100).unwrap();
        trust.space_account(&alpha(), Topology::Three, 100).unwrap();
        let beta = Space::parse("beta").unwrap();
        let path = root.account_file(&Segment::from(&beta));
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        std::fs::copy(root.account_file(&Segment::from(&alpha())), &path).unwrap();
        let error = trust.space_account(&beta, Topology::Three, 100).unwrap_err();
        assert!(error.to_string().contains("account of space alpha"), "{error}");

        std::fs::write(root.operator_seed(), KeyPair::new_user().seed().unwrap()).unwrap();
        let error = Trust::open(&root).unwrap_err();
        assert!(error.to_string().contains("not an operator's"), "{error}");
    }
}
