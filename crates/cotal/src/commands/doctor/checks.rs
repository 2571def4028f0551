//! The checks of `doctor`; each gives findings and none changes anything.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cotal_manager::{
    Authority, BrokerAddress, DAEMON_CREDENTIALS, UnfitError, clock, daemon_credentials,
    find_losses, read_stored_creds, unfinished_agents,
};
use cotal_wire::accounts::{Account, Topology};
use cotal_wire::creds::Creds;
use cotal_wire::{Principal, Space};
use cotal_workspace::{
    Durability, FileStore, MeshFile, Mode, Root, SecretKey, SecretKind, SecretStore, Segment,
};

use super::certificate::Certificate;
use super::finding::{CheckOutcome, Finding};
use super::{Disk, Listener, deliveries};
use crate::context::{Context, tls_of};
use crate::output::told;

/// The program that `up` would run.
pub(super) async fn program(ctx: &Context, explicit: Option<PathBuf>) -> Finding {
    match ctx.locate_broker(explicit).await {
        Ok(binary) => {
            let (path, version) = (binary.path.display(), &binary.version);
            let found = format!("{path} is {version}, {}", binary.source);
            if binary.warnings.is_empty() {
                return Finding::new("nats-server", CheckOutcome::Ok, found);
            }
            let detail = format!("{found}; {}", binary.warnings.join("; "));
            Finding::new("nats-server", CheckOutcome::Warning, detail)
        }
        Err(error) => Finding::new("nats-server", CheckOutcome::Broken, told(&error)),
    }
}

/// Everything below one root.
pub(super) async fn root(ctx: &Context, root: &Root) -> Vec<Finding> {
    let shown = root.dir().display().to_string();
    let mut findings = vec![Finding::new("root", CheckOutcome::Ok, shown)];
    findings.extend(modes(root));
    findings.push(disk(root));
    let mesh = match MeshFile::load(root) {
        Ok(Some(mesh)) => mesh,
        Ok(None) => {
            let detail = "there is none yet: run `cotal up`";
            findings.push(Finding::new("mesh", CheckOutcome::Warning, detail));
            return findings;
        }
        Err(error) => {
            findings.push(Finding::new("mesh", CheckOutcome::Broken, error.to_string()));
            return findings;
        }
    };
    findings.push(durability(mesh.durability));
    findings.push(broker(root, &mesh).await);
    findings.extend(Certificate::of(root, &mesh).as_ref().map(certificate));
    for space in &mesh.spaces {
        findings.push(registered(ctx, root, &mesh, space));
        if mesh.mode == Mode::Auth {
            findings.extend(credentials(root, space));
            findings.extend(Box::pin(losses(root, &mesh, space)).await);
            findings.extend(Box::pin(deliveries::of(root, &mesh, space)).await);
        }
    }
    findings
}

fn certificate(certificate: &Certificate) -> Finding {
    let verdict =
        if certificate.problem.is_some() { CheckOutcome::Broken } else { CheckOutcome::Ok };
    Finding::new("certificate", verdict, certificate.told())
}

fn disk(root: &Root) -> Finding {
    let disk = Disk::of(root);
    match disk.warning() {
        Some(warning) if disk.problem.is_some() => {
            Finding::new("disk", CheckOutcome::Broken, warning)
        }
        Some(warning) => Finding::new("disk", CheckOutcome::Warning, warning),
        None => Finding::new("disk", CheckOutcome::Ok, format!("it takes writes: {disk}")),
    }
}

/// Says what a power failure can lose.
fn durability(durability: Durability) -> Finding {
    let (verdict, detail) = match durability {
        Durability::Strict => (
            CheckOutcome::Ok,
            "sync_interval is always: an acknowledged write survives a power failure",
        ),
        Durability::Default => (
            CheckOutcome::Warning,
            "sync_interval is the broker's 2 minutes: a power failure, or a crash of the whole \
             machine, can lose writes acknowledged since the last sync; a crash of the broker \
             alone loses none. `cotal up --durability strict` syncs every write, at about a \
             fifteenth of the speed",
        ),
    };
    Finding::new("durability", verdict, detail)
}

