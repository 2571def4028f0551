//! Adoption of renewed credentials (CRD-2 to CRD-7, ADM-8), against a real broker.

use std::time::{Duration, Instant};

use cotal_delivery::{Lane, LaneError, LeaseError, Stage, Windows};
use cotal_manager::Authority;
use cotal_manager::clock::unix_seconds;
use cotal_nats::NatsError;
use cotal_testkit::{God, Mesh, MeshOptions, Proxy, Supervisor, eventually, logged};
use cotal_trust::{UserKey, UserSpec, mint_user};
use cotal_wire::control::{Adoption, Code, op};
use cotal_wire::creds::Creds;
use cotal_wire::names::{Bucket, LEASE_KEY};
use cotal_wire::profile::Profile;
use cotal_wire::rows::LeaseRow;
use cotal_wire::{Principal, Space};
use cotal_workspace::Root;
use data_encoding::BASE64URL_NOPAD;
use serde_json::{Value, json};

use super::support::{
    Host, Resident, adopted, carries_the_rails, fingerprint, jwt, mint_by, refused, reload,
    time_of_day,
};

/// The broker's own times show that the reconnect came at least 250 ms after the proof began; the
/// reply is in between.
#[tokio::test(flavor = "multi_thread")]
async fn crd_2_and_crd_4_what_was_asked_for_is_proved_and_the_connection_moves_after_the_reply() {
    let mesh = Mesh::start().await;
    let host = Host::with_life(&mesh, 0, 600).await;
    let old = host.mint(0, 600);
    host.put(&old);
    let _lane = host.lane().await;
    let manager = Supervisor::of(&mesh).await;
    let before = host.runs_on(&old).await;

    // Before the renewal point, a reload without a new credential changes nothing.
    let Adoption::BrokerAccepted(held) = adopted(reload(&manager, Some(&old)).await).delivery
    else {
        panic!("skipped")
    };
    assert_eq!(held.fingerprint, fingerprint(&old));

    let new = host.mint(0, 900);
    host.put(&new);
    let (code, _) = refused(reload(&manager, Some(&old)).await);
    assert_eq!(code, Some(Code::Conflict), "the store does not hold what the owner expects");
    assert_eq!(host.resident().await, Some(before.clone()), "nothing was adopted so far");

    let reloaded = adopted(reload(&manager, Some(&new)).await);
    let Adoption::BrokerAccepted(accepted) = reloaded.delivery else { panic!("skipped") };
    let claims = Creds::parse(&new).expect("creds").claims;
    assert_eq!(accepted.identity, host.key.public_key());
    assert_eq!((accepted.iat, accepted.exp), (claims.issued_at, claims.expires_at));
    assert_eq!(accepted.fingerprint, fingerprint(&new));

    let after = host.runs_on(&new).await;
    assert_ne!(after.cid, before.cid);
    let closed = host.census(1).await;
    let at = |is_resident: bool, jwt: String, field: &str| {
        let is_it = |c: &&Value| carries_the_rails(c) == is_resident && c["jwt"] == jwt.as_str();
        let one = closed.iter().find(is_it).expect("a closed connection");
        time_of_day(one[field].as_str().expect("a time"))
    };
    let (proved, moved) = (at(false, jwt(&new), "start"), at(true, jwt(&old), "stop"));
    let day = Duration::from_secs(86_400);
    let midnight = if proved > moved + day / 2 { day } else { Duration::ZERO };
    let between = (moved + midnight).saturating_sub(proved);
    assert!(between >= Duration::from_millis(250), "moved {between:?} after the proof");
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_2_the_daemon_reads_its_key_again_at_three_quarters_of_the_lifetime() {
    let mesh = Mesh::start().await;
    let began = unix_seconds();
    // 40 s of life, of which 27 are over: the renewal point is in 3 s, the end in 13 s.
    let host = Host::with_life(&mesh, 27, 13).await;
    let _lane = host.lane().await;
    let new = host.mint(0, 900);
    host.put(&new);
    host.runs_on(&new).await;
    let early = began + 2 - unix_seconds();
    assert!(early <= 0, "adopted {early} s before the renewal point, and nobody asked");
    assert_eq!(logged(&["credential expired"]), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_2_a_missed_renewal_is_said_with_its_repair_and_made_up_for() {
    let mesh = Mesh::start().await;
    let host = Host::with_life(&mesh, 900, 100).await;
    let _lane = host.lane().await;
    let manager = Supervisor::of(&mesh).await;
    let (code, why) = refused(reload(&manager, None).await);
    assert_eq!(code, Some(Code::Unavailable));
    assert!(why.contains("missed") && why.contains("cotal doctor auth --fix"), "{why}");
    let said = || async { logged(&["due for renewal", "missed"]) };
    eventually("the log says so", said, |lines| !lines.is_empty()).await;
    let new = host.mint(0, 900);
    host.put(&new);
    host.runs_on(&new).await;
    adopted(reload(&manager, Some(&new)).await);
}

/// The broker's answer to the `ready` row is held back, so the row says `ready` although start-up
/// is not finished. A request made before that answer is answered.
#[tokio::test(flavor = "multi_thread")]
async fn crd_3_nothing_is_adopted_before_start_up_is_finished_though_the_lease_reads_ready() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let manager = Supervisor::of(&mesh).await;
    let host = Host::with_life(&mesh, 0, 600).await;
    let proxy = Proxy::to(&mesh.host_port()).await;
    // The last rail to be bound: by then the admin rail is confirmed.
    proxy.deafen_at("live.delivery.*.*");
    let mut options = host.options();
    options.server = proxy.url();
    let lane = Lane::start(options);
    proxy.deafened().await;
    let new = host.mint(0, 900);
    host.put(&new);
    let asked = async { refused(reload(&manager, Some(&new)).await) };
    let meanwhile = async {
        proxy.holds(op::RELOAD_CREDS).await;
        proxy.deafen_at("\"ready\":true");
        proxy.heal();
    };
    let ((code, why), ()) = tokio::join!(asked, meanwhile);
    assert_eq!(code, Some(Code::NotReady));
    assert!(why.contains("has not finished starting"), "{why}");
    proxy.deafened().await;
    let reads_ready = || async {
        let entry = god.kv(Bucket::Delivery).get(LEASE_KEY).await.expect("the bucket");
        entry.and_then(|entry| LeaseRow::parse(&entry.value).ok()).is_some_and(|row| row.ready)
    };
    eventually("the lease reads ready", reads_ready, |ready| *ready).await;
    let resident = host.resident().await.expect("a connection");
    assert_ne!(resident.jwt, jwt(&new), "nothing was adopted");

    proxy.heal();
    let _lane = cotal_testkit::serving(lane).await;
    adopted(reload(&manager, Some(&new)).await);
    host.runs_on(&new).await;
}

/// A credential of the host's key that lacks the first subject that the daemon must publish on.
fn weaker(host: &Host<'_>) -> (String, String) {
    let conn = host.key.conn_id().expect("an id");
    let own = host.key.principal().expect("a principal");
    let topology = host.mesh.authority().account().topology();
    let mut permissions = Profile::Delivery(own).permissions(host.mesh.space(), &conn, topology);
    let lost = permissions.pub_allow.remove(0);
    let now = unix_seconds();
    let spec = UserSpec {
        name: "delivery",
        key: &host.key,
        tags: Creds::parse(&host.mint(0, 60)).expect("creds").claims.tags,
        permissions,
        issued_at: now,
        expires_at: Some(now + 600),
    };
    let minted = mint_user(host.mesh.authority().account().keys(), &spec);
    (minted.expect("a credential").creds.expose().to_owned(), lost)
}

/// The claims say a longer life; the signature is the old one.
fn forged(good: &str) -> String {
    let creds = Creds::parse(good).expect("creds");
    let parts: Vec<&str> = creds.jwt.split('.').collect();
    let claims = BASE64URL_NOPAD.decode(parts[1].as_bytes()).expect("base64");
    let mut claims: Value = serde_json::from_slice(&claims).expect("JSON");
    claims["exp"] = json!(unix_seconds() + 1_000_000);
    let claims = BASE64URL_NOPAD.encode(claims.to_string().as_bytes());
    Creds::render(&format!("{}.{claims}.{}", parts[0], parts[2]), &creds.seed)
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_5_what_may_not_be_adopted_is_refused_and_the_resident_connection_stays() {
    let spaces = vec!["main".into(), "other".into()];
    let mesh = Mesh::with(MeshOptions { spaces, ..MeshOptions::default() }).await;
    let host = Host::with_life(&mesh, 0, 600).await;
    let _lane = host.lane().await;
    let manager = Supervisor::of(&mesh).await;
    let before = host.resident().await.expect("a connection");
    let good = host.mint(0, 900);
    let elsewhere = tempfile::tempdir().expect("a directory");
    let root = Root::init(elsewhere.path()).expect("a root");
    let foreign = Authority::create_or_open(&root, mesh.space()).expect("another operator");
    let other = Space::parse("other").expect("a space");
    let other = Authority::open(mesh.root(), &other).expect("another account");
    let (weaker, lost) = weaker(&host);
    let lost = format!("publish {lost}");
    let stranger = UserKey::generate();
    let strange_seed = Creds::parse(&mint_by(&mesh.authority(), &stranger, 0, 600)).expect("creds");
    for (candidate, wanted) in [
        ("nonsense".to_owned(), "cannot be parsed"),
        (good[..good.len() / 2].to_owned(), "cannot be parsed"),
        (mint_by(&other, &host.key, 0, 600), "another account"),
        (mint_by(&foreign, &host.key, 0, 600), "another account"),
        (mint_by(&mesh.authority(), &stranger, 0, 600), "another identity"),
        (host.mint(100, -10), "expired"),
        (weaker, lost.as_str()),
        (Creds::render(&jwt(&good), &strange_seed.seed), "key pair"),
        (forged(&good), "the broker did not accept"),
    ] {
        host.put(&candidate);
        let (_, why) = refused(reload(&manager, None).await);
        assert!(why.contains(wanted), "wanted {wanted:?}: {why}");
        assert_eq!(host.resident().await, Some(before.clone()), "moved by {wanted:?}");
    }
    host.remove();
    let (_, why) = refused(reload(&manager, None).await);
    assert!(why.contains("there is no"), "{why}");
    host.put(&good);
    adopted(reload(&manager, Some(&good)).await);
    host.runs_on(&good).await;
}

/// The renewal comes long after the window in which a missing broker would be given up.
#[tokio::test(flavor = "multi_thread")]
async fn crd_6_an_expired_credential_waits_for_a_proved_renewal_and_nothing_else() {
    let mesh = Mesh::start().await;
    let host = Host::with_life(&mesh, 0, 5).await;
    let mut options = host.options();
    options.windows = Windows::new(Some(500), Some(120_000));
    let lane = cotal_testkit::serving(Lane::start(options)).await;
    let line = "! delivery: credential expired, awaiting proved renewal";
    let said = || async { logged(&[line]) };
    eventually("the expiry is said", said, |lines| !lines.is_empty()).await;
    assert!(logged(&[line])[0].ends_with(line) || logged(&[line])[0].contains(&format!("{line} ")));

    // Neither garbage nor the end of the broker's window changes anything.
    host.put(&forged(&host.mint(0, 900)));
    let expired = Instant::now();
    let elapsed = || async { expired.elapsed() };
    let over = |elapsed: &Duration| *elapsed > Duration::from_millis(1_500);
    eventually("the broker's window is over", elapsed, over).await;
    assert_eq!(*lane.stage().borrow(), Stage::Ready);
    assert_eq!(host.resident().await, None, "nothing was proved");

    let new = host.mint(0, 900);
    host.put(&new);
    host.runs_on(&new).await;
    let manager = Supervisor::of(&mesh).await;
    let look = || async { manager.request(op::RELOAD_STORE_IDENTITY, json!({})).await };
    let ok = |reply: &Result<_, NatsError>| {
        reply.as_ref().is_ok_and(|r: &cotal_wire::control::Reply| r.ok)
    };
    eventually("it serves again", look, ok).await.expect("an answer");
    assert_eq!(logged(&[line]).len(), 1, "said once");
    assert_eq!(*lane.stage().borrow(), Stage::Ready);
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_6_without_a_proved_renewal_the_backstop_ends_the_daemon() {
    let mesh = Mesh::start().await;
    let host = Host::with_life(&mesh, 0, 5).await;
    let mut options = host.options();
    options.windows = Windows::new(Some(300), Some(1_000));
    let mut lane = cotal_testkit::serving(Lane::start(options)).await;
    let ended = lane.ended().await.expect_err("an end");
    assert!(matches!(ended, LaneError::NotRenewed), "{ended}");
    assert_eq!(ended.to_string(), "credential expired without renewal");
}

fn holder(refused: &LaneError) -> Principal {
    match refused {
        LaneError::Lease(LeaseError::Held { holder, .. }) => holder.clone(),
        other => panic!("refused for another reason: {other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_7_the_nkey_outlives_renewal_and_restart_and_differs_between_standby_hosts() {
    let mesh = Mesh::start().await;
    let host = Host::with_life(&mesh, 0, 600).await;
    let standby = Host::with_life(&mesh, 0, 600).await;
    let manager = Supervisor::of(&mesh).await;
    let own = host.key.principal().expect("a principal");
    let mut lane = host.lane().await;
    let refuse = async || Lane::start(standby.options()).ended().await.expect_err("a refusal");
    assert_eq!(holder(&refuse().await), own);

    let new = host.mint(0, 900);
    host.put(&new);
    adopted(reload(&manager, Some(&new)).await);
    let moved: Resident = host.runs_on(&new).await;
    let subject = |jwt: &str| cotal_wire::creds::Claims::parse(jwt).expect("claims").subject;
    assert_eq!(subject(&moved.jwt).as_str(), host.key.public_key());
    assert_eq!(holder(&refuse().await), own);
    lane.stop();
    lane.ended().await.expect("a clean end");
    let lane = host.lane().await;
    assert_eq!(holder(&refuse().await), own);
    assert_ne!(own, standby.key.principal().expect("a principal"));

    // The standby host's credential is another identity, even in the holder's own store.
    host.put(&standby.mint(0, 900));
    let (_, why) = refused(reload(&manager, None).await);
    assert!(why.contains("another identity"), "{why}");
    drop(lane);
}

/// The reply to the request comes only when the broker's own list shows a new connection.
#[tokio::test(flavor = "multi_thread")]
async fn adm_8_a_request_between_the_reply_and_the_reconnect_is_answered_after_the_reconnect() {
    let mesh = Mesh::start().await;
    let host = Host::with_life(&mesh, 0, 600).await;
    let _lane = host.lane().await;
    let manager = Supervisor::of(&mesh).await;
    let before = host.resident().await.expect("a connection");
    let new = host.mint(0, 900);
    host.put(&new);
    adopted(reload(&manager, Some(&new)).await);
    let answer = loop {
        match manager.request(op::RELOAD_STORE_IDENTITY, json!({})).await {
            // The test was delayed, and asked while the connection redialled.
            Err(NatsError::NoResponders { .. }) => {}
            answer => break answer.expect("an answer"),
        }
    };
    assert!(answer.ok, "{answer:?}");
    let after = host.resident().await.expect("a connection");
    assert_ne!(after.cid, before.cid, "answered before the connection moved");
    assert_eq!(after.jwt, jwt(&new));
}
