//! Work on agents that was begun and not completed, and what completes it.
//!
//! A crash leaves its trace in the files of the root; whoever lists agents is told of it there, and
//! not only when a command trips over it.

use cotal_nats::Creds;
use cotal_wire::Principal;
use cotal_wire::accounts::Account;
use cotal_workspace::{FileStore, Root, SecretKey, SecretKind, SecretStore as _, Segment};

use crate::authority::Authority;
use crate::error::ManagerError;

/// An agent that something is to be done about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unfinished {
    /// Who.
    pub agent: Principal,
    /// What is not complete, and the command that completes it.
    pub what: String,
}

/// The agents of a space that something is to be done about, in the order of their names.
///
/// # Errors
/// When the directory of the agents' credentials cannot be listed.
pub fn unfinished_agents(authority: &Authority) -> Result<Vec<Unfinished>, ManagerError> {
    let (root, space) = (authority.root(), authority.space());
    let mut found = Vec::new();
    for name in files_of(root, &Segment::from(space))? {
        let Some((principal, kind)) = name.rsplit_once('.') else { continue };
        let Ok(agent) = Principal::parse(principal) else { continue };
        if let Some(what) = what(authority, &agent, kind) {
            found.push(Unfinished { agent, what });
        }
    }
    found.sort();
    Ok(found)
}

fn files_of(root: &Root, segment: &Segment) -> Result<Vec<String>, ManagerError> {
    let dir = root.agents_dir(segment);
    let list = || -> std::io::Result<Vec<String>> {
        let entries = std::fs::read_dir(&dir)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    };
    match list() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed.map_err(|source| {
            let path = dir.clone();
            cotal_workspace::FileError::Io { operation: "list", path, source }.into()
        }),
    }
}

fn what(authority: &Authority, agent: &Principal, kind: &str) -> Option<String> {
    let name = agent.actor();
    match kind {
        "retiring" => Some(format!(
            "its retirement has begun and is not complete: `cotal agent retire {name}` finishes it"
        )),
        "pending" => Some(format!(
            "it is not completely added: the same `cotal agent add {name} …` finishes it"
        )),
        "creds" => stored(authority, agent),
        _ => None,
    }
}

/// What is wrong with the stored credential of an agent.
fn stored(authority: &Authority, agent: &Principal) -> Option<String> {
    let name = agent.actor();
    let key = SecretKey::new(authority.space(), SecretKind::Agent(agent.clone()));
    let damaged = |why: String| {
        Some(format!(
            "{why}; `cotal agent retire {name}` ends it, then `cotal agent add {name} …` adds it \
             again"
        ))
    };
    let creds = match FileStore::new(authority.root().clone()).get(&key) {
        // It was retired meanwhile.
        Ok(None) => return None,
        Ok(Some(secret)) => Creds::parse(secret.expose()),
        Err(error) => return damaged(error.to_string()),
    };
    let creds = match creds {
        Ok(creds) => creds,
        Err(error) => return damaged(format!("its credential is damaged: {error}")),
    };
    let revoked = authority.account().revocations_of(Account::Agents).get(creds.nkey());
    let is_revoked = revoked.is_some_and(|until| creds.claims().issued_at <= *until);
    is_revoked.then(|| {
        format!(
            "its credential is revoked and no new one is stored, so it can do nothing: a `cotal \
             agent narrow {name} …` or `cotal agent retire {name}` that was cut short; run it again"
        )
    })
}
