//! `auth/<seg>/account.json`: the keys of a space's accounts, and what is revoked in each.

use std::collections::BTreeMap;
use std::path::Path;

use cotal_wire::Space;
use cotal_wire::accounts::{Account, Grant, Topology};
use nkeys::KeyPair;
use serde::{Deserialize, Serialize};

use crate::account::{AccountKeys, Isolated, Signed, SpaceAccount};
use crate::claims;
use crate::error::{MintError, TrustError, malformed};

/// The file. Its own fields are those of the durable account, which in a space of one account is
/// the only one: so a space that is moved to three keeps the account that its streams stand in.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct AccountFile {
    pub(crate) space: Space,
    seed: String,
    issued_at: i64,
    revocations: BTreeMap<String, i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    isolated: Option<IsolatedFile>,
}

/// The other two accounts of a space of three.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct IsolatedFile {
    agents: KeysFile,
    shared: KeysFile,
    /// Whether the space had one account and is still being moved.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    moving: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct KeysFile {
    seed: String,
    issued_at: i64,
    revocations: BTreeMap<String, i64>,
}

impl KeysFile {
    fn generate(now: i64) -> Result<Self, MintError> {
        let seed = KeyPair::new_account().seed()?;
        Ok(Self { seed, issued_at: now, revocations: BTreeMap::new() })
    }
}

impl IsolatedFile {
    fn generate(now: i64) -> Result<Self, MintError> {
        let (agents, shared) = (KeysFile::generate(now)?, KeysFile::generate(now)?);
        Ok(Self { agents, shared, moving: false })
    }
}

impl AccountFile {
    pub(crate) fn generate(space: &Space, topology: Topology, now: i64) -> Result<Self, MintError> {
        let KeysFile { seed, issued_at, revocations } = KeysFile::generate(now)?;
        let isolated = match topology {
            Topology::One => None,
            Topology::Three => Some(IsolatedFile::generate(now)?),
        };
        Ok(Self { space: space.clone(), seed, issued_at, revocations, isolated })
    }

    /// Adds the other two accounts; tells whether they were missing.
    pub(crate) fn isolate(&mut self, now: i64) -> Result<bool, MintError> {
        if self.isolated.is_some() {
            return Ok(false);
        }
        self.isolated = Some(IsolatedFile { moving: true, ..IsolatedFile::generate(now)? });
        self.issued_at = now.max(self.issued_at + 1);
        Ok(true)
    }

    /// Notes that a move to three accounts is finished; tells whether one was under way.
    pub(crate) fn moved(&mut self) -> bool {
        self.isolated.as_mut().is_some_and(|isolated| std::mem::take(&mut isolated.moving))
    }

    /// Revokes users of an account up to an instant each; tells whether that changed anything.
    pub(crate) fn revoke<'a>(
        &mut self,
        account: Account,
        users: impl Iterator<Item = (&'a str, i64)>,
        now: i64,
    ) -> bool {
        let (revocations, issued_at) = match (account, &mut self.isolated) {
            (Account::Agents, Some(IsolatedFile { agents: keys, .. }))
            | (Account::Shared, Some(IsolatedFile { shared: keys, .. })) => {
                (&mut keys.revocations, &mut keys.issued_at)
            }
            (Account::Durable, _) | (_, None) => (&mut self.revocations, &mut self.issued_at),
        };
        let before = revocations.clone();
        for (user, at) in users {
            let until = revocations.entry(user.to_owned()).or_insert(at);
            *until = (*until).max(at);
        }
        if *revocations == before {
            return false;
        }
        // Resolvers keep the newer of two JWTs, so two revocations of one second must differ.
        *issued_at = now.max(*issued_at + 1);
        true
    }

    /// The accounts with their JWTs.
    pub(crate) fn sign(self, path: &Path, operator: &KeyPair) -> Result<SpaceAccount, TrustError> {
        let Self { space, seed, issued_at, revocations, isolated } = self;
        let own = KeysFile { seed, issued_at, revocations };
        let durable = Unsigned::read(path, space.to_string(), own)?;
        let Some(IsolatedFile { agents, shared, moving }) = isolated else {
            let durable = durable.sign_alone(operator)?;
            return Ok(SpaceAccount { space, durable, isolated: None });
        };
        let agents = Unsigned::read(path, format!("{space} agents"), agents)?;
        let shared = Unsigned::read(path, format!("{space} shared"), shared)?;
        let ids = Ids { agents: agents.id(), shared: shared.id(), durable: durable.id() };
        let grants = space.grants();
        let sign = |one: Unsigned, home| one.sign_of(home, operator, &grants, &ids);
        let isolated = Isolated {
            agents: sign(agents, Account::Agents)?,
            shared: sign(shared, Account::Shared)?,
            moving,
        };
        let durable = sign(durable, Account::Durable)?;
        Ok(SpaceAccount { space, durable, isolated: Some(isolated) })
    }
}

/// The ids of the three accounts.
struct Ids {
    agents: String,
    shared: String,
    durable: String,
}

impl Ids {
    fn of(&self, account: Account) -> &str {
        match account {
            Account::Agents => &self.agents,
            Account::Shared => &self.shared,
            Account::Durable => &self.durable,
        }
    }
}

/// An account whose JWT is still to be signed.
struct Unsigned {
    keys: AccountKeys,
    issued_at: i64,
    revocations: BTreeMap<String, i64>,
}

impl Unsigned {
    fn read(path: &Path, name: String, file: KeysFile) -> Result<Self, TrustError> {
        let KeysFile { seed, issued_at, revocations } = file;
        let keys = AccountKeys::from_seed(name, &seed).map_err(malformed(path))?;
        Ok(Self { keys, issued_at, revocations })
    }

    fn id(&self) -> String {
        self.keys.public_key()
    }

    /// Signs the account of a space that has no other: nothing crosses.
    fn sign_alone(self, operator: &KeyPair) -> Result<Signed, TrustError> {
        let Self { keys, issued_at, revocations } = self;
        let claims = claims::Account::new(true, &revocations);
        let jwt = keys.sign_account(operator, claims, issued_at)?;
        Ok(Signed { keys, revocations, jwt })
    }

    fn sign_of(
        self,
        home: Account,
        operator: &KeyPair,
        grants: &[Grant],
        ids: &Ids,
    ) -> Result<Signed, TrustError> {
        let Self { keys, issued_at, revocations } = self;
        let claims = claims::Account::new(home.has_jetstream(), &revocations);
        let claims = claims.with_grants(home, grants, |of| ids.of(of));
        let jwt = keys.sign_account(operator, claims, issued_at)?;
        Ok(Signed { keys, revocations, jwt })
    }
}
