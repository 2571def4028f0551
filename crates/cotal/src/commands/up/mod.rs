//! `cotal up`: a mesh with one command, completed where something of it is missing.
//!
//! Invariant: only what was proven is reported. The broker counts as up when it answered, a space
//! when its streams stand, a daemon when its responder said that it serves.

mod args;
mod broker;
mod daemon;
mod foreground;
mod manager;
mod mesh;
mod plan;
mod supervise;

use cotal_broker::Broker;
use cotal_manager::launch::running_broker;
use cotal_manager::{
    Authority, ManagerError, Provisioned, Shape, ensure_daemon_credentials, find_losses, provision,
    provision_space, restore_consumers, write_back_rows,
};
use cotal_nats::{ConnectOptions, Connection, CredsSource};
use cotal_wire::Space;
use cotal_wire::names::DEFAULTS_KEY;
use cotal_workspace::{FileStore, MeshEntry, MeshFile, Mode, Reservation, Root};

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::told;

use self::broker::Served;
use self::foreground::StopRequest;
use self::plan::Plan;

pub use self::args::Args;
pub use self::mesh::Up;

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    ctx.registry()?.check()?;
    let root = ctx.root_or_init()?;
    let held = Reservation::try_acquire(&root.up_lock())?;
    let mut plan = Plan::new(&args, MeshFile::load(&root)?)?;
    let authorities = match plan.mode {
        Mode::Auth => authorities(&root, &plan, &args)?,
        Mode::Open => Vec::new(),
    };
    if args.detach {
        let served = broker::ensure(&args, &mut plan, &root, authorities.first(), ctx).await?;
        let mut up = Up::new(ctx, root, plan.mesh(served.url()));
        up.hosted = args.hosted;
        return up.leave(&authorities).await;
    }
    let mut stop_request = StopRequest::listen()?;
    let served = tokio::select! {
        served = broker::ensure(&args, &mut plan, &root, authorities.first(), ctx) => served?,
        // A broker that has not answered yet is killed as it is dropped.
        () = stop_request.told() => return Ok(Exit::Ok),
    };
    let mut up = Up::new(ctx, root, plan.mesh(served.url()));
    up.hosted = args.hosted;
    let broker = match served {
        Served::Started(broker) => *broker,
        Served::Attached(_) => return up.leave(&authorities).await,
    };
    Box::pin(up.stay(broker, &authorities, held, stop_request)).await
}

/// The signing side of every space of the root; trust material is made once.
fn authorities(root: &Root, plan: &Plan, args: &Args) -> anyhow::Result<Vec<Authority>> {
    if args.new_trust {
        make_room_for_new_trust(root)?;
    }
    let open = |space| {
        let authority = if args.new_trust {
            Authority::create_anew(root, space)
        } else {
            Authority::create_or_open(root, space)
        };
        Ok(authority?.with_lifetime(args.lifetime.credential_lifetime))
    };
    plan.spaces.iter().map(open).collect()
}

/// A new trust root begins a new mesh: never beside keys that are there, and never under a broker
/// that knows the old ones.
fn make_room_for_new_trust(root: &Root) -> anyhow::Result<()> {
    let why = if root.operator_seed().exists() {
        "this root has its operator's key: leave --new-trust out".to_owned()
    } else if let Some(broker) = running_broker(root)? {
        format!(
            "the broker (process {}) runs on the old keys: run `cotal down` first",
            broker.pid()
        )
    } else {
        return Ok(());
    };
    Err(Failure::new(Exit::Conflict, why).into())
}

/// What came of the spaces.
pub struct Completed<'a> {
    /// The worst outcome.
    pub exit: Exit,
    /// The daemons that this process started and that serve.
    launched: Vec<daemon::Launched<'a>>,
}

