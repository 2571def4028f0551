//! A broker with provisioned spaces in a temporary root, and all rights in them.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use cotal_broker::{Broker, BrokerBinary, ListenPort};
use cotal_manager::launch::BrokerLaunch;
use cotal_manager::{Authority, BrokerAddress, ensure_daemon_credentials, provision};
use cotal_nats::js::ConsumerAction;
use cotal_nats::{
    Bytes, ConnectOptions, Connection, CredsSource, Engine, Outgoing, TlsMode, Writer,
    WriterOptions,
};
use cotal_trust::{UserKey, UserSpec, mint_profile, mint_user};
use cotal_wire::accounts::Account;
use cotal_wire::creds::Creds;
use cotal_wire::names::Bucket;
use cotal_wire::permissions::Permissions;
use cotal_wire::profile::{AgentGrant, Profile};
use cotal_wire::rows::{AclRow, MemberRow, MemberState};
use cotal_wire::{Channel, ChannelPattern, Lifecycle, Space, names};
use cotal_workspace::{Durability, FileStore, MeshFile, Mode, Root};
use futures_util::{StreamExt as _, TryStreamExt as _};
use serde_json::Value;
use tempfile::TempDir;

/// How long a bench's own users live.
const LIFE: i64 = 3_600;
/// Rows written at once.
const ROWS: usize = 2_000;
/// Nothing that is waited for takes longer.
const SETTLED_WITHIN: Duration = Duration::from_secs(120);

/// A broker and its root. Dropping it ends the broker.
#[derive(Debug)]
pub(crate) struct Mesh {
    dir: TempDir,
    root: Root,
    broker: Broker,
    address: BrokerAddress,
}

impl Mesh {
    /// Starts a broker and provisions `spaces` on it.
    pub(crate) async fn start(binary: &BrokerBinary, spaces: &[&str]) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let root = Root::init(dir.path())?;
        let spaces: Vec<Space> =
            spaces.iter().map(|space| Space::parse(space)).collect::<Result<_, _>>()?;
        let authorities: Vec<Authority> = spaces
            .iter()
            .map(|space| Authority::create_or_open(&root, space))
            .collect::<Result<_, _>>()?;
        let trust = authorities.first().context("a mesh has a space")?.trust();
        let launch = BrokerLaunch {
            root: &root,
            binary,
            trust: Some(trust),
            port: ListenPort::Any,
            durability: Durability::Default,
            tls: false,
            detach: false,
            max_file_store: None,
        };
        let broker = launch.start().await?;
        let url = broker.url().to_owned();
        let address = BrokerAddress { url: url.clone(), tls: TlsMode::Plain };
        let file = MeshFile {
            server: url,
            tls: false,
            ca: None,
            mode: Mode::Auth,
            durability: Durability::Default,
            spaces,
        };
        file.save(&root)?;
        let store = FileStore::new(root.clone());
        for authority in &authorities {
            provision(authority, &address).await?;
            ensure_daemon_credentials(authority, &store)?;
        }
        Ok(Self { dir, root, broker, address })
    }

    /// The directory of the root.
    pub(crate) fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// The broker.
    pub(crate) fn url(&self) -> &str {
        &self.address.url
    }

    /// CPU time the broker has used, in seconds.
    pub(crate) fn broker_cpu(&self) -> anyhow::Result<f64> {
        crate::procfs::cpu_of(self.broker.pid())
    }

    /// Ends the broker.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.broker.stop().await?;
        Ok(())
    }

    /// One of its spaces, with all rights in it.
    pub(crate) async fn ground(&self, space: &str) -> anyhow::Result<Ground> {
        let space = Space::parse(space)?;
        let authority = Authority::open(&self.root, &space)?;
        let options = ConnectOptions::new(
            self.url(),
            "bench",
            CredsSource::new(cotal_nats::Creds::parse(&all_rights(&authority)?)?),
        );
        let connection = Connection::connect(options).await?;
        Ok(Ground { space, authority, connection, trace: false, url: self.url().to_owned() })
    }
}

