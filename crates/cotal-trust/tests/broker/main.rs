//! What is minted here, judged by the only judge that counts: a real broker.

#![expect(
    clippy::unwrap_used,
    reason = "a test stops at the first thing that is not as it must be"
)]

mod accounts;
mod support;

use cotal_trust::{
    AccountKeys, Minted, SpaceAccount, UserKey, UserSpec, mint_profile, mint_system_profile,
    mint_user,
};
use cotal_wire::accounts::{Account, Topology};
use cotal_wire::permissions::Permissions;
use cotal_wire::profile::{AgentGrant, Profile, SystemProfile};
use cotal_wire::{ChannelPattern, ConnId, Lifecycle, LifecycleUid, Principal, Role, Space};
use futures_util::StreamExt;
use support::{Broker, PATIENCE, fresh, may, now, push};
use tokio::time::timeout;

fn alpha() -> Space {
    Space::parse("alpha").unwrap()
}

fn user(account: &AccountKeys, permissions: Permissions) -> Minted {
    expiring(account, permissions, None)
}

fn expiring(account: &AccountKeys, permissions: Permissions, expires_at: Option<i64>) -> Minted {
    let key = UserKey::generate();
    let tags = vec!["principal:local.BobUPPER".to_owned()];
    let name = "bob";
    let spec = UserSpec { name, key: &key, tags, permissions, issued_at: now(), expires_at };
    mint_user(account, &spec).unwrap()
}

#[tokio::test]
async fn a_user_does_what_it_may_and_nothing_else() {
    let (_dir, root, trust) = fresh();
    let account = trust.space_account(&alpha(), Topology::One, now()).unwrap();
    let broker = Broker::start(&root, &trust);

    let permissions = Permissions {
        pub_deny: vec!["ok.secret".to_owned()],
        sub_deny: vec!["ok.hidden".to_owned()],
        ..may(&["ok.>"], &["ok.>"])
    };
    let mut peer = broker.accepts(&user(account.keys(), permissions)).await;
    let mut inbox = peer.client.subscribe("ok.a").await.unwrap();
    peer.client.publish("ok.a", "hello".into()).await.unwrap();
    let message = timeout(PATIENCE, inbox.next()).await.unwrap().unwrap();
    assert_eq!(message.payload, "hello");
    peer.may_not_publish("other").await;
    peer.may_not_publish("ok.secret").await;
    peer.may_not_subscribe("other").await;
    peer.may_not_subscribe("ok.hidden").await;
    peer.may_not_subscribe(">").await;
}

#[tokio::test]
async fn an_empty_allow_list_denies_everything() {
    let (_dir, root, trust) = fresh();
    let account = trust.space_account(&alpha(), Topology::One, now()).unwrap();
    let broker = Broker::start(&root, &trust);

    let mut none = broker.accepts(&user(account.keys(), Permissions::default())).await;
    none.may_not_publish("x").await;
    none.may_not_subscribe("x").await;
    let mut publisher = broker.accepts(&user(account.keys(), may(&["x"], &[]))).await;
    publisher.may_not_subscribe("x").await;
    let mut system = broker.accepts(&user(trust.system(), Permissions::default())).await;
    system.may_not_publish("$SYS.REQ.SERVER.PING").await;
    system.may_not_subscribe("$SYS.>").await;
}

#[tokio::test]
async fn a_space_account_has_jetstream_without_limits_and_the_system_account_has_none() {
    let (_dir, root, trust) = fresh();
    let account = trust.space_account(&alpha(), Topology::One, now()).unwrap();
    let broker = Broker::start(&root, &trust);

    let peer = broker.accepts(&user(account.keys(), may(&[">"], &[">"]))).await;
    let info = peer.asks("$JS.API.INFO", String::new()).await;
    for limit in ["max_memory", "max_storage", "max_streams", "max_consumers", "max_ack_pending"] {
        assert_eq!(info["limits"][limit], -1, "{limit}: {info}");
    }
    for storage in ["file", "memory"] {
        let name = format!("CHAT_{storage}");
        let config = serde_json::json!({
            "name": name, "subjects": [format!("{storage}.>")], "storage": storage,
            "retention": "limits", "max_consumers": 200_000,
        });
        let made = peer.asks(&format!("$JS.API.STREAM.CREATE.{name}"), config.to_string()).await;
        assert!(made["error"].is_null(), "{made}");
        let ack = peer.asks(&format!("{storage}.a"), "x".to_owned()).await;
        assert_eq!(ack["seq"], 1, "{ack}");
    }

    let system = broker.accepts(&user(trust.system(), may(&["$JS.API.INFO"], &[">"]))).await;
    let refused = system.client.request("$JS.API.INFO", "".into()).await;
    let answer = refused.map(|m| String::from_utf8_lossy(&m.payload).into_owned());
    assert!(answer.as_ref().map_or(true, |text| text.contains("\"error\"")), "{answer:?}");
}