impl Up<'_> {
    /// Completes the mesh and leaves it running.
    async fn leave(&self, authorities: &[Authority]) -> anyhow::Result<Exit> {
        self.mesh.save(&self.root)?;
        let served = self.spaces(authorities).await?.exit;
        let exit = self.managers(authorities, served).await?;
        self.ctx.out.data(&self.mesh.server)?;
        Ok(exit)
    }

    /// Completes the mesh and stays with it. Whatever ends this, a failure half way included, takes
    /// down what was started.
    async fn stay(
        &self,
        broker: Broker,
        authorities: &[Authority],
        held: Reservation,
        mut stop_request: StopRequest,
    ) -> anyhow::Result<Exit> {
        let completed = async {
            self.mesh.save(&self.root)?;
            let completed = self.spaces(authorities).await?;
            if completed.exit == Exit::Ok {
                self.ctx.out.data(&self.mesh.server)?;
            }
            anyhow::Ok(completed)
        };
        let completed = tokio::select! {
            completed = completed => Some(completed),
            () = stop_request.told() => None,
        };
        drop(held);
        let ended = match completed {
            Some(Ok(Completed { exit: Exit::Ok, launched })) => {
                let staying = foreground::stay(self, broker, authorities, launched, stop_request);
                return Box::pin(staying).await;
            }
            Some(Ok(completed)) => Ok(completed.exit),
            Some(Err(error)) => Err(error),
            None => Ok(Exit::Ok),
        };
        let down = foreground::take_down(self).await;
        drop(broker);
        match (ended, down) {
            (Err(error), Err(left)) => {
                self.ctx.out.warn(format!("not everything was stopped: {}", told(&left)));
                Err(error)
            }
            (Err(error), Ok(_)) => Err(error),
            (Ok(Exit::Ok), down) => down,
            (Ok(exit), down) => down.map(|_| exit),
        }
    }

    /// Completes every space; the worst outcome is the command's.
    pub async fn spaces<'s>(&self, authorities: &'s [Authority]) -> anyhow::Result<Completed<'s>> {
        let mut completed = Completed { exit: Exit::Ok, launched: Vec::new() };
        if self.mesh.mode == Mode::Open {
            for space in &self.mesh.spaces {
                self.open_space(space).await?;
            }
            return Ok(completed);
        }
        for authority in authorities {
            self.space(authority).await?;
            if self.hosted {
                continue;
            }
            let (exit, launched) = daemon::ensure(self, authority).await?;
            if exit != Exit::Ok {
                completed.exit = exit;
            }
            completed.launched.extend(launched);
        }
        Ok(completed)
    }

    /// Completes the managers of spaces that came out as `exit`: where a space is not served there
    /// is no rail to manage it over. Without its manager it is served and its credentials are not
    /// renewed.
    pub async fn managers(&self, authorities: &[Authority], exit: Exit) -> anyhow::Result<Exit> {
        let mut managed = exit;
        if self.hosted {
            return Ok(managed);
        }
        for authority in authorities {
            if exit == Exit::Ok && !manager::ensure(self, authority).await? {
                managed = Exit::Partial;
            }
        }
        Ok(managed)
    }

    async fn space(&self, authority: &Authority) -> anyhow::Result<()> {
        let space = authority.space();
        // Before anything is made: what is made anew looks as if nothing had been lost.
        self.tell_losses(authority).await?;
        let done = provision(authority, &self.address).await?;
        self.report(space, &done);
        let store = FileStore::new(self.root.clone());
        for renewed in ensure_daemon_credentials(authority, &store)? {
            let (kind, reason) = (renewed.kind.name(), renewed.reason);
            let line = format!("space {space}: {kind} credential minted, {reason}");
            self.ctx.out.proven(line);
        }
        self.restore(authority).await?;
        self.write_back(authority).await?;
        self.register(space)
    }

    async fn tell_losses(&self, authority: &Authority) -> Result<(), ManagerError> {
        let space = authority.space();
        for (store, meaning) in find_losses(authority, &self.address).await?.stores {
            self.ctx.out.warn(format!(
                "space {space}: {store} is gone, and with it for good {meaning}. It is created again, \
                 empty; a backup of .cotal/broker/ has what it held"
            ));
        }
        Ok(())
    }

    /// Without its consumers an agent gets nothing, and nothing says so.
    async fn restore(&self, authority: &Authority) -> Result<(), ManagerError> {
        let space = authority.space();
        for one in restore_consumers(authority, &self.address).await? {
            self.ctx.out.warn(format!(
                "space {space}: the consumer of {} on {} was gone, and is created again: what the \
                 stream still holds for it is delivered from the beginning",
                one.agent, one.stream
            ));
        }
        Ok(())
    }

    /// Garbled rows are tampering or a defect, so each is told.
    async fn write_back(&self, authority: &Authority) -> Result<(), ManagerError> {
        let space = authority.space();
        for done in write_back_rows(authority, &self.address).await? {
            let row = done.row;
            self.ctx.out.warn(if done.restored {
                format!("space {space}: {row} was garbled; the last valid one is put back")
            } else {
                format!("space {space}: {row} is garbled and its history holds no valid one")
            });
        }
        Ok(())
    }

    async fn open_space(&self, space: &Space) -> anyhow::Result<()> {
        let source = CredsSource::anonymous();
        let options = ConnectOptions::new(&self.address.url, "cotal provisioner", source)
            .tls(self.address.tls.clone());
        let connection = Connection::connect(options).await?;
        let done = provision_space(&connection, space, Shape::LiveOnly).await?;
        connection.close(crate::context::CLOSE_WITHIN).await;
        self.report(space, &done);
        self.ctx.out.warn(format!(
            "space {space} is open: no credentials, no delivery daemon, live-only. Anyone who \
             reaches the port reads and writes everything"
        ));
        self.register(space)
    }

    fn report(&self, space: &Space, done: &Provisioned) {
        let out = &self.ctx.out;
        for (stream, changes) in &done.repaired {
            for change in changes {
                let (field, from, to) = (change.field, &change.from, &change.to);
                out.warn(format!("{stream}: {field} was {from}, it must be {to}: repaired"));
            }
        }
        match done.created.len() {
            0 => out.proven(format!("space {space} is complete, nothing was created")),
            _ => out.proven(format!("created space {space} ({})", counted(&done.created))),
        }
    }

    fn register(&self, space: &Space) -> anyhow::Result<()> {
        let entry = MeshEntry {
            root: self.root.dir().to_owned(),
            server: self.mesh.server.clone(),
            tls: self.mesh.tls,
            ca: self.mesh.ca.clone(),
        };
        let before = self.ctx.registry()?.insert(space, entry)?;
        if let Some(other) = before.filter(|other| other.root != self.root.dir()) {
            let dir = other.root.display();
            self.ctx.out.warn(format!(
                "the registry recorded space {space} for {dir}; it records this root now"
            ));
        }
        Ok(())
    }
}

/// What was created, by its kind.
fn counted(created: &[String]) -> String {
    let count = |one: &str, many: &str, is: &dyn Fn(&str) -> bool| match created
        .iter()
        .filter(|name| is(name))
        .count()
    {
        0 => None,
        1 => Some(format!("1 {one}")),
        n => Some(format!("{n} {many}")),
    };
    let is_row = |name: &str| name.ends_with(&format!("/{DEFAULTS_KEY}"));
    let is_bucket = |name: &str| name.starts_with("KV_") && !name.contains('/');
    let kinds = [
        count("stream", "streams", &|name| !name.contains('/') && !is_bucket(name)),
        count("bucket", "buckets", &is_bucket),
        count("consumer", "consumers", &|name| name.contains('/') && !is_row(name)),
        count("row", "rows", &is_row),
    ];
    kinds.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
