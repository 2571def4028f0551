//! Every profile against the real broker: what it may do, and that it may do nothing else.
//!
//! `tables.rs` spells the profiles. Each is tried with everything that any profile may do, as itself
//! and as another, and with every JetStream call on every stream. `refusals.rs` tries what a
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

async fn mesh_with_bob() -> (Mesh, Creds) {
    let spaces = vec!["main".to_owned(), "other".to_owned()];
    let mesh = Mesh::with(MeshOptions { spaces, ..MeshOptions::default() }).await;
    let bob = mesh.add_agent("bob", &["secret"], &["secret"], None).await;
    (mesh, Creds::parse(&bob).expect("a credential"))
}

async fn check_profile(profile: impl Fn(Principal) -> Profile, tables: &[&str]) {
    let (mesh, bob) = mesh_with_bob().await;
    check(&mesh, &mesh.creds(profile), tables, &bob).await;
}

async fn check_system(profile: impl Fn(String) -> SystemProfile, table: &str) {
    let (mesh, bob) = mesh_with_bob().await;
    let profile = profile(bob.claims.account.clone());
    let authority = mesh.authority();
    let (system, key) = (authority.trust().system(), UserKey::generate());
    let minted = mint_system_profile(system, &key, &profile, None, unix_seconds());
    let creds = minted.expect("a credential").creds;
    check(&mesh, creds.expose(), &[table], &bob).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_9_an_agent_may_do_this_and_nothing_else() {
    let (mesh, bob) = mesh_with_bob().await;
    let alice = mesh.add_agent("alice", &["team.>", "ops"], &["team.>"], None).await;
    check(&mesh, &alice, &[tables::AGENT], &bob).await;
    let carol = mesh.add_agent("carol", &["team.>", "ops"], &["team.>"], Some("reviewer")).await;
    check(&mesh, &carol, &[tables::AGENT, tables::ROLE], &bob).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_1_the_delivery_daemon_may_do_this_and_nothing_else() {
    check_profile(Profile::Delivery, &[tables::DELIVERY]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_membership_writer_may_do_this_and_nothing_else() {
    check_profile(|_| Profile::MembershipRw, &[tables::MEMBERSHIP_RW]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_supervisor_may_do_this_and_nothing_else() {
    check_profile(Profile::Supervisor, &[tables::SUPERVISOR]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_may_do_this_and_nothing_else() {
    check_profile(Profile::Operator, &[tables::OPERATOR]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_endpoint_may_do_this_and_nothing_else() {
    let endpoint = EndpointName::parse("endpoint").expect("an endpoint");
    check_profile(|_| Profile::Workflow(endpoint.clone()), &[tables::WORKFLOW]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_provisioner_may_do_this_and_nothing_else() {
    let calls = tables::STREAMS
        .iter()
        .flat_map(|stream| tables::PROVISIONING.map(|call| call.replace("{}", stream)));
    let streams = calls.collect::<Vec<_>>().join("\n");
    check_profile(|_| Profile::Provisioner, &[tables::PROVISIONER, &streams]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observer_may_do_this_and_nothing_else() {
    check_profile(Profile::Observer, &[tables::OBSERVER]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admin_may_do_this_and_nothing_else() {
    check_profile(Profile::Admin, &[tables::OBSERVER, tables::ADMIN]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_membership_observer_may_do_this_and_nothing_else() {
    let profile = |account| SystemProfile::MembershipObserver { account };
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
