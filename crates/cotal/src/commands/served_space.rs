//! Where a process of a root runs: which root, which space, which broker.

use std::path::PathBuf;

use cotal_nats::TlsMode;
use cotal_wire::Space;
use cotal_workspace::{MeshEntry, MeshFile, Mode, Root};
use tokio::signal::unix::Signal;
use tracing::{error, warn};

use crate::args::MeshArgs;
use crate::context::{Context, DEFAULT_SERVER, first_space, tls_of};
use crate::exit::{Exit, Failure};
use crate::logging;
use crate::output::told;

/// The end of a process that found no place to run: it has no log of its own, and its line on
/// standard error is one of a log like all that follow it.
pub fn nowhere(process: &str, args: &MeshArgs, failure: &anyhow::Error, ctx: &Context) -> Exit {
    logging::to_stderr(ctx.log_format);
    let space = args.space.as_ref().map(ToString::to_string).unwrap_or_default();
    error!(space, "✗ {process}: {}", told(failure));
    Exit::of(failure)
}

/// Where a process of one space runs.
pub struct ServedSpace {
    pub root: Root,
    pub space: Space,
    pub server: String,
    pub tls: TlsMode,
    /// The root that the registry records for the space, where it is not this one.
    other: Option<PathBuf>,
}

impl ServedSpace {
    /// Says whose broker is dialled, where it is another root's: that one knows nothing of what
    /// this root signed, and its refusal does not tell.
    pub fn warn_of_another_root(&self) {
        let Some(other) = &self.other else { return };
        let (space, server) = (&self.space, &self.server);
        warn!(
            %space,
            "the mesh registry records space {space} for another root, {}, so its broker at \
             {server} is dialled: run `cotal up` in {} to record this root",
            other.display(),
            self.root.dir().display()
        );
    }
}

/// The root, the space that was named or else the root's first, and the broker of it.
pub fn served_space(args: &MeshArgs, ctx: &Context) -> anyhow::Result<ServedSpace> {
    let root = ctx.root()?;
    let mesh = MeshFile::load(&root)?;
    let space = match (&args.space, &mesh) {
        (Some(space), _) => space.clone(),
        (None, Some(mesh)) => first_space(mesh)?,
        (None, None) => return Err(Failure::new(Exit::Usage, "name the space: --space").into()),
    };
    if mesh.as_ref().is_some_and(|mesh| mesh.mode == Mode::Open && mesh.spaces.contains(&space)) {
        let message = "this mesh is open, so it has no daemon and no manager: bring up an \
                       authenticated one with `cotal up` in another directory";
        return Err(Failure::new(Exit::Refused, message).into());
    }
    let recorded = ctx.recorded(&space)?;
    let (server, tls) = broker(&space, args.server.as_deref(), recorded.as_ref(), mesh.as_ref())?;
    let other = recorded.map(|entry| entry.root).filter(|other| other != root.dir());
    Ok(ServedSpace { root, space, server, tls, other })
}

/// The broker of a space: the one that the registry records, which nothing overrides; without a
/// record the one that was named, else the root's, else the local default (LIF-13).
pub fn broker(
    space: &Space,
    named: Option<&str>,
    recorded: Option<&MeshEntry>,
    mesh: Option<&MeshFile>,
) -> anyhow::Result<(String, TlsMode)> {
    let of_root = mesh.map_or(TlsMode::Plain, tls_of);
    let same = |a: &str, b: &str| a.trim_end_matches('/') == b.trim_end_matches('/');
    let Some(entry) = recorded else {
        let server = named.or(mesh.map(|mesh| mesh.server.as_str()));
        return Ok((server.unwrap_or(DEFAULT_SERVER).to_owned(), of_root));
    };
    if let Some(named) = named.filter(|named| !same(named, &entry.server)) {
        let message = format!(
            "the mesh registry records {} for space {space}, not {named}: leave --server out, or \
             run `cotal up` on the root that serves it",
            entry.server
        );
        return Err(Failure::new(Exit::Conflict, message).into());
    }
    let tls = if entry.tls {
        let ca = entry.ca.clone();
        TlsMode::Required { ca }
    } else {
        of_root
    };
    Ok((entry.server.clone(), tls))
}

/// Waits for a signal that asks a process to end, and gives its name.
pub async fn signalled(interrupt: &mut Signal, terminate: &mut Signal) -> &'static str {
    tokio::select! {
        _ = interrupt.recv() => "SIGINT",
        _ = terminate.recv() => "SIGTERM",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(server: &str, tls: bool) -> MeshEntry {
        MeshEntry { root: "/r".into(), server: server.to_owned(), tls, ca: None }
    }

    fn resolve(named: Option<&str>, recorded: Option<&MeshEntry>) -> anyhow::Result<String> {
        let space = Space::parse("main")?;
        Ok(broker(&space, named, recorded, None)?.0)
    }

    #[test]
    fn lif_13_the_recorded_broker_is_dialled_and_another_is_refused() {
        let recorded = entry("nats://127.0.0.1:4333", false);
        let dialled = |named| resolve(named, Some(&recorded));
        assert_eq!(dialled(None).unwrap(), "nats://127.0.0.1:4333");
        assert_eq!(dialled(Some("nats://127.0.0.1:4333/")).unwrap(), "nats://127.0.0.1:4333");
        let refused = dialled(Some("nats://127.0.0.1:4222")).unwrap_err();
        assert_eq!(Exit::of(&refused), Exit::Conflict);
        assert!(refused.to_string().contains("4333"), "{refused}");
    }

    #[test]
    fn lif_13_without_a_record_it_is_the_one_named_else_the_local_default() {
        assert_eq!(resolve(None, None).unwrap(), DEFAULT_SERVER);
        assert_eq!(resolve(Some("nats://h:1"), None).unwrap(), "nats://h:1");
    }

    #[test]
    fn lif_1_a_tls_mesh_is_dialled_with_tls_demanded() {
        let space = Space::parse("main").unwrap();
        let recorded = entry("tls://127.0.0.1:4333", true);
        let (_, tls) = broker(&space, None, Some(&recorded), None).unwrap();
        assert_eq!(tls, TlsMode::Required { ca: None });
    }
}
