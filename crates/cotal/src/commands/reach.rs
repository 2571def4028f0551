//! Whether somebody is there to be reached: asked with the root's keys before a message is sent
//! that would go nowhere. Where the keys are not on this machine nobody is asked, and it is sent.

use cotal_manager::Agents;
use cotal_manager::rows::AclRows;
use cotal_wire::channel::any_covers;
use cotal_wire::{Channel, Principal, Role, Space};

use crate::commands::as_agent::Seat;
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// The agents of a space, as they stand.
pub struct Reach {
    agents: Agents,
    rows: AclRows,
    space: Space,
}

impl Reach {
    /// Asks; `None` where it cannot be asked. What keeps it from being asked keeps the message from
    /// being sent as well, and is told there.
    pub async fn of(seat: &Seat) -> Option<Self> {
        let target = seat.target.as_ref()?;
        let agents = Agents::connect(&target.root, &target.space, &target.address()).await.ok()?;
        let rows = agents.acl_rows().await.ok()?;
        Some(Self { agents, rows, space: target.space.clone() })
    }

    /// Refuses a recipient that there is not.
    pub fn agent(&self, to: &Principal) -> anyhow::Result<()> {
        let is_garbled = self.rows.garbled.iter().any(|lifecycle| lifecycle.principal == *to);
        if is_garbled || self.rows.live_of(to).next().is_some() {
            return Ok(());
        }
        let is_meant = |other: &&Principal| other.as_str().eq_ignore_ascii_case(to.as_str());
        let hint = match self.principals().find(is_meant) {
            Some(meant) => format!("did you mean {meant}?"),
            None => "`cotal agent list` shows who there is".to_owned(),
        };
        let was = self.rows.rows.keys().any(|lifecycle| lifecycle.principal == *to);
        let why = if was { "is retired" } else { "does not exist" };
        let message =
            format!("agent {to} {why} in space {}, so nothing was sent: {hint}", self.space);
        Err(Failure::new(Exit::Absent, message).into())
    }

    /// Refuses a mention of nobody, and says of whom it does not reach on this channel.
    pub fn mentions(&self, names: &[String], on: &Channel, ctx: &Context) -> anyhow::Result<()> {
        for name in names {
            let bare = name.trim().trim_start_matches('@').to_lowercase();
            let bears = |theirs: &str| theirs.to_lowercase() == bare;
            let mut named = self.rows.live().filter(|(lifecycle, row)| {
                row.name.as_deref().map_or(lifecycle.principal.actor() == bare, bears)
            });
            let Some((lifecycle, row)) = named.next() else {
                let message = format!(
                    "nobody in space {} is called {bare:?}, so nothing was sent: `cotal agent list` shows \
                     the names",
                    self.space
                );
                return Err(Failure::new(Exit::Absent, message).into());
            };
            if !any_covers(&row.allow_subscribe, on) {
                ctx.out.warn(format_args!(
                    "{} may not read {on}, so the mention does not reach it",
                    lifecycle.principal
                ));
            }
        }
        Ok(())
    }

    /// Refuses a role that is another one's in other case; says of one without a holder that the
    /// request waits.
    pub async fn role(&self, role: &Role, ctx: &Context) -> anyhow::Result<()> {
        let held = self.agents.roles_held(&self.rows);
        if held.contains(role) {
            return Ok(());
        }
        let known = self.agents.has_been_held(role).await?;
        let is_meant = |other: &&Role| other.as_str().eq_ignore_ascii_case(role.as_str());
        if let (false, Some(meant)) = (known, held.iter().find(is_meant)) {
            let message = format!(
                "nobody has ever held the role {role}, so nothing was sent: did you mean {meant}?"
            );
            return Err(Failure::new(Exit::Absent, message).into());
        }
        let who = if known { "no agent of this root holds" } else { "nobody has ever held" };
        ctx.out.warn(format_args!(
            "{who} the role {role}: the request waits until somebody does; `cotal agent add NAME --role \
             {role}` adds a holder"
        ));
        Ok(())
    }

    fn principals(&self) -> impl Iterator<Item = &Principal> {
        self.rows.live().map(|(lifecycle, _)| &lifecycle.principal)
    }
}