#[tokio::test]
async fn an_expired_user_is_dropped_at_its_expiry_and_refused_after() {
    let (_dir, root, trust) = fresh();
    let account = trust.space_account(&alpha(), Topology::One, now()).unwrap();
    let broker = Broker::start(&root, &trust);

    let short = expiring(account.keys(), may(&["x"], &["x"]), Some(now() + 2));
    let mut peer = broker.accepts(&short).await;
    peer.hears("User Authentication Expired").await;
    peer.hears("disconnected").await;
    // Within the second of its expiry the broker lets it in again, only to drop it again.
    peer.hears("authorization violation").await;
    assert!(broker.refuses(&short).await);
}

#[tokio::test]
async fn an_account_made_while_the_broker_runs_is_pushed() {
    let (_dir, root, trust) = fresh();
    let broker = Broker::start(&root, &trust);
    let account = trust.space_account(&alpha(), Topology::One, now()).unwrap();
    let bob = user(account.keys(), may(&["x"], &["x"]));
    assert!(broker.refuses(&bob).await);
    push(&broker, trust.system(), account.jwt_of(Account::Durable)).await;
    broker.accepts(&bob).await;
}

#[tokio::test]
async fn a_revoked_user_is_dropped_at_once_and_stays_out_over_a_restart() {
    let (_dir, root, trust) = fresh();
    let account = trust.space_account(&alpha(), Topology::One, now()).unwrap();
    let (bob, alice) =
        (user(account.keys(), may(&["x"], &["x"])), user(account.keys(), may(&["x"], &["x"])));
    {
        let broker = Broker::start(&root, &trust);
        let mut dropped = broker.accepts(&bob).await;
        let stays = broker.accepts(&alice).await;
        let id = ConnId::parse(&bob.public_key).unwrap();
        let revoked =
            trust.revoke(&alpha(), Account::Durable, &[(id.clone(), now())], now()).unwrap();
        push(&broker, trust.system(), revoked.jwt_of(Account::Durable)).await;
        dropped.hears("disconnected").await;
        assert!(broker.refuses(&bob).await);
        stays.client.flush().await.unwrap();
    }
    let broker = Broker::start(&root, &trust);
    assert!(broker.refuses(&bob).await);
    broker.accepts(&alice).await;

    // A later credential of the same key is a new grant.
    let key = UserKey::from_seed(&seed_of(&bob)).unwrap();
    let permissions = may(&["x"], &["x"]);
    let issued_at = now() + 1;
    let spec =
        UserSpec { name: "bob", key: &key, tags: vec![], permissions, issued_at, expires_at: None };
    broker.accepts(&mint_user(account.keys(), &spec).unwrap()).await;
}

fn seed_of(minted: &Minted) -> cotal_workspace::Secret {
    let creds = cotal_wire::creds::Creds::parse(minted.creds.expose()).unwrap();
    cotal_workspace::Secret::new(creds.seed)
}

#[tokio::test]
async fn a_user_of_a_foreign_operator_is_refused() {
    let (_dir, root, trust) = fresh();
    trust.space_account(&alpha(), Topology::One, now()).unwrap();
    let broker = Broker::start(&root, &trust);
    let (_other_dir, _other_root, other) = fresh();
    let foreign = other.space_account(&alpha(), Topology::One, now()).unwrap();
    assert!(broker.refuses(&user(foreign.keys(), may(&[">"], &[">"]))).await);
}

/// A user whose JWT is as large as the check lets pass.
fn largest(account: &AccountKeys) -> Minted {
    let key = UserKey::generate();
    let mint = |channels: usize| {
        let allow = (0..channels).map(|n| format!("cotal.alpha.chat.*.*.channel{n:05}")).collect();
        let permissions = Permissions { sub_allow: allow, ..may(&["x"], &[]) };
        let (tags, issued_at) = (Vec::new(), now());
        let spec =
            UserSpec { name: "bob", key: &key, tags, permissions, issued_at, expires_at: None };
        mint_user(account, &spec)
    };
    let (mut fits, mut too_many) = (0, 4_000);
    while too_many - fits > 1 {
        let middle = usize::midpoint(fits, too_many);
        if mint(middle).is_ok() {
            fits = middle;
        } else {
            too_many = middle;
        }
    }
    mint(fits).unwrap()
}

