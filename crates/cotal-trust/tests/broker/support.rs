//! A real `nats-server` that trusts a root's operator, and clients that report their events.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_nats::{Client, ConnectOptions, Event};
use cotal_trust::{AccountKeys, Minted, Trust, UserKey, mint_system_profile};
use cotal_wire::ConnId;
use cotal_wire::permissions::Permissions;
use cotal_wire::profile::SystemProfile;
use cotal_workspace::Root;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::timeout;

/// No step of these tests takes longer, unless it failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// A broker that dies with the test.
pub(crate) struct Broker {
    child: Child,
    pub(crate) url: String,
}

impl Broker {
    /// Starts a broker on a root's trust material, with its resolver and stores under the root.
    pub(crate) fn start(root: &Root, trust: &Trust) -> Self {
        std::fs::create_dir_all(root.broker_dir()).unwrap();
        std::fs::write(root.broker_config(), config(root, trust)).unwrap();
        let program = std::env::var("COTAL_NATS_SERVER").unwrap_or_else(|_| "nats-server".into());
        let log = std::fs::File::create(root.broker_log()).unwrap();
        let child = Command::new(&program)
            .arg("-c")
            .arg(root.broker_config())
            .stderr(log)
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {program} (set COTAL_NATS_SERVER): {e}"));
        let ports = format!("{}_{}.ports", file_name(&program), child.id());
        let mut broker = Self { child, url: String::new() };
        broker.url = broker.listening_at(&root.broker_dir().join(ports), root);
        broker
    }

    fn listening_at(&mut self, ports: &Path, root: &Root) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let url = std::fs::read(ports).ok().and_then(|text| {
                let ports: serde_json::Value = serde_json::from_slice(&text).ok()?;
                Some(ports["nats"][0].as_str()?.to_owned())
            });
            if let Some(url) = url {
                return url;
            }
            let log = || std::fs::read_to_string(root.broker_log()).unwrap_or_default();
            assert!(self.child.try_wait().unwrap().is_none(), "the broker exited: {}", log());
            assert!(Instant::now() < deadline, "the broker does not listen: {}", log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Connects with a credential; `Err` is the broker's refusal.
    pub(crate) async fn connect(&self, minted: &Minted) -> Result<Peer, async_nats::ConnectError> {
        let conn = ConnId::parse(&minted.public_key).unwrap();
        let (sender, events) = channel(128);
        let client = ConnectOptions::with_credentials(minted.creds.expose())
            .unwrap()
            .custom_inbox_prefix(conn.inbox_prefix())
            .event_callback(move |event| {
                let sender = sender.clone();
                async move { drop(sender.try_send(event)) }
            })
            .connect(&self.url)
            .await?;
        Ok(Peer { client, events })
    }

    /// Connects, sure that the broker accepts it.
    pub(crate) async fn accepts(&self, minted: &Minted) -> Peer {
        self.connect(minted).await.expect("the broker accepts the credential")
    }

    /// Whether the broker refuses a credential as unauthorised.
    pub(crate) async fn refuses(&self, minted: &Minted) -> bool {
        match self.connect(minted).await {
            Ok(_) => false,
            Err(e) => e.kind() == async_nats::ConnectErrorKind::AuthorizationViolation,
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A connection and what it was told.
pub(crate) struct Peer {
    pub(crate) client: Client,
    events: Receiver<Event>,
}

impl Peer {
    /// Waits for an event whose text holds `wanted`, in whatever case.
    pub(crate) async fn hears(&mut self, wanted: &str) {
        let wanted = wanted.to_lowercase();
        let mut heard = Vec::new();
        let found = timeout(PATIENCE, async {
            while let Some(event) = self.events.recv().await {
                heard.push(event.to_string().to_lowercase());
                if heard.last().is_some_and(|text| text.contains(&wanted)) {
                    return true;
                }
            }
            false
        });
        assert!(matches!(found.await, Ok(true)), "no {wanted:?} among {heard:?}");
    }

    /// Tries a publish that the broker must refuse.
    pub(crate) async fn may_not_publish(&mut self, subject: &str) {
        self.client.publish(subject.to_owned(), "x".into()).await.unwrap();
        self.hears(&format!("Permissions Violation for Publish to \"{subject}\"")).await;
    }

    /// Tries a subscription that the broker must refuse.
    pub(crate) async fn may_not_subscribe(&mut self, subject: &str) {
        let _pending = self.client.subscribe(subject.to_owned()).await.unwrap();
        self.hears(&format!("Permissions Violation for Subscription to \"{subject}\"")).await;
    }

    /// One request, answered in JSON.
    pub(crate) async fn asks(&self, subject: &str, body: String) -> serde_json::Value {
        let asked = self.client.request(subject.to_owned(), body.into());
        let reply = timeout(PATIENCE, asked).await.expect("an answer in time").unwrap();
        serde_json::from_slice(&reply.payload).unwrap()
    }
}

/// Unix seconds.
pub(crate) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().try_into().unwrap()
}

/// Tells a running broker of an account.
pub(crate) async fn push(broker: &Broker, system: &AccountKeys, jwt: &str) {
    let key = UserKey::generate();
    let minted =
        mint_system_profile(system, &key, &SystemProfile::ClaimsPusher, None, now()).unwrap();
    let peer = broker.accepts(&minted).await;
    let reply = peer.asks("$SYS.REQ.CLAIMS.UPDATE", jwt.to_owned()).await;
    assert_eq!(reply["data"]["code"], 200, "{reply}");
}

/// A root with an operator and a system account.
pub(crate) fn fresh() -> (tempfile::TempDir, Root, Trust) {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::init(dir.path()).unwrap();
    let trust = Trust::create_or_open(&root, now()).unwrap();
    (dir, root, trust)
}

/// The permissions to publish and subscribe these subjects.
pub(crate) fn may(publish: &[&str], subscribe: &[&str]) -> Permissions {
    let texts = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
    Permissions { pub_allow: texts(publish), sub_allow: texts(subscribe), ..Permissions::default() }
}

fn config(root: &Root, trust: &Trust) -> String {
    let preload: String =
        trust.preload().unwrap().iter().map(|(id, jwt)| format!("  {id}: {jwt}\n")).collect();
    format!(
        "listen: \"127.0.0.1:-1\"\nports_file_dir: {:?}\nmax_control_line: 65536\n\
         jetstream {{ store_dir: {:?} }}\noperator: {}\nsystem_account: {}\n\
         resolver {{ type: full, dir: {:?}, interval: \"2m\" }}\n\
         resolver_preload {{\n{preload}}}\n",
        root.broker_dir(),
        root.broker_jetstream(),
        trust.operator_jwt(),
        trust.system().public_key(),
        root.broker_resolver(),
    )
}

fn file_name(program: &str) -> String {
    Path::new(program).file_name().unwrap().to_string_lossy().into_owned()
}
