//! `cotal doctor auth`: the credentials that the daemon runs on, who renews them and what became of
//! the last renewal.

use std::sync::Arc;

use cotal_broker::probe;
use cotal_manager::launch::running_manager;
use cotal_manager::{
    Authority, BrokerAddress, Gate, ManagerError, Renewal, Renewals, clock, renew_in, renew_once,
};
use cotal_rules::renewal::{self, Age};
use cotal_wire::Space;
use cotal_workspace::{
    FileStore, MeshFile, Mode, Root, SecretKey, SecretKind, SecretStore as _, Segment,
};
use serde::Serialize;

use super::checks::{expected, read};
use crate::args::{JsonArg, LifetimeArg};
use crate::context::{Context, tls_of};
use crate::exit::Exit;
use crate::output::plain;

/// Shows each credential with its owner, its end and its last adoption.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
--fix signs anew what is due, missed, expired, missing or damaged, and has a running daemon adopt
it; what a running manager renews is left to it. Ends with 0 when every credential is in order.

Examples:
  cotal doctor auth
  cotal doctor auth --fix
  cotal doctor auth --json")]
pub struct Args {
    /// Repair what may be repaired.
    #[arg(long)]
    fix: bool,
    #[command(flatten)]
    lifetime: LifetimeArg,
    #[command(flatten)]
    output: JsonArg,
}

/// Where a credential stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    Good,
    Due,
    Missed,
    Expired,
    Missing,
    Damaged,
    /// The daemon was stopped for good.
    TakenAway,
}

impl State {
    fn is_in_order(self) -> bool {
        matches!(self, Self::Good | Self::Due | Self::TakenAway)
    }