#[tokio::test]
async fn the_largest_jwt_that_passes_the_check_connects() {
    let (_dir, root, trust) = fresh();
    let account = trust.space_account(&alpha(), Topology::One, now()).unwrap();
    let broker = Broker::start(&root, &trust);
    let large = largest(account.keys());
    assert!(large.jwt.len() > 64_000, "{}", large.jwt.len());
    let mut peer = broker.accepts(&large).await;
    peer.may_not_publish("y").await;
}

fn every_profile(account: &SpaceAccount) -> Vec<(UserKey, Profile)> {
    let own = |make: fn(Principal) -> Profile| {
        let key = UserKey::generate();
        let principal = key.principal().unwrap();
        (key, make(principal))
    };
    let channel = ChannelPattern::parse("team.>").unwrap();
    let agent = AgentGrant {
        lifecycle: Lifecycle::new(
            Principal::parse("local.BobUPPER").unwrap(),
            LifecycleUid::from_random([7; 26]),
        ),
        read: vec![channel.clone()],
        post: vec![channel],
        role: Some(Role::parse("reviewer").unwrap()),
    };
    assert_eq!(account.space(), &alpha());
    vec![
        (UserKey::generate(), Profile::Agent(agent)),
        own(Profile::Delivery),
        (UserKey::generate(), Profile::MembershipRw),
        own(Profile::Supervisor),
        own(Profile::Operator),
        (UserKey::generate(), Profile::Provisioner),
        own(Profile::Observer),
        own(Profile::Admin),
    ]
}

#[tokio::test]
async fn every_profile_connects_and_the_census_shows_its_tags_in_their_case() {
    let (_dir, root, trust) = fresh();
    let account = trust.space_account(&alpha(), Topology::One, now()).unwrap();
    let broker = Broker::start(&root, &trust);
    let observer = UserKey::generate();
    let profile = SystemProfile::MembershipObserver { accounts: account.inhabited() };
    let minted =
        mint_system_profile(trust.system(), &observer, &profile, Some(&alpha()), now()).unwrap();

    for (key, profile) in every_profile(&account) {
        let expires_at = profile.lifetime().map(|lifetime| now() + lifetime);
        let minted_user = mint_profile(&account, &key, &profile, now(), expires_at).unwrap();
        let creds = cotal_wire::creds::Creds::parse(minted_user.creds.expose()).unwrap();
        assert_eq!(creds.claims.space().unwrap(), alpha());
        let peer = broker.accepts(&minted_user).await;
        peer.client.flush().await.unwrap();
        let tags = census_tags(&broker, &minted, &account.public_key(), &key.public_key()).await;
        assert_eq!(tags, creds.claims.tags, "{}", profile.name());
        let principal = match &profile {
            Profile::Agent(grant) => grant.lifecycle.principal.clone(),
            _ => key.principal().unwrap(),
        };
        assert!(tags.contains(&format!("principal:{principal}")), "{tags:?}");
    }
}

/// The tags of one connection, as the observer's credential sees them.
async fn census_tags(broker: &Broker, observer: &Minted, account: &str, user: &str) -> Vec<String> {
    let peer = broker.accepts(observer).await;
    let subject = format!("$SYS.REQ.ACCOUNT.{account}.CONNZ");
    let census = peer.asks(&subject, r#"{"auth":true}"#.to_owned()).await;
    let connections = census["data"]["connections"].as_array().unwrap().clone();
    let ours = connections.iter().find(|c| c["nkey"] == *user || c["authorized_user"] == *user);
    let ours = ours.unwrap_or_else(|| panic!("{user} is not in {census}"));
    serde_json::from_value(ours["tags"].clone()).unwrap()
}

#[tokio::test]
async fn a_system_user_is_never_a_broker_admin() {
    let (_dir, root, trust) = fresh();
    let account = trust.space_account(&alpha(), Topology::One, now()).unwrap();
    let broker = Broker::start(&root, &trust);
    for (profile, foreign) in [
        (SystemProfile::ClaimsPusher, "$SYS.REQ.SERVER.PING.CONNZ"),
        (SystemProfile::ConnectionEvictor, "$SYS.REQ.CLAIMS.UPDATE"),
        (
            SystemProfile::MembershipObserver { accounts: account.inhabited() },
            "$SYS.REQ.CLAIMS.UPDATE",
        ),
    ] {
        let key = UserKey::generate();
        let minted = mint_system_profile(trust.system(), &key, &profile, None, now()).unwrap();
        let mut peer = broker.accepts(&minted).await;
        peer.may_not_publish(foreign).await;
        peer.may_not_subscribe("$SYS.>").await;
    }
}