/// A credential that may do all in the account of a space.
fn all_rights(authority: &Authority) -> anyhow::Result<String> {
    let key = UserKey::generate();
    let now = unix_seconds();
    let all = vec![">".to_owned()];
    let spec = UserSpec {
        name: "bench",
        key: &key,
        tags: authority.account().tags_of(Account::Durable),
        permissions: Permissions {
            pub_allow: all.clone(),
            sub_allow: all,
            ..Permissions::default()
        },
        issued_at: now,
        expires_at: Some(now + LIFE),
    };
    let minted = mint_user(authority.account().keys(), &spec)?;
    Ok(minted.creds.expose().to_owned())
}

/// A space to measure on.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) space: Space,
    pub(crate) connection: Connection,
    /// Tell how far the stores have come, look by look.
    pub(crate) trace: bool,
    authority: Authority,
    url: String,
}

impl Ground {
    /// A bare connection with all rights.
    pub(crate) fn raw(&self) -> anyhow::Result<crate::raw::Raw> {
        crate::raw::Raw::connect(&self.url, &Creds::parse(&all_rights(&self.authority)?)?)
    }

    /// A bare connection with exactly the daemon's rights: the broker checks them on every message,
    /// whoever sends it.
    pub(crate) fn raw_as_daemon(&self) -> anyhow::Result<crate::raw::Raw> {
        let key = UserKey::generate();
        let profile = Profile::Delivery(key.principal()?);
        let now = unix_seconds();
        let account = self.authority.account();
        let minted = mint_profile(account, &key, &profile, now, Some(now + LIFE))?;
        crate::raw::Raw::connect(&self.url, &Creds::parse(minted.creds.expose())?)
    }

    /// A connection of an agent that may read these channels.
    pub(crate) async fn agent(
        &self,
        who: &Lifecycle,
        read: &[ChannelPattern],
    ) -> anyhow::Result<Connection> {
        let grant = AgentGrant {
            lifecycle: who.clone(),
            read: read.to_vec(),
            post: read.to_vec(),
            role: None,
        };
        let (key, now) = (UserKey::generate(), unix_seconds());
        let (account, profile) = (self.authority.account(), Profile::Agent(grant));
        let minted = mint_profile(account, &key, &profile, now, Some(now + LIFE))?;
        let creds = cotal_nats::Creds::parse(minted.creds.expose())?;
        let options = ConnectOptions::new(self.url.as_str(), "agent", creds.into());
        Ok(Connection::connect(options).await?)
    }

    /// Writes one open member row a member, in bulk.
    pub(crate) async fn members(
        &self,
        channel: &Channel,
        members: &[Lifecycle],
    ) -> anyhow::Result<()> {
        let rows = members.iter().map(|member| {
            let row = MemberRow {
                channel: channel.clone(),
                owner: member.principal.clone(),
                lifecycle_uid: member.uid,
                state: MemberState::DurableActive,
                join_cursor: 0,
                leave_cursor: None,
                generation: 1,
                activated: true,
                writer_identity: "bench".to_owned(),
                updated_at: 0,
            };
            Ok((names::member_key(channel, member), serde_json::to_vec(&row)?))
        });
        self.rows(Bucket::Members, rows.collect::<anyhow::Result<_>>()?).await
    }

    /// Writes one ACL row a member that reads everything, in bulk.
    pub(crate) async fn acls(&self, members: &[Lifecycle]) -> anyhow::Result<()> {
        let all = vec![ChannelPattern::parse(">")?];
        let rows = members.iter().map(|member| {
            let row = AclRow {
                allow_subscribe: all.clone(),
                revision: 1,
                updated_at: 0,
                name: Some(member.principal.actor().to_owned()),
                activated: None,
                retired: false,
            };
            Ok((member.dotted(), serde_json::to_vec(&row)?))
        });
        self.rows(Bucket::Acl, rows.collect::<anyhow::Result<_>>()?).await
    }

    async fn rows(&self, bucket: Bucket, rows: Vec<(String, Vec<u8>)>) -> anyhow::Result<()> {
        let options = WriterOptions::new(Engine::Pipelined);
        let (writer, task) = Writer::start(&self.connection, options).await?;
        for chunk in rows.chunks(ROWS) {
            let messages = chunk.iter().map(|(key, value)| {
                let subject = self.space.kv_subject(bucket, key);
                Outgoing::new(subject, None, Bytes::copy_from_slice(value))
            });
            writer.write(messages.collect()).await?;
        }
        drop(writer);
        Ok(task.await?)
    }