    fn said(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Due => "due for renewal",
            Self::Missed => "MISSED: past 75 % of its life and not renewed",
            Self::Expired => "EXPIRED",
            Self::Missing => "MISSING",
            Self::Damaged => "DAMAGED",
            Self::TakenAway => "taken away when the daemon was stopped; `cotal up` gives it back",
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Credential {
    credential: String,
    /// Who signs it anew.
    owner: &'static str,
    identity: Option<String>,
    /// Unix seconds.
    expires_at: Option<i64>,
    state: State,
    /// What became of the last offer to the daemon.
    adoption: Option<Renewal>,
    /// Whether the daemon was offered this very credential, and has it or does not run what needs
    /// it.
    settled: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SpaceAuth {
    space: Space,
    /// The manager's process.
    manager: Option<u32>,
    /// Why the registration gate is frozen.
    gate: Option<String>,
    credentials: Vec<Credential>,
    /// What was repaired, or why it was not.
    repairs: Vec<String>,
}

impl SpaceAuth {
    fn is_in_order(&self) -> bool {
        self.gate.is_none() && self.credentials.iter().all(|one| one.state.is_in_order())
    }
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let root = ctx.root()?;
    let mesh = ctx.mesh(&root)?;
    let mut spaces = Vec::new();
    for space in &mesh.spaces {
        if mesh.mode == Mode::Open {
            continue;
        }
        let mut found = look(&root, space)?;
        if args.fix {
            let repairs = fix(&root, &mesh, &found, args.lifetime).await?;
            found = look(&root, space)?;
            found.repairs = repairs;
        }
        spaces.push(found);
    }
    if args.output.json {
        ctx.out.json(&spaces)?;
    } else {
        spaces.iter().try_for_each(|space| print(space, ctx))?;
    }
    let in_order = spaces.iter().all(SpaceAuth::is_in_order);
    Ok(if in_order { Exit::Ok } else { Exit::Failure })
}

fn look(root: &Root, space: &Space) -> anyhow::Result<SpaceAuth> {
    let store = FileStore::new(root.clone());
    let renewals = Renewals::load(root, space)?;
    let now = clock::unix_seconds();
    let set_aside = root.delivery_seed(&Segment::from(space)).exists();
    let authority = Authority::open(root, space).ok();
    let mut credentials = Vec::new();
    for kind in expected(authority.as_ref()) {
        let secret = store.get(&SecretKey::new(space, kind.clone()))?;
        let creds = secret.as_ref().map(|one| read(authority.as_ref(), &kind, one.expose()));
        let is_taken = set_aside && kind == SecretKind::Delivery;
        let claims = creds.as_ref().and_then(|creds| creds.as_ref().ok()).map(|c| &c.claims);
        let state = match &creds {
            None if is_taken => State::TakenAway,
            None => State::Missing,
            Some(Err(_)) => State::Damaged,
            Some(Ok(creds)) => {
                match renewal::age(creds.claims.issued_at, creds.claims.expires_at, now) {
                    Age::Fresh => State::Good,
                    Age::Due => State::Due,
                    Age::Missed => State::Missed,
                    Age::Expired => State::Expired,
                }
            }
        };
        credentials.push(Credential {
            credential: kind.name(),
            owner: "manager",
            identity: claims.map(|claims| claims.subject.to_string()),
            expires_at: claims.and_then(|claims| claims.expires_at),
            state,
            settled: creds.is_some_and(|c| c.is_ok_and(|c| renewals.is_settled(&kind, &c))),
            adoption: renewals.of(&kind).cloned(),
        });
    }
    Ok(SpaceAuth {
        space: space.clone(),
        manager: running_manager(root, space)?.map(|manager| manager.pid()),
        gate: Gate::of(root, space).frozen()?.map(|frozen| frozen.reason),
        credentials,
        repairs: Vec::new(),
    })
}

/// Repairs one space; tells what was done, or why not.
async fn fix(
    root: &Root,
    mesh: &MeshFile,
    found: &SpaceAuth,
    lifetime: LifetimeArg,
) -> anyhow::Result<Vec<String>> {
    // What was signed and never adopted is offered again; the `$SYS` pair is nobody's to adopt.
    let needs = |one: &&Credential| match one.state {
        State::TakenAway => false,
        State::Good => one.adoption.is_some() && !one.settled,
        _ => true,
    };
    let wrong: Vec<_> =
        found.credentials.iter().filter(needs).map(|one| one.credential.clone()).collect();
    let mut repairs = Vec::new();
    if found.gate.is_some() && found.manager.is_none() {
        repairs.push("the gate is opened by a manager only: run `cotal up`".to_owned());
    }
    if wrong.is_empty() {
        return Ok(repairs);
    }
    let names = wrong.join(", ");
    let delivery = SecretKind::Delivery.name();
    let is_absent = |one: &Credential| {
        one.credential == delivery && matches!(one.state, State::Missing | State::TakenAway)
    };
    if found.credentials.iter().any(is_absent) {
        repairs.push(format!("{names}: without a delivery credential, `cotal up` signs them anew"));
        return Ok(repairs);
    }
    let authority = Authority::open(root, &found.space)?;
    let authority = authority.with_lifetime(lifetime.credential_lifetime);
    let store = FileStore::new(root.clone());
    if probe(&mesh.server).await.is_err() {
        renew_in(&authority, &store)?;
        repairs.push(format!(
            "{names}: signed anew; the broker does not answer, so nobody adopted it"
        ));
        return Ok(repairs);
    }
    let address = BrokerAddress { url: mesh.server.clone(), tls: tls_of(mesh) };
    repairs.push(match renew_once(authority, Arc::new(store), &address).await {
        Ok(()) => format!("{names}: signed anew and offered to the daemon"),
        Err(ManagerError::Renewed(_)) => {
            format!("{names}: left to the manager that runs; its log says what it does")
        }
        Err(error) => return Err(error.into()),
    });
    Ok(repairs)
}

fn print(space: &SpaceAuth, ctx: &Context) -> anyhow::Result<()> {
    let out = &ctx.out;
    out.data(format_args!("space     {}", space.space))?;
    match space.manager {
        Some(pid) => out.data(format_args!("manager   pid {pid}"))?,
        None => out.data("manager   does not run: nobody renews; `cotal up` starts it")?,
    }
    if let Some(reason) = &space.gate {
        out.data(format_args!("gate      frozen: {}", plain(reason)))?;
    }
    let now = clock::unix_seconds();
    for one in &space.credentials {
        let left = match one.expires_at.map(|end| end - now) {
            None => String::new(),
            Some(left) if left >= 7_200 => format!(", {} h left", left / 3_600),
            Some(left) => format!(", {} s left", left.max(0)),
        };
        let adoption = one
            .adoption
            .as_ref()
            .map_or(String::new(), |adoption| format!("; {}", adopted(adoption, now)));
        let (name, state) = (&one.credential, one.state.said());
        let renewed = renewed(one, space);
        out.data(format_args!("{name}: {state}{left}, {renewed}{adoption}"))?;
    }
    for repair in &space.repairs {
        out.data(format_args!("repair    {}", plain(repair)))?;
    }
    Ok(())
}

/// Who renews it, as it is: a manager whose renewals are refused renews nothing.
fn renewed(one: &Credential, space: &SpaceAuth) -> String {
    use cotal_manager::RenewalOutcome;
    let owner = one.owner;
    let is_refused = one
        .adoption
        .as_ref()
        .is_some_and(|last| matches!(last.outcome, RenewalOutcome::Refused(_)));
    match (space.manager, is_refused) {
        (None, _) => format!("not renewed, because the {owner} does not run"),
        (Some(_), true) => format!("not renewed: what the {owner} offers is refused"),
        (Some(_), false) => format!("renewed by the {owner}"),
    }
}

fn adopted(renewal: &Renewal, now: i64) -> String {
    use cotal_manager::RenewalOutcome;
    let ago = (now - renewal.at / 1_000).max(0);
    match &renewal.outcome {
        RenewalOutcome::Adopted => format!("adopted {ago} s ago"),
        RenewalOutcome::Skipped(why) => format!("skipped {ago} s ago: {}", plain(why)),
        RenewalOutcome::Refused(why) => format!("refused {ago} s ago: {}", plain(why)),
        RenewalOutcome::Unanswered(why) => format!("not answered {ago} s ago: {}", plain(why)),
    }
}
