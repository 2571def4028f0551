//! `cotal status --components`: what a monitor asks, with exit codes of its own.
//!
//! Invariant: each state is what a probe found just now: of the broker's listener, of the
//! responder.

use cotal_manager::launch::running_daemon;
use cotal_manager::{Authority, BrokerAddress, Liveness, ManagerError, Office, Rail, stalled};
use cotal_nats::{ConnectError, NatsError};
use cotal_wire::Space;
use cotal_workspace::{MeshFile, Mode, Root};
use serde::Serialize;

use crate::commands::doctor::{Certificate, Disk, Listener};
use crate::context::{CLOSE_WITHIN, Context, tls_of};
use crate::exit::{Exit, Failure};
use crate::output::plain;

/// How a component stands, from good to bad; the number is the exit code, but for the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    /// It answered that it serves.
    Serving = 0,
    /// Nobody is there.
    Absent = 1,
    /// Somebody is there and does not serve.
    NotServing = 2,
    /// It refuses to be asked.
    Refused = 3,
    /// It could not be asked: what listens in place of the broker decides the exit code.
    Unknown,
}

/// What keeps the components from being asked at all.
const NOT_ASKED: Exit = Exit::Absent;

#[derive(Debug, Serialize)]
struct Component {
    component: &'static str,
    space: Option<Space>,
    state: State,
    /// What the probe found.
    found: String,
}

#[derive(Debug, Serialize)]
struct Report {
    state: State,
    components: Vec<Component>,
}

impl State {
    fn text(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Absent => "absent",
            Self::NotServing => "not serving",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }

    /// The codes of this command alone; the first four numbers mean something else elsewhere.
    fn exit(self) -> Exit {
        match self {
            Self::Serving => Exit::Ok,
            Self::Absent => Exit::Failure,
            Self::NotServing => Exit::Usage,
            Self::Refused => Exit::Denied,
            Self::Unknown => NOT_ASKED,
        }
    }
}

/// Probes every component of the root, or of one space of it.
pub(super) async fn run(only: Option<&Space>, json: bool, ctx: &Context) -> anyhow::Result<Exit> {
    let asked = async {
        let root = ctx.root()?;
        let mesh = ctx.mesh(&root)?;
        report(&root, &mesh, only).await
    };
    let report = match asked.await {
        Ok(report) => report,
        Err(error) => {
            ctx.out.error(&error);
            return Ok(NOT_ASKED);
        }
    };
    if json {
        ctx.out.json(&report)?;
    } else {
        print(&report, ctx)?;
    }
    Ok(report.state.exit())
}

async fn report(root: &Root, mesh: &MeshFile, only: Option<&Space>) -> anyhow::Result<Report> {
    if let Some(unknown) = only.filter(|only| !mesh.spaces.contains(only)) {
        let message = format!("{} has no space {unknown}", root.dir().display());
        return Err(Failure::new(Exit::Absent, message).into());
    }
    let listener = Listener::of(root, mesh).await?;
    let problem = Disk::of(root).problem.or_else(|| Certificate::of(root, mesh)?.problem);
    let mut components = vec![broker(&listener, mesh, problem.as_deref())];
    if mesh.mode == Mode::Auth {
        for space in mesh.spaces.iter().filter(|space| only.is_none_or(|only| only == *space)) {
            let (state, found) = match &listener {
                Listener::Own(_) => delivery(root, mesh, space).await?,
                listener => unasked(listener, running(root, space)?),
            };
            let space = Some(space.clone());
            components.push(Component { component: "delivery", space, state, found });
        }
    }
    Ok(Report { state: worst(&components), components })
}

fn worst(components: &[Component]) -> State {
    let states = components.iter().map(|component| component.state);
    states.filter(|state| *state != State::Unknown).max().unwrap_or(State::Unknown)
}

fn broker(listener: &Listener, mesh: &MeshFile, problem: Option<&str>) -> Component {
    let (state, found) = match listener {
        Listener::Own(version) => match problem {
            Some(problem) => (State::NotServing, format!("nats-server {version}: {problem}")),
            None => (State::Serving, format!("nats-server {version} at {}", mesh.server)),
        },
        Listener::Nobody(found) => (State::Absent, found.clone()),
        Listener::Hangs(found) | Listener::Foreign(found) => (State::NotServing, found.clone()),
        Listener::Refuses(found) => (State::Refused, found.clone()),
    };
    Component { component: "broker", space: None, state, found }
}

/// A daemon that could not be asked. One that runs here serves nobody while its broker is silent;
/// one that does not may run elsewhere, and what somebody else's broker says proves nothing.
fn unasked(listener: &Listener, runs: Option<u32>) -> (State, String) {
    match (listener, runs) {
        (Listener::Nobody(_), None) => {
            (State::Absent, "neither its broker nor a process of it runs".to_owned())
        }
        (Listener::Nobody(_) | Listener::Hangs(_), Some(pid)) => {
            (State::NotServing, format!("process {pid} runs and its broker does not answer"))
        }
        (_, Some(pid)) => (State::Unknown, format!("process {pid} runs and could not be asked")),
        (_, None) => (State::Unknown, "it could not be asked".to_owned()),
    }
}

fn running(root: &Root, space: &Space) -> anyhow::Result<Option<u32>> {
    Ok(running_daemon(root, space)?.map(|daemon| daemon.pid()))
}

