//! The broker that `up` finds running, or starts.

use std::time::Duration;

use anyhow::Context as _;
use cotal_broker::{Broker, ListenPort, SpawnOptions, listens_at, probe};
use cotal_manager::Authority;
use cotal_manager::launch::{
    BrokerLaunch, OwnCertificate, Process, ensure_certificate, moved_from, running_broker,
    stop_broker,
};
use cotal_workspace::Root;
use tokio::time::{Instant, sleep};

use super::args::Args;
use super::plan::Plan;
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// The broker writes down where it listens without an event that could be waited for.
const LISTENS_POLL_EVERY: Duration = Duration::from_millis(50);

/// A broker that answered.
pub(super) enum Served {
    /// Started by this process.
    Started(Box<Broker>),
    /// It was running already.
    Attached(String),
}

impl Served {
    /// Where it answers.
    pub(super) fn url(&self) -> &str {
        match self {
            Self::Started(broker) => broker.url(),
            Self::Attached(url) => url,
        }
    }
}

/// Attaches to this root's broker, or starts it.
pub(super) async fn ensure(
    args: &Args,
    plan: &mut Plan,
    root: &Root,
    authority: Option<&Authority>,
    ctx: &Context,
) -> anyhow::Result<Served> {
    if let Some(broker) = running_broker(root)? {
        if let Some(url) = attach(args, plan, root, &broker).await? {
            let version = probe(&url).await?.version;
            ctx.out.proven(format!("nats-server {version} answers at {url}"));
            return Ok(Served::Attached(url));
        }
        // It was started by an `up` that died before it could record where: nobody uses it yet.
        stop_broker(root).await?;
    }
    if plan.tls {
        take_certificate(args, plan, root)?;
    }
    if let Some(port) = plan.free_default_port()? {
        ctx.out
            .note(format!("  the default port is taken, so this mesh takes {port} and keeps it"));
    }
    let binary = ctx.locate_broker(args.nats_server.clone()).await?;
    for warning in &binary.warnings {
        ctx.out.warn(warning);
    }
    let launch = BrokerLaunch {
        root,
        binary: &binary,
        trust: authority.map(Authority::trust),
        port: plan.port,
        durability: plan.durability,
        tls: plan.tls,
        detach: args.detach,
        max_file_store: None,
    };
    let broker = launch.start().await?;
    let (version, source, url) = (&binary.version, binary.source, broker.url());
    ctx.out.proven(format!("nats-server {version} ({source}) answers at {url}"));
    Ok(Served::Started(Box::new(broker)))
}

/// Where the running broker listens; `None` when it ended, or no `up` came so far as to use it.
async fn attach(
    args: &Args,
    plan: &Plan,
    root: &Root,
    broker: &Process,
) -> anyhow::Result<Option<String>> {
    let Some(before) = &plan.before else { return Ok(None) };
    if let Some(then) = moved_from(root, broker) {
        let message = format!(
            "this root was moved from {} while its mesh is up, and the broker (process {}) still \
             writes there: run `cotal down`, then `cotal up`",
            then.display(),
            broker.pid()
        );
        return Err(Failure::new(Exit::Conflict, message).into());
    }
    // One that an `up` started which was killed may still read its store, and not listen yet.
    let recovered = Instant::now() + SpawnOptions::default().ready_within;
    let url = loop {
        match listens_at(&root.broker_config(), broker.pid()) {
            Some(url) => break url,
            None if broker.has_ended()? => return Ok(None),
            None if probe(&before.server).await.is_ok() || Instant::now() >= recovered => {
                break before.server.clone();
            }
            None => sleep(LISTENS_POLL_EVERY).await,
        }
    };
    refuse_other_settings(args, plan, &url)?;
    Ok(Some(url))
}

/// Makes or takes the broker's certificate, and notes what clients are to trust.
fn take_certificate(args: &Args, plan: &mut Plan, root: &Root) -> anyhow::Result<()> {
    let given = args.tls_cert.clone().zip(args.tls_key.clone());
    let given = given.map(|(cert, key)| OwnCertificate { cert, key, ca: args.tls_ca.clone() });
    let made = ensure_certificate(root, given.as_ref())?;
    if given.is_some() {
        let ca = args.tls_ca.as_ref();
        plan.ca = ca.map(std::fs::canonicalize).transpose().context("--tls-ca cannot be read")?;
    } else if made.is_some() {
        plan.ca = made;
    }
    Ok(())
}

/// Port, durability and transport belong to the running process; changing them silently would be a
/// lie.
fn refuse_other_settings(args: &Args, plan: &Plan, url: &str) -> anyhow::Result<()> {
    let before = plan.before.as_ref();
    let same_durability = before.is_none_or(|mesh| mesh.durability == plan.durability);
    let same_port = match plan.port {
        ListenPort::Any => true,
        ListenPort::Fixed(port) => url.ends_with(&format!(":{port}")),
    };
    let same_tls = args.tls_cert.is_none() && before.is_none_or(|mesh| mesh.tls == plan.tls);
    if same_durability && same_port && same_tls {
        return Ok(());
    }
    let message = format!(
        "the broker runs at {url} with other settings: run `cotal down`, then `cotal up` with the \
         new ones"
    );
    Err(Failure::new(Exit::Conflict, message).into())
}