    /// Makes the delivery consumer of every member, as provisioning does.
    pub(crate) async fn consumers(&self, members: &[Lifecycle]) -> anyhow::Result<()> {
        let stream = self.space.dlv_stream();
        let made = futures_util::stream::iter(members).map(|member| {
            let stream = &stream;
            async move {
                let config = self.space.dlv_config(member);
                let filter = config.filter_subject.as_deref();
                let create = ConsumerAction::Create;
                let made =
                    self.connection.create_consumer(stream, &config.name, filter, &config, create);
                made.await.map(drop)
            }
        });
        Ok(made.buffer_unordered(32).try_collect().await?)
    }

    /// Takes them away again.
    pub(crate) async fn drop_consumers(&self, members: &[Lifecycle]) -> anyhow::Result<()> {
        let stream = self.space.dlv_stream();
        let gone = futures_util::stream::iter(members).map(|member| {
            let stream = &stream;
            let name = self.space.dlv_consumer(member);
            async move { self.connection.delete_consumer(stream, &name).await }
        });
        Ok(gone.buffer_unordered(32).try_collect().await?)
    }

    /// The last sequence in DLV.
    pub(crate) async fn delivered(&self) -> anyhow::Result<u64> {
        Ok(self.connection.last_seq(&self.space.dlv_stream()).await?)
    }

    /// Waits until DLV has reached `last`; says when the broker stored that message, in Unix
    /// nanoseconds, so that looking costs no precision. With `trace` set it tells what it sees.
    pub(crate) async fn reaches(&self, last: u64) -> anyhow::Result<u128> {
        let stream = self.space.dlv_stream();
        let begin = Instant::now();
        loop {
            let now = self.delivered().await?;
            if self.trace {
                let inbox = self.connection.last_seq(&self.space.inbox_stream()).await?;
                let at = begin.elapsed().as_millis();
                eprintln!("    {at:>5} ms: INBOX {inbox}, DLV {now}, {} to come", last - now);
            }
            if now > last {
                bail!("{stream} holds {} copies more than there should be", now - last);
            }
            if now == last {
                let get = cotal_nats::Get::Seq(last);
                let message = self.connection.get_message(&stream, get).await?;
                let message = message.context("the last copy is gone")?;
                return Ok(u128::try_from(message.time.unix_timestamp_nanos())?);
            }
            if begin.elapsed() > SETTLED_WITHIN {
                bail!("{stream} stands at {now} and never reached {last}");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until `reader` has nothing left.
    pub(crate) async fn settled(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + SETTLED_WITHIN;
        let (inbox, chat) = (self.space.inbox_stream(), self.space.chat_stream());
        loop {
            let mut left = 0;
            for (stream, consumer) in [(&inbox, names::READER), (&chat, names::FANOUT)] {
                let info = self.connection.consumer_info(stream, consumer).await?;
                left += info.num_ack_pending;
                if *stream == inbox {
                    left += info.num_pending;
                }
            }
            if left == 0 {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("{left} messages are never acked");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Members that exist nowhere else.
pub(crate) fn fresh_members(tag: &str, count: usize) -> anyhow::Result<Vec<Lifecycle>> {
    let now = u64::try_from(unix_nanos() & u128::from(u64::MAX))?;
    let stamp = now % 10_000_000_000_000;
    let member = |n| Lifecycle::parse(&format!("local.{tag}_{n}.u{stamp:013}{n:012}"));
    (0..count).map(|n| Ok(member(n)?)).collect()
}

/// The body of a post, `size` bytes long.
pub(crate) fn post_body(
    space: &Space,
    from: &str,
    channel: &Channel,
    id: &str,
    size: usize,
) -> Vec<u8> {
    let body = |text: &str| -> Value {
        serde_json::json!({
            "id": id, "ts": 1, "space": space.as_str(), "channel": channel.as_str(),
            "from": { "id": from, "name": "poster" },
            "parts": [{ "kind": "text", "text": text }],
        })
    };
    let bare = body("").to_string().len();
    body(&"x".repeat(size.saturating_sub(bare))).to_string().into_bytes()
}

/// Unix nanoseconds now.
pub(crate) fn unix_nanos() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()
}

fn unix_seconds() -> i64 {
    i64::try_from(unix_nanos() / 1_000_000_000).unwrap_or(i64::MAX)
}
