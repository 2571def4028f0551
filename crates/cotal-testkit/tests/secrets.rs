//! No secret is shown by `Debug`, whoever prints what holds it.

use std::fmt::Debug;

use cotal_client::{Credential, Endpoint, EndpointOptions};
use cotal_nats::{ConnectOptions, CredsSource};
use cotal_testkit::{Mesh, MeshOptions};
use cotal_trust::{AccountKeys, Trust, UserKey};
use cotal_workspace::{FileStore, MemoryStore, Secret, SecretKey, SecretKind, SecretStore as _};

/// Whatever stands in a credential and must not be shown: the seed and the JWT's signature.
fn secrets_of(text: &str) -> Vec<String> {
    let creds = cotal_wire::creds::Creds::parse(text).expect("a credential");
    let signature = creds.jwt.rsplit('.').next().expect("a signature").to_owned();
    vec![creds.seed, signature]
}

fn hides(what: &str, shown: &dyn Debug, secrets: &[String]) {
    for text in [format!("{shown:?}"), format!("{shown:#?}")] {
        for secret in secrets {
            assert!(!text.contains(secret), "{what} shows a secret");
        }
    }
}

#[tokio::test]
async fn no_debug_shows_a_secret() {
    let mesh = Mesh::with(MeshOptions::default()).await;
    let text = mesh.add_agent("alice", &["a"], &["a"], Some("reviewer")).await;
    let secrets = secrets_of(&text);
    let creds = cotal_nats::Creds::parse(&text).expect("creds");
    let source = CredsSource::new(creds.clone());
    let options = EndpointOptions::from_text(mesh.url(), text.as_str());
    hides("EndpointOptions", &options, &secrets);
    hides("Credential::Text", &Credential::Text(text.clone()), &secrets);
    hides("Credential::Source", &Credential::Source(source.clone()), &secrets);
    hides("cotal_wire::creds::Creds", &cotal_wire::creds::Creds::parse(&text).unwrap(), &secrets);
    hides("cotal_nats::Creds", &creds, &secrets);
    hides("CredsSource", &source, &secrets);
    hides("ConnectOptions", &ConnectOptions::new(mesh.url(), "x", source.clone()), &secrets);
    let endpoint = Endpoint::connect(options).await.expect("an endpoint");
    hides("Endpoint", &endpoint, &secrets);
    hides("Holder", &endpoint.holder().expect("a role"), &secrets);
    hides("Identity", endpoint.identity(), &secrets);
    endpoint.close().await;
    let connection = mesh.connect(&text).await;
    hides("Connection", &connection, &secrets);

    let memory = MemoryStore::new("memory");
    let key = SecretKey::new(mesh.space(), SecretKind::Delivery);
    memory.put(&key, &Secret::new(text.as_str())).expect("a store");
    hides("MemoryStore", &memory, &secrets);
    hides("Secret", &Secret::new(text.as_str()), &secrets);
    let files = FileStore::new(mesh.root().clone());
    let stored = files.get(&key).expect("the store").expect("the daemon's credential");
    hides("FileStore", &files, &secrets_of(stored.expose()));
    hides("Authority", &mesh.authority(), &seeds_below(mesh.dir()));
    hides("Trust", &Trust::open(mesh.root()).expect("trust"), &seeds_below(mesh.dir()));
    let own = UserKey::generate();
    hides("UserKey", &own, &[own.seed().expect("a seed").expose().to_owned()]);
    hides("AccountKeys", &AccountKeys::generate("x"), &["SA".to_owned()]);
}

/// Every seed that a file of the root holds.
fn seeds_below(dir: &std::path::Path) -> Vec<String> {
    let mut seeds = Vec::new();
    for entry in std::fs::read_dir(dir.join(".cotal/auth")).expect("auth").flatten() {
        let below = if entry.path().is_dir() {
            std::fs::read_dir(entry.path()).expect("a space").flatten().map(|e| e.path()).collect()
        } else {
            vec![entry.path()]
        };
        for path in below {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let words = text.split(|c: char| !c.is_ascii_alphanumeric());
            let seed = |word: &&str| word.len() == 58 && word.starts_with('S');
            seeds.extend(words.filter(seed).map(str::to_owned));
        }
    }
    assert!(!seeds.is_empty(), "no seed was found to look for");
    seeds
}
