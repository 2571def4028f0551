//! The feed renews from its own writer key.

use cotal_manager::clock::unix_seconds;
use cotal_nats::Connection;
use cotal_testkit::{Mesh, Supervisor, eventually};
use cotal_trust::{UserKey, mint_profile};
use cotal_wire::control::{Adoption, Reloaded, op};
use cotal_wire::creds::Creds;
use cotal_wire::names::sys;
use cotal_wire::profile::Profile;
use cotal_workspace::{Secret, SecretKey, SecretKind, SecretStore as _};
use serde_json::{Value, json};

use super::support::Feed;
use crate::credentials::support::{Host, adopted, fingerprint, jwt};

/// The feed's credential for `key`, issued `ago` seconds ago with `left` seconds to live.
fn mint(mesh: &Mesh, key: &UserKey, ago: i64, left: i64) -> String {
    let (authority, now) = (mesh.authority(), unix_seconds());
    let profile = Profile::MembershipRw;
    let minted = mint_profile(authority.account(), key, &profile, now - ago, Some(now + left));
    minted.expect("a credential").creds.expose().to_owned()
}

fn put(host: &Host<'_>, text: &str) {
    let key = SecretKey::new(host.mesh.space(), SecretKind::MembershipRw);
    host.store.put(&key, &Secret::new(text)).expect("stored");
}

async fn offer(manager: &Supervisor, text: &str) -> Reloaded {
    let args = json!({ "expected": { "membership": fingerprint(text) } });
    adopted(manager.request(op::RELOAD_CREDS, args).await.expect("an answer"))
}

/// The credentials of the feed's connections, as the broker lists them.
async fn presents(mesh: &Mesh, observer: &Connection) -> Vec<String> {
    let account = mesh.authority().account().public_key();
    let body = json!({ "auth": true }).to_string();
    let reply = observer.request(sys::connz(&account), None, body.into(), None).await;
    let reply: Value = serde_json::from_slice(&reply.expect("a census").payload).expect("JSON");
    let list = reply["data"]["connections"].as_array().cloned().unwrap_or_default();
    let feeds = list.iter().filter(|c| c["name"] == "cotal-feed main");
    feeds.map(|c| c["jwt"].as_str().expect("a JWT").to_owned()).collect()
}

async fn runs_on(mesh: &Mesh, observer: &Connection, text: &str) {
    let wanted = [jwt(text)];
    let presented = || presents(mesh, observer);
    eventually("the feed on that credential", presented, |seen| *seen == wanted).await;
}

async fn observer(host: &Host<'_>) -> Connection {
    let key = SecretKey::new(host.mesh.space(), SecretKind::MembershipObserver);
    let creds = host.store.get(&key).expect("the store").expect("the observer");
    host.mesh.connect(creds.expose()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_2_the_feed_adopts_its_own_writer_credential_and_the_reply_says_what_became_of_it() {
    let mesh = Mesh::start().await;
    let host = Host::with_life(&mesh, 0, 600).await;
    let key = UserKey::generate();
    let old = mint(&mesh, &key, 0, 600);
    put(&host, &old);
    let _lane = host.lane().await;
    let (manager, observer) = (Supervisor::of(&mesh).await, observer(&host).await);
    Feed::of(&mesh).await.is_live().await;
    runs_on(&mesh, &observer, &old).await;
    let new = mint(&mesh, &key, 0, 900);
    put(&host, &new);
    let Adoption::Skipped(why) = offer(&manager, &old).await.membership else { panic!("adopted") };
    assert!(why.contains("not the expected one"), "{why}");
    let reloaded = offer(&manager, &new).await;
    let Adoption::BrokerAccepted(accepted) = reloaded.membership else {
        panic!("skipped: {reloaded:?}")
    };
    let claims = Creds::parse(&new).expect("creds").claims;
    assert_eq!(accepted.identity, key.public_key());
    assert_eq!((accepted.iat, accepted.exp), (claims.issued_at, claims.expires_at));
    assert_eq!(accepted.fingerprint, fingerprint(&new));
    runs_on(&mesh, &observer, &new).await;

    // A credential that may not replace it is refused, and the feed continues.
    let stranger = mint(&mesh, &UserKey::generate(), 0, 900);
    put(&host, &stranger);
    let Adoption::Skipped(why) = offer(&manager, &stranger).await.membership else {
        panic!("adopted")
    };
    assert!(why.contains("another identity"), "{why}");
    runs_on(&mesh, &observer, &new).await;
    Feed::of(&mesh).await.is_live().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_2_the_feed_reads_its_key_again_at_three_quarters_of_the_lifetime() {
    let mesh = Mesh::start().await;
    let host = Host::with_life(&mesh, 0, 600).await;
    let key = UserKey::generate();
    // 40 s of life, of which 27 are over: the renewal point is in 3 s, the end in 13 s.
    let old = mint(&mesh, &key, 27, 13);
    put(&host, &old);
    let _lane = host.lane().await;
    let observer = observer(&host).await;
    runs_on(&mesh, &observer, &old).await;
    let new = mint(&mesh, &key, 0, 900);
    put(&host, &new);
    runs_on(&mesh, &observer, &new).await;
    Feed::of(&mesh).await.is_live().await;
}
