//! What lies in a root, against the list that `docs/wire.md` §9 gives of it.

use std::collections::BTreeSet;
use std::path::Path;

use crate::site::Site;

/// The paths that the listing names; a directory ends with `/`. Two spaces part them from one
/// another and from what is said about them, which is more than a word.
fn listed() -> BTreeSet<String> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/wire.md");
    let text = std::fs::read_to_string(docs).unwrap();
    let (_, files) = text.split_once("## 9. Files").unwrap();
    let (_, listing) = files.split_once("```\n.cotal/\n").unwrap();
    let (listing, _) = listing.split_once("```").unwrap();
    let parts = listing.lines().flat_map(|line| line.split("  ")).map(str::trim);
    parts.filter(|part| !part.is_empty() && !part.contains(' ')).map(str::to_owned).collect()
}

/// Every file below `dir`, as the listing would name it.
fn written(site: &Site) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    let mut visit = vec![site.root().join(".cotal")];
    while let Some(dir) = visit.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                visit.push(path);
                continue;
            }
            let below = path.strip_prefix(site.root().join(".cotal")).unwrap().to_str().unwrap();
            let text =
                format!("/{below}").replace("/main/", "/<seg>/").replace(".main.", ".<seg>.");
            let text = text.replace("local.alice", "<owner>.<actor>");
            files.insert(text.trim_start_matches('/').to_owned());
        }
    }
    files
}

fn is_listed(file: &str, listed: &BTreeSet<String>) -> bool {
    // What stands beside every record of a process is told once.
    let record = file.strip_suffix(".birth").or_else(|| file.strip_suffix(".lock"));
    let record = record.filter(|record| record.ends_with(".pid")).unwrap_or(file);
    let in_directory = |one: &String| one.ends_with('/') && file.starts_with(one.as_str());
    listed.contains(record) || listed.iter().any(in_directory)
}

#[test]
fn every_file_that_a_mesh_writes_is_listed() {
    let site = Site::new();
    let listed = listed();
    let mut seen = BTreeSet::new();
    site.run(&["up", "--detach", "--tls", "--server-port", "0"]).ok();
    site.run(&["agent", "add", "alice", "--read", "a"]).ok();
    seen.append(&mut written(&site));
    site.run(&["down"]).ok();
    seen.append(&mut written(&site));
    let missing: Vec<_> = seen.iter().filter(|file| !is_listed(file, &listed)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for file in ["delivery.<seg>.pid.birth", "auth/<seg>/delivery.seed", "auth/lock"] {
        assert!(seen.contains(file), "the walk saw less than there is: {seen:?}");
    }
}

/// New keys beside a store of old ones would be a new, empty mesh in silence.
#[test]
fn a_mesh_that_lost_its_keys_is_refused_and_begun_anew_only_when_told_so() {
    let site = Site::up();
    site.run(&["agent", "add", "alice", "--read", "a"]).ok();
    site.run(&["down"]).ok();
    let (auth, kept) = (site.path("auth"), site.path("kept"));
    let lost = |path: &str| {
        let missing = site.path(path).display().to_string();
        let down = site.run(&["up", "--detach"]).ends(4).says(&missing);
        down.says("Restore").says("from a backup").says("--new-trust");
        assert!(!site.path(path).exists(), "it was made again: {path}");
        site.run(&["agent", "add", "bob", "--read", "a"]).ends(4).says("from a backup");
        let doctor = site.run(&["doctor"]).ends(1);
        assert!(doctor.out.contains("from a backup"), "{doctor:?}");
    };
    std::fs::rename(&auth, &kept).unwrap();
    lost("auth/operator.seed");
    let mesh = site.read("mesh.json");
    std::fs::remove_file(site.path("mesh.json")).unwrap();
    site.run(&["up", "--detach"]).ends(4).says("from a backup");
    std::fs::write(site.path("mesh.json"), mesh).unwrap();
    let _ = std::fs::remove_dir_all(&auth);
    std::fs::rename(&kept, &auth).unwrap();
    std::fs::rename(site.path("auth/main/account.json"), site.path("account.json")).unwrap();
    lost("auth/main/account.json");
    std::fs::rename(site.path("account.json"), site.path("auth/main/account.json")).unwrap();
    site.run(&["up", "--detach"]).ok();
    assert_eq!(site.json(&["agent", "list", "--json"]).as_array().unwrap().len(), 1);
    site.run(&["up", "--detach", "--new-trust"]).ends(8).says("leave --new-trust out");
    site.run(&["down"]).ok();
    std::fs::remove_dir_all(&auth).unwrap();
    site.run(&["up", "--detach", "--new-trust"]).ok();
    assert_eq!(site.json(&["agent", "list", "--json"]).as_array().unwrap().len(), 0);
    site.run(&["status"]).ok();
}