async fn delivery(root: &Root, mesh: &MeshFile, space: &Space) -> anyhow::Result<(State, String)> {
    let authority = Authority::open(root, space)?;
    let address = BrokerAddress { url: mesh.server.clone(), tls: tls_of(mesh) };
    match authority.connect(Office::Operator, &address).await {
        Err(ManagerError::Broker { source: NatsError::Connect(error), .. }) => {
            Ok(unreached(&error, running(root, space)?))
        }
        Err(error) => Err(error.into()),
        Ok((own, connection)) => {
            let rail = Rail::new(&connection, space, &own);
            let runs = running(root, space)?;
            let probed = match runs {
                Some(pid) => rail.probe_process(pid).await,
                None => rail.probe().await,
            };
            let (state, found) = judged(probed, runs);
            let is_served = state == State::Serving;
            let wrong = stalled(&connection, space, is_served).await;
            connection.close(CLOSE_WITHIN).await;
            Ok(match wrong {
                Ok(wrong) if !wrong.is_empty() => {
                    (state.max(State::NotServing), format!("{found}; {}", wrong.join("; ")))
                }
                Ok(_) => (state, found),
                Err(error) => {
                    let found = format!("{found}; whether it delivers is unknown: {error}");
                    (state.max(State::NotServing), found)
                }
            })
        }
    }
}

/// The broker has greeted just now; one that refuses refuses the question too.
fn unreached(error: &ConnectError, runs: Option<u32>) -> (State, String) {
    let state = match (error, runs) {
        (ConnectError::Rejected { .. } | ConnectError::Creds(_), _) => State::Refused,
        (ConnectError::Unreachable { .. }, None) => State::Absent,
        _ => State::NotServing,
    };
    (state, said(error))
}

/// A process alone serves nothing, but it is there.
fn judged(probed: Liveness, runs: Option<u32>) -> (State, String) {
    match (probed, runs) {
        (Liveness::Bound, Some(pid)) => {
            (State::Serving, format!("process {pid} holds the lease, and its responder answered"))
        }
        (Liveness::Bound, None) => (
            State::Serving,
            "its responder answered; it runs on no process of this root".to_owned(),
        ),
        (Liveness::Elsewhere(holder), _) => {
            (State::Serving, format!("a daemon of another root or host answered, as {holder}"))
        }
        (Liveness::Quiet, _) => (State::NotServing, "its responder is quiet".to_owned()),
        (Liveness::Unbound, None) => (State::Absent, "nobody listens".to_owned()),
        (Liveness::Unbound, Some(pid)) => {
            (State::NotServing, format!("process {pid} runs and does not listen"))
        }
        (Liveness::Denied(why), _) => (State::Refused, why),
        (Liveness::Unknown(why), _) => (State::NotServing, why),
    }
}

fn said(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

fn print(report: &Report, ctx: &Context) -> anyhow::Result<()> {
    let rows: Vec<Vec<String>> = report.components.iter().map(row).collect();
    Ok(ctx.out.table(&["COMPONENT", "SPACE", "STATE", "FOUND"], &rows, "nothing to probe")?)
}

fn row(component: &Component) -> Vec<String> {
    let space = component.space.as_ref().map_or("-", Space::as_str);
    let state = component.state.text();
    vec![component.component.into(), space.into(), state.into(), plain(&component.found)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_the_state_and_the_worst_one_wins() {
        let all = [State::Serving, State::Absent, State::NotServing, State::Refused];
        for (n, state) in all.into_iter().enumerate() {
            assert_eq!((state as usize, state.exit() as usize), (n, n));
        }
        assert_eq!(all.into_iter().max(), Some(State::Refused));
    }

    #[test]
    fn what_could_not_be_asked_leaves_the_code_to_the_broker() {
        let component = |state| {
            let (component, found) = ("delivery", String::new());
            Component { component, space: None, state, found }
        };
        for state in [State::NotServing, State::Refused] {
            assert_eq!(worst(&[component(state), component(State::Unknown)]), state);
        }
    }

    #[test]
    fn a_daemon_is_absent_only_where_nobody_answers_and_nothing_runs() {
        let text = || "found".to_owned();
        for (listener, runs, wanted) in [
            (Listener::Nobody(text()), None, State::Absent),
            (Listener::Nobody(text()), Some(7), State::NotServing),
            (Listener::Hangs(text()), None, State::Unknown),
            (Listener::Hangs(text()), Some(7), State::NotServing),
            (Listener::Foreign(text()), None, State::Unknown),
            (Listener::Foreign(text()), Some(7), State::Unknown),
            (Listener::Refuses(text()), None, State::Unknown),
        ] {
            assert_eq!(unasked(&listener, runs).0, wanted, "{listener:?} {runs:?}");
        }
    }

    #[test]
    fn what_a_probe_found_is_never_mistaken_for_something_else() {
        let why = || "why".to_owned();
        for (probed, runs, wanted) in [
            (Liveness::Bound, Some(7), State::Serving),
            (Liveness::Bound, None, State::Serving),
            (Liveness::Elsewhere(why()), Some(7), State::Serving),
            (Liveness::Quiet, None, State::NotServing),
            (Liveness::Unbound, None, State::Absent),
            (Liveness::Unbound, Some(7), State::NotServing),
            (Liveness::Denied(why()), Some(7), State::Refused),
            (Liveness::Unknown(why()), None, State::NotServing),
        ] {
            assert_eq!(judged(probed.clone(), runs).0, wanted, "{probed:?} {runs:?}");
        }
    }
}
