//! Agents: provisioned in an order that any crash can repeat, and listed.
//!
//! The order is record → consumers → credential → ACL row. The ACL row comes last because it is
//! what makes the agent exist for everybody else: until it stands, no mention finds the agent and
//! no entry is released to it, so whoever sees the agent sees a complete one. The frontier is read
//! before the record is written and kept in it, so that a continued provisioning asks for the very
//! same consumers.

mod acl_rewrite;
mod add;
mod history;
mod known;
mod known_key;
mod losses;
mod name;
mod narrow;
mod pending;
mod provisioning;
mod reissue;
mod retire;
mod unfinished;
mod widen;

use std::collections::BTreeMap;

use cotal_nats::Connection;
use cotal_trust::SpaceAccount;
use cotal_wire::creds::Creds;
use cotal_wire::profile::{AgentGrant, Profile};
use cotal_wire::rows::AclRow;
use cotal_wire::{ChannelPattern, Lifecycle, Principal, Role, Space};
use cotal_workspace::{FileStore, Root, SecretKey, SecretKind, SecretStore};

use crate::authority::{Authority, BrokerAddress, Office};
use crate::clock::unix_millis;
use crate::error::{Doing, ManagerError};
use crate::gate::Gate;
use crate::rail::Rail;
use crate::rows::{AclRows, read_presence};

pub use add::{Added, Begun};
pub use losses::{Losses, LostConsumer, find_losses, restore_consumers};
pub use name::AgentName;
pub use provisioning::Provisioning;
pub use retire::{Done, Retired, Retirement};
pub use unfinished::{Unfinished, unfinished_agents};
pub use widen::MoreGrants;

/// A presence row is written every 2 s and its bucket keeps it for 6 s.
const PRESENT_FOR_MS: i64 = 6_000;

/// What an agent is to be.
#[derive(Debug, Clone)]
pub struct NewAgent {
    /// Its name.
    pub name: AgentName,
    /// Channels it may read.
    pub read: Vec<ChannelPattern>,
    /// Channels it may post on.
    pub post: Vec<ChannelPattern>,
    /// The role whose requests it processes.
    pub role: Option<Role>,
}

/// An agent as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// Who.
    pub principal: Principal,
    /// The display name, when it has one.
    pub name: Option<String>,
    /// Channels it may read now.
    pub read: Vec<ChannelPattern>,
    /// Channels its credential may post on; `None` when the credential is not on this root.
    pub post: Option<Vec<ChannelPattern>>,
    /// Its role, as far as its credential is on this root.
    pub role: Option<Role>,
    /// Whether it says that it is present.
    pub present: bool,
    /// What was begun about it and is not complete, or is damaged, and what completes it.
    pub unfinished: Vec<String>,
}

/// The agents of one space.
#[derive(Debug)]
pub struct Agents {
    authority: Authority,
    connection: Connection,
    own: Principal,
    broker: BrokerAddress,
    root: Root,
    store: FileStore,
}

impl Agents {
    /// Connects as the supervisor of the space.
    ///
    /// # Errors
    /// When the root cannot sign for the space, or the broker cannot be reached.
    pub async fn connect(
        root: &Root,
        space: &Space,
        broker: &BrokerAddress,
    ) -> Result<Self, ManagerError> {
        let authority = Authority::open(root, space)?;
        let (own, connection) = authority.connect(Office::Supervisor, broker).await?;
        Ok(Self {
            authority,
            connection,
            own,
            broker: broker.clone(),
            root: root.clone(),
            store: FileStore::new(root.clone()),
        })
    }

    /// Every live agent, by principal.
    ///
    /// # Errors
    /// When the broker fails or a stored credential is damaged.
    pub async fn list(&self) -> Result<Vec<Agent>, ManagerError> {
        let rows = self.rows().await?;
        let space = self.authority.space();
        let presence = read_presence(&self.connection, space)
            .await
            .doing(|| format!("read who is present in space {space}"))?;
        let now = unix_millis();
        let mut agents = BTreeMap::new();
        let unfinished = unfinished_agents(&self.authority)?;
        for (lifecycle, row) in rows.live() {
            // One that is damaged keeps nobody else from being listed; what is wrong is told below.
            let creds = self.creds_of(lifecycle).ok().flatten();
            let of_it = unfinished.iter().filter(|one| one.agent == lifecycle.principal);
            let agent = Agent {
                principal: lifecycle.principal.clone(),
                name: row.name.clone(),
                read: row.allow_subscribe.clone(),
                post: creds.as_ref().map(|c| posts(space, &lifecycle.principal, c)),
                role: creds.as_ref().and_then(|c| c.claims.role()),
                present: presence
                    .get(&lifecycle.principal)
                    .is_some_and(|row| now - row.ts < PRESENT_FOR_MS),
                unfinished: of_it.map(|one| one.what.clone()).collect(),
            };
            agents.insert(lifecycle, agent);
        }
        Ok(agents.into_values().collect())
    }