/// A mesh that was taken down is in order; whatever keeps it from coming up, or hangs, is not.
async fn broker(root: &Root, mesh: &MeshFile) -> Finding {
    let listener = match Listener::of(root, mesh).await {
        Ok(listener) => listener,
        Err(error) => return Finding::new("broker", CheckOutcome::Broken, told(&error)),
    };
    match listener {
        Listener::Own(version) => {
            let detail = format!("nats-server {version} answers at {}", mesh.server);
            Finding::new("broker", CheckOutcome::Ok, detail)
        }
        Listener::Nobody(detail) => Finding::new("broker", CheckOutcome::Warning, detail),
        Listener::Hangs(detail) | Listener::Foreign(detail) | Listener::Refuses(detail) => {
            Finding::new("broker", CheckOutcome::Broken, detail)
        }
    }
}

/// What the broker does not have any more. One that cannot be asked is told by the check of it.
async fn losses(root: &Root, mesh: &MeshFile, space: &Space) -> Vec<Finding> {
    let Ok(Listener::Own(_)) = Listener::of(root, mesh).await else { return Vec::new() };
    let Ok(authority) = Authority::open(root, space) else { return Vec::new() };
    let address = BrokerAddress { url: mesh.server.clone(), tls: tls_of(mesh) };
    let check = format!("stores of {space}");
    let lost = match find_losses(&authority, &address).await {
        Ok(lost) => lost,
        Err(error) => return vec![Finding::new(check, CheckOutcome::Broken, told(&error.into()))],
    };
    let stores = lost.stores.iter().map(|(store, meaning)| {
        format!(
            "{store} is gone, and with it for good {meaning}: restore .cotal/broker/ from a backup, \
             or `cotal up` creates it again, empty"
        )
    });
    let consumers = lost.consumers.iter().map(|one| {
        format!(
            "the consumer of {} on {} is gone: `cotal up` creates it again",
            one.agent, one.stream
        )
    });
    let broken = |detail| Finding::new(check.clone(), CheckOutcome::Broken, detail);
    let broken: Vec<_> = stores.chain(consumers).map(broken).collect();
    if broken.is_empty() {
        return vec![Finding::new(
            check,
            CheckOutcome::Ok,
            "streams, buckets and consumers are all there",
        )];
    }
    broken
}

fn registered(ctx: &Context, root: &Root, mesh: &MeshFile, space: &Space) -> Finding {
    let check = format!("registry of {space}");
    match ctx.recorded(space) {
        Ok(Some(entry)) if entry.root == root.dir() && entry.server == mesh.server => {
            Finding::new(check, CheckOutcome::Ok, entry.server)
        }
        Ok(Some(entry)) => {
            let (dir, server) = (entry.root.display(), &entry.server);
            let detail = format!("it records {server} of {dir}: `cotal up` here records this root");
            Finding::new(check, CheckOutcome::Warning, detail)
        }
        Ok(None) => {
            let detail = "the space is not recorded: `cotal up` records it";
            Finding::new(check, CheckOutcome::Warning, detail)
        }
        Err(error) => Finding::new(check, CheckOutcome::Broken, told(&error)),
    }
}

/// How many accounts the space has, and what that means for whoever lives in them.
fn accounts(authority: &Authority) -> Finding {
    let (account, space) = (authority.account(), authority.space());
    let check = format!("accounts of {space}");
    if account.is_moving() {
        let detail = format!(
            "its move to three accounts was interrupted: `cotal space isolate {space}` continues it"
        );
        return Finding::new(check, CheckOutcome::Broken, detail);
    }
    match account.topology() {
        Topology::Three => {
            let ids = [Account::Agents, Account::Shared, Account::Durable]
                .map(|of| format!("{of} {}", account.keys_of(of).public_key()));
            Finding::new(check, CheckOutcome::Ok, format!("three: {}", ids.join(", ")))
        }
        Topology::One => {
            let detail = format!(
                "one, which is not isolated: any agent can make the broker destroy and take what is \
                 another's; `cotal space isolate {space}` moves it to three"
            );
            Finding::new(check, CheckOutcome::Warning, detail)
        }
    }
}

