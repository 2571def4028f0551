//! The lanes of the multi-space host of a root, as the host says they stand.

use cotal_workspace::{HostFile, HostLane, MeshFile, Root};
use serde::Serialize;

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::{age, plain};

/// A host that has not written for this long hangs, or is paused: what it said is old.
const FRESH_MS: i64 = 30_000;

/// A root that runs a host and has no mesh of its own, such as that of a standby host.
pub(super) struct Alone(HostFile);

#[derive(Serialize)]
struct Shown<'a> {
    root: &'a std::path::Path,
    host: &'a HostFile,
}

/// The host of a root that has no mesh; none when it has one, or when no host runs.
pub(super) fn alone(root: &Root) -> anyhow::Result<Option<Alone>> {
    if MeshFile::load(root)?.is_some() {
        return Ok(None);
    }
    match HostFile::load(root)? {
        None => Ok(None),
        Some(Some(file)) => Ok(Some(Alone(file))),
        Some(None) => {
            let message = "a host runs on this root and has not said anything yet: try again";
            Err(Failure::new(Exit::NotServing, message).into())
        }
    }
}

impl Alone {
    /// Shows the host and tells whether every lane is where it should be.
    pub(super) fn print(&self, root: &Root, json: bool, ctx: &Context) -> anyhow::Result<Exit> {
        let Self(host) = self;
        if json {
            ctx.out.json(&Shown { root: root.dir(), host })?;
        } else {
            ctx.out.data(format_args!("root      {}", root.dir().display()))?;
            print(host, ctx)?;
        }
        let fine = |lane: &HostLane| matches!(lane.state.as_str(), "serving" | "standby");
        let all = is_fresh(host) && host.lanes.iter().all(fine);
        Ok(if all { Exit::Ok } else { Exit::NotServing })
    }
}

fn is_fresh(host: &HostFile) -> bool {
    cotal_manager::clock::unix_millis() - host.written < FRESH_MS
}

/// Every lane: its state, since when, and why.
pub(super) fn print(host: &HostFile, ctx: &Context) -> anyhow::Result<()> {
    let out = &ctx.out;
    let serving = host.lanes.iter().filter(|lane| lane.state == "serving").count();
    out.data("")?;
    out.data(format_args!(
        "host      pid {}, {}: serving {serving} of {} spaces at {}",
        host.pid,
        plain(&host.manifest.display().to_string()),
        host.lanes.len(),
        plain(&host.server)
    ))?;
    if !is_fresh(host) {
        out.warn(format!(
            "the host runs and has said nothing for {}: what follows is as old as that",
            age(host.written)
        ));
    }
    for lane in &host.lanes {
        let why = lane.reason.as_deref().map_or(String::new(), |why| format!(": {}", plain(why)));
        let (state, since) = (plain(&lane.state), age(lane.since));
        out.data(format_args!("lane      {} {state} for {since}{why}", lane.space))?;
    }
    Ok(())
}
