//! Every profile against the real broker: what it may do, and that it may do nothing else.
//!
//! `tables.rs` spells the profiles. Each is tried with everything that any profile may do, as
//! itself and as another, and with every JetStream call on every stream. `refusals.rs` tries what a
//! permission cannot express; `clients.rs` does what client libraries do.

mod clients;
mod probe;
mod refusals;
mod rows;
mod tables;

use std::collections::BTreeSet;

use cotal_manager::clock::unix_seconds;
use cotal_testkit::{Mesh, MeshOptions};
use cotal_trust::{UserKey, mint_system_profile};
use cotal_wire::accounts::Topology;
use cotal_wire::creds::Creds;
use cotal_wire::profile::{Profile, SystemProfile};
use cotal_wire::{EndpointName, Principal};
use probe::{Probe, Verdict};
use rows::{Cast, Operation};

/// Someone else's lifecycle uid for users that have none.
const NO_UID: &str = "00000000000000000000000000";

/// A profile is tried with the credential's text against its tables.
async fn check(mesh: &Mesh, creds: &str, tables: &[&str], bob: &Creds) {
    let claims = Creds::parse(creds).expect("a credential").claims;
    let (bob_claims, bob_life) = (&bob.claims, bob.claims.lifecycle().expect("bob"));
    let cast = Cast {
        me: claims.principal().expect("a principal").to_string(),
        uid: claims.lifecycle().map_or(NO_UID.to_owned(), |life| life.uid.to_string()),
        conn: claims.subject.as_str().to_owned(),
        bob: bob_life.principal.to_string(),
        bob_uid: bob_life.uid.to_string(),
        bob_conn: bob_claims.subject.as_str().to_owned(),
        account: bob_claims.account.clone(),
    };
    let mut universe = cast.universe();
    let mut tables = tables.to_vec();
    tables.push(tables::EVERYONE);
    let allowed = cast.allowed(&tables, &universe);
    universe.extend(allowed.iter().cloned());
    let mut probe = Probe::new(mesh.connect(creds).await);
    let mut wrong = Vec::new();
    for operation in &universe {
        let wanted = if allowed.contains(operation) { Verdict::Allowed } else { Verdict::Denied };
        if probe.tries(operation).await != wanted {
            wrong.push(format!("{operation:?} should be {wanted:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), universe.len(), wrong.join("\n"));
    every_grant_was_tried(&claims.pub_allow, &claims.sub_allow, &allowed);
}

/// A grant that no line of the table matches would go unnoticed.
fn every_grant_was_tried(publish: &[String], subscribe: &[String], allowed: &BTreeSet<Operation>) {
    for grant in publish {
        let tried = |op: &Operation| matches!(op, Operation::Publish(s) if matches(grant, s));
        assert!(allowed.iter().any(tried), "no table tries to publish under {grant}");
    }
    for grant in subscribe {
        let tried = |op: &Operation| matches!(op, Operation::Subscribe(s) if matches(grant, s));
        assert!(allowed.iter().any(tried), "no table tries to subscribe under {grant}");
    }
}

fn matches(grant: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for granted in grant.split('.') {
        match (granted, tokens.next()) {
            (">", Some(_)) => return true,
            (granted, Some(token)) if granted == "*" || granted == token => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

async fn mesh_with_bob(topology: Topology) -> (Mesh, Creds) {
    let spaces = vec!["main".to_owned(), "other".to_owned()];
    let one_account = topology == Topology::One;
    let mesh = Mesh::with(MeshOptions { spaces, one_account, ..MeshOptions::default() }).await;
    let bob = mesh.add_agent("bob", &["secret"], &["secret"], None).await;
    (mesh, Creds::parse(&bob).expect("a credential"))
}

/// Tries a profile against its tables in both topologies; `isolated` is what it may do besides in a
/// space of three.
async fn check_profile(profile: impl Fn(Principal) -> Profile, tables: &[&str], isolated: &[&str]) {
    let (mesh, bob) = mesh_with_bob(Topology::One).await;
    check(&mesh, &mesh.creds(&profile), tables, &bob).await;
    let (mesh, bob) = mesh_with_bob(Topology::Three).await;
    let creds = mesh.creds(&profile);
    let is_durable = Creds::parse(&creds).expect("creds").claims.tag("agents").is_some();
    let elsewhere = |table: &&str| {
        if is_durable {
            table.replace("kv presence\n", tables::SHARED_PRESENCE)
        } else {
            (*table).to_owned()
        }
    };
    let tables: Vec<String> = tables.iter().chain(isolated).map(elsewhere).collect();
    let tables: Vec<&str> = tables.iter().map(String::as_str).collect();
    check(&mesh, &creds, &tables, &bob).await;
}

async fn check_system(profile: impl Fn(String) -> SystemProfile, table: &str) {
    let (mesh, bob) = mesh_with_bob(Topology::One).await;
    let profile = profile(bob.claims.account.clone());
    let authority = mesh.authority();
    let (system, key) = (authority.trust().system(), UserKey::generate());
    let minted = mint_system_profile(system, &key, &profile, None, unix_seconds());
    let creds = minted.expect("a credential").creds;
    check(&mesh, creds.expose(), &[table], &bob).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_9_an_agent_may_do_this_and_nothing_else() {
    for (topology, beside) in [(Topology::One, ""), (Topology::Three, tables::TRUE_CHAT)] {
        let (mesh, bob) = mesh_with_bob(topology).await;
        let alice = mesh.add_agent("alice", &["team.>", "ops"], &["team.>"], None).await;
        check(&mesh, &alice, &[tables::AGENT, beside], &bob).await;
        let carol = mesh.add_agent("carol", &["team.>", "ops"], &["team.>"], Some("reviewer"));
        check(&mesh, &carol.await, &[tables::AGENT, tables::ROLE, beside], &bob).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_1_the_delivery_daemon_may_do_this_and_nothing_else() {
    check_profile(Profile::Delivery, &[tables::DELIVERY], &[tables::FORWARDED]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_membership_writer_may_do_this_and_nothing_else() {
    check_profile(|_| Profile::MembershipRw, &[tables::MEMBERSHIP_RW], &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_supervisor_may_do_this_and_nothing_else() {
    check_profile(Profile::Supervisor, &[tables::SUPERVISOR], &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_may_do_this_and_nothing_else() {
    check_profile(Profile::Operator, &[tables::OPERATOR], &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_endpoint_may_do_this_and_nothing_else() {
    let endpoint = EndpointName::parse("endpoint").expect("an endpoint");
    check_profile(|_| Profile::Workflow(endpoint.clone()), &[tables::WORKFLOW], &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_provisioner_may_do_this_and_nothing_else() {
    let (mesh, bob) = mesh_with_bob(Topology::One).await;
    let streams = calls(tables::STREAMS.iter().copied(), &tables::PROVISIONING);
    let creds = mesh.creds(|_| Profile::Provisioner);
    check(&mesh, &creds, &[tables::PROVISIONER, &streams], &bob).await;
    let (mesh, bob) = mesh_with_bob(Topology::Three).await;
    let creds = mesh.creds(|_| Profile::Provisioner);
    let durable = tables::STREAMS.iter().copied().filter(|stream| !stream.contains("presence"));
    let streams = calls(durable, &tables::PROVISIONING);
    check(&mesh, &creds, &[tables::PROVISIONER, &streams], &bob).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shared_provisioner_may_do_this_and_nothing_else() {
    let (mesh, bob) = mesh_with_bob(Topology::Three).await;
    let creds = mesh.creds(|_| Profile::SharedProvisioner);
    let shared = ["CHAT", "KV_cotal_presence", "KV_cotal_channels", "KV_cotal_delivery"];
    let shared = shared.into_iter().chain(["KV_cotal_membership"]);
    let shared: Vec<_> = shared.map(|stream| format!("{stream}_main")).collect();
    let only = ["api STREAM.CREATE.{}", "api STREAM.UPDATE.{}", "api STREAM.INFO.{}"];
    let streams = calls(shared.iter().map(String::as_str), &only);
    check(&mesh, &creds, &[&streams], &bob).await;
}

/// Each of the calls on each of the streams.
fn calls<'a>(streams: impl Iterator<Item = &'a str>, calls: &[&str]) -> String {
    let each = |stream: &'a str| calls.iter().map(move |call| call.replace("{}", stream));
    streams.flat_map(each).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_janitor_may_do_this_and_nothing_else() {
    check_profile(|_| Profile::Janitor, &[tables::JANITOR], &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observer_may_do_this_and_nothing_else() {
    check_profile(Profile::Observer, &[tables::OBSERVER], &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admin_may_do_this_and_nothing_else() {
    check_profile(Profile::Admin, &[tables::OBSERVER, tables::ADMIN], &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_membership_observer_may_do_this_and_nothing_else() {
    let profile = |account| SystemProfile::MembershipObserver { accounts: vec![account] };
    check_system(profile, tables::MEMBERSHIP_OBSERVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connection_evictor_may_do_this_and_nothing_else() {
    check_system(|_| SystemProfile::ConnectionEvictor, tables::CONNECTION_EVICTOR).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_claims_pusher_may_do_this_and_nothing_else() {
    check_system(|_| SystemProfile::ClaimsPusher, tables::CLAIMS_PUSHER).await;
}