fn credentials(root: &Root, space: &Space) -> Vec<Finding> {
    let check = format!("trust of {space}");
    let authority = Authority::open(root, space);
    let mut findings = vec![match &authority {
        Ok(authority) => {
            let account = authority.account().public_key();
            Finding::new(check, CheckOutcome::Ok, format!("account {account}"))
        }
        Err(error) => Finding::new(check, CheckOutcome::Broken, error.to_string()),
    }];
    let authority = authority.ok();
    findings.extend(authority.as_ref().map(accounts));
    let store = FileStore::new(root.clone());
    let now = clock::unix_seconds();
    let set_aside = root.delivery_seed(&Segment::from(space)).exists();
    for kind in expected(authority.as_ref()) {
        let key = SecretKey::new(space, kind);
        findings.push(match store.get(&key) {
            Ok(Some(secret)) => match read(authority.as_ref(), &key.kind, secret.expose()) {
                Ok(creds) => expiry(&key, creds.claims.expires_at, now),
                Err(error) => broken(&key, &format!("{error}; `cotal up` mints it anew")),
            },
            Ok(None) if key.kind == SecretKind::Delivery && set_aside => Finding::new(
                key.to_string(),
                CheckOutcome::Ok,
                "was taken away when the daemon was stopped: `cotal up` mints it again",
            ),
            Ok(None) => broken(&key, "there is none: `cotal up` mints it"),
            Err(error) => broken(&key, &error.to_string()),
        });
    }
    findings.extend(agents(root, space, authority.as_ref()));
    findings
}

/// What the daemon of a space is to have; without the keys nobody can tell what else is served.
pub(super) fn expected(authority: Option<&Authority>) -> Vec<SecretKind> {
    let told = authority.and_then(|authority| daemon_credentials(authority).ok());
    told.unwrap_or_else(|| DAEMON_CREDENTIALS.to_vec())
}

/// Reads a stored credential; who signed it can be told only where the keys are.
pub(super) fn read(
    authority: Option<&Authority>,
    kind: &SecretKind,
    text: &str,
) -> Result<Creds, UnfitError> {
    match authority {
        Some(authority) => read_stored_creds(authority, kind, text),
        None => Ok(Creds::parse(text)?),
    }
}

/// The agents' credentials that no agent can connect with. Only their damage is told: there may
/// be many of them, and whether one is still wanted is for `agent list` to say.
fn agents(root: &Root, space: &Space, authority: Option<&Authority>) -> Vec<Finding> {
    let dir = root.agents_dir(&Segment::from(space));
    let unreadable = |error: &std::io::Error| {
        Finding::new(format!("agents of {space}"), CheckOutcome::Broken, error.to_string())
    };
    let entries = match std::fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => return vec![unreadable(&error)],
    };
    let store = FileStore::new(root.clone());
    let mut findings = begun(authority, space);
    for entry in entries {
        let name = match entry {
            Ok(entry) => entry.file_name(),
            Err(error) => {
                findings.push(unreadable(&error));
                continue;
            }
        };
        let principal = name.to_str().and_then(|name| name.strip_suffix(".creds"));
        let Some(agent) = principal.and_then(|text| Principal::parse(text).ok()) else { continue };
        let key = SecretKey::new(space, SecretKind::Agent(agent.clone()));
        match store.get(&key) {
            Ok(Some(secret)) => {
                if let Err(error) = read(authority, &key.kind, secret.expose()) {
                    findings.push(broken(&key, &damaged_agent(&agent, space, &error)));
                }
            }
            // It was retired meanwhile.
            Ok(None) => {}
            Err(error) => findings.push(broken(&key, &error.to_string())),
        }
    }
    findings.sort_by(|a, b| a.check.cmp(&b.check));
    findings
}

/// What a crash left half done; damage is told with its own words.
fn begun(authority: Option<&Authority>, space: &Space) -> Vec<Finding> {
    let unfinished = authority.map(unfinished_agents).and_then(Result::ok).unwrap_or_default();
    let is_begun = |what: &str| !what.contains("damaged");
    let begun = unfinished.into_iter().filter(|one| is_begun(&one.what));
    begun
        .map(|one| Finding::new(format!("{space}/{}", one.agent), CheckOutcome::Warning, one.what))
        .collect()
}