    async fn rows(&self) -> Result<AclRows, ManagerError> {
        let space = self.authority.space();
        AclRows::read(&self.connection, space)
            .await
            .doing(|| format!("read the ACL rows of space {space}"))
    }

    /// Mentions go by display name, so two live agents never share one, whatever its case.
    fn refuse_taken(&self, agent: &NewAgent, rows: &AclRows) -> Result<(), ManagerError> {
        let principal = agent.name.principal();
        if let Some(garbled) = rows.garbled.iter().find(|l| l.principal == *principal) {
            return Err(ManagerError::GarbledRow(garbled.principal.clone()));
        }
        let name = agent.name.display();
        let bears = |row: &AclRow| {
            let theirs = row.name.as_deref();
            theirs.is_some_and(|theirs| theirs.to_lowercase() == name.to_lowercase())
        };
        let holder =
            rows.live().find(|(lifecycle, row)| lifecycle.principal != *principal && bears(row));
        match holder {
            Some((lifecycle, _)) => Err(ManagerError::NameTaken {
                name: name.to_owned(),
                holder: lifecycle.principal.clone(),
            }),
            None => Ok(()),
        }
    }

    /// The stored credential of exactly this incarnation.
    fn creds_of(&self, lifecycle: &Lifecycle) -> Result<Option<Creds>, ManagerError> {
        let principal = &lifecycle.principal;
        let Some(secret) = self.store.get(&self.key(principal))? else {
            return Ok(None);
        };
        let creds = Creds::parse(secret.expose()).map_err(|source| ManagerError::DamagedCreds {
            principal: principal.clone(),
            source,
        })?;
        Ok(creds.claims.lifecycle().is_ok_and(|of| of == *lifecycle).then_some(creds))
    }

    fn is_same(
        &self,
        agent: &NewAgent,
        lifecycle: &Lifecycle,
        row: &AclRow,
        creds: &Creds,
    ) -> bool {
        let profile = Profile::Agent(grant(agent, lifecycle));
        let (space, topology) = (self.space(), self.account().topology());
        let wanted = profile.permissions(space, &creds.claims.subject, topology);
        row.allow_subscribe == agent.read
            && row.name.as_deref() == Some(agent.name.display())
            && creds.claims.pub_allow == wanted.pub_allow
            && creds.claims.sub_allow == wanted.sub_allow
    }

    fn key(&self, principal: &Principal) -> SecretKey {
        SecretKey::new(self.space(), SecretKind::Agent(principal.clone()))
    }

    fn gate(&self) -> Gate {
        Gate::of(&self.root, self.space())
    }

    fn rail(&self) -> Rail {
        Rail::new(&self.connection, self.space(), &self.own)
    }

    fn space(&self) -> &Space {
        self.authority.space()
    }

    fn account(&self) -> &SpaceAccount {
        self.authority.account()
    }
}

fn grant(agent: &NewAgent, lifecycle: &Lifecycle) -> AgentGrant {
    AgentGrant {
        lifecycle: lifecycle.clone(),
        read: agent.read.clone(),
        post: agent.post.clone(),
        role: agent.role.clone(),
    }
}

/// The channels that a credential may post on, read back from its permissions.
fn posts(space: &Space, principal: &Principal, creds: &Creds) -> Vec<ChannelPattern> {
    let Ok(all) = ChannelPattern::parse(">") else {
        return Vec::new();
    };
    let everywhere = space.chat_posts(principal, &all);
    let head = everywhere.trim_end_matches('>');
    let channels = creds.claims.pub_allow.iter().filter_map(|s| s.strip_prefix(head));
    channels.filter_map(|c| ChannelPattern::parse(c).ok()).collect()
}