fn damaged_agent(agent: &Principal, space: &Space, error: &UnfitError) -> String {
    let name = agent.actor();
    format!(
        "{error}; `cotal agent retire {name} --space {space}`, then add the agent again with \
         `cotal agent add`"
    )
}

fn broken(key: &SecretKey, detail: &str) -> Finding {
    Finding::new(key.to_string(), CheckOutcome::Broken, detail)
}

fn expiry(key: &SecretKey, expires_at: Option<i64>, now: i64) -> Finding {
    let (verdict, detail) = match expires_at.map(|end| end - now) {
        None => (CheckOutcome::Ok, "does not expire".to_owned()),
        Some(left) if left <= 0 => {
            (CheckOutcome::Broken, "has expired: `cotal up` renews it".to_owned())
        }
        Some(left) if left < 3_600 => {
            let minutes = left / 60;
            (CheckOutcome::Warning, format!("expires in {minutes} min: `cotal up` renews it"))
        }
        Some(left) => (CheckOutcome::Ok, format!("expires in {} h", left / 3_600)),
    };
    Finding::new(key.to_string(), verdict, detail)
}

/// Secrets are for their owner alone: files `0600` inside directories `0700` (`wire.md` §9).
fn modes(root: &Root) -> Vec<Finding> {
    let mut open = Vec::new();
    if let Err(error) = walk(&root.dot_dir(), &mut open) {
        return vec![Finding::new("modes", CheckOutcome::Broken, error.to_string())];
    }
    if open.is_empty() {
        let detail = "every secret is 0600 inside 0700";
        return vec![Finding::new("modes", CheckOutcome::Ok, detail)];
    }
    let say = |path: PathBuf| {
        let detail = format!("{} can be read by others: chmod go= it", path.display());
        Finding::new("modes", CheckOutcome::Broken, detail)
    };
    open.into_iter().map(say).collect()
}

/// Collects what holds secrets and is not its owner's alone. The broker's own files lie inside a
/// directory that nobody else can enter.
fn walk(dir: &Path, open: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if dir.metadata()?.mode() & 0o077 != 0 {
        open.push(dir.to_owned());
    }
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let meta = path.symlink_metadata()?;
        let is_broker = path.file_name().is_some_and(|name| name == "broker");
        if meta.is_dir() && !is_broker {
            walk(&path, open)?;
        } else if meta.is_file() && is_secret(&path) && meta.mode() & 0o077 != 0 {
            open.push(path);
        }
    }
    Ok(())
}

fn is_secret(path: &Path) -> bool {
    let extension = path.extension().and_then(|e| e.to_str());
    let name = path.file_name().and_then(|n| n.to_str());
    matches!(extension, Some("creds" | "seed" | "pending"))
        || matches!(
            name,
            Some("account.json" | "system.json" | "family.json" | "gate.json" | "renewals.json")
        )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_that_others_can_read_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::init(dir.path()).unwrap();
        let space = Space::parse("main").unwrap();
        Authority::create_or_open(&root, &space).unwrap();
        let verdicts = |root| modes(root).iter().map(|f| f.verdict).collect::<Vec<_>>();
        assert_eq!(verdicts(&root), [CheckOutcome::Ok]);
        let seed = root.operator_seed();
        std::fs::set_permissions(&seed, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(verdicts(&root), [CheckOutcome::Broken]);
    }

    #[test]
    fn expiry_is_told_in_time() {
        let space = Space::parse("main").unwrap();
        let key = SecretKey::new(&space, DAEMON_CREDENTIALS[0].clone());
        for (end, verdict) in [
            (None, CheckOutcome::Ok),
            (Some(100), CheckOutcome::Broken),
            (Some(200), CheckOutcome::Warning),
            (Some(100_000), CheckOutcome::Ok),
        ] {
            assert_eq!(expiry(&key, end, 100).verdict, verdict, "{end:?}");
        }
    }
}
