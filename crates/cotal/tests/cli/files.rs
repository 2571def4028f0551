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

/// Keys that another user planted would be trusted like one's own.
#[test]
fn a_root_that_another_user_owns_or_may_write_is_refused_and_named() {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
    const OTHER: u32 = 65534;
    let site = Site::up();
    site.run(&["down"]).ok();
    let refused = |path: &Path, why: &str| {
        for args in [&["up", "--detach"][..], &["status"], &["down"], &["agent", "list"]] {
            let run = site.run(args).ends(3);
            assert!(run.err.contains(path.to_str().unwrap()), "{run:?}");
            assert!(run.err.contains(why), "{run:?}");
        }
    };
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let (root, dot_dir, auth) = (site.root(), site.path(""), site.path("auth"));
    open(&root, 0o777);
    refused(&root, "may be written by other users");
    open(&root, 0o755);
    open(&auth, 0o702);
    refused(&auth, "may be written by other users");
    open(&auth, 0o700);
    let outside = site.beside("outside").root();
    let (kept, tls) = (site.path("resolver"), site.path("broker/resolver"));
    std::fs::rename(&tls, &kept).unwrap();
    symlink(&outside, &tls).unwrap();
    refused(&tls, "is a symbolic link");
    std::fs::remove_file(&tls).unwrap();
    std::fs::rename(&kept, &tls).unwrap();
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    let above = root.parent().unwrap();
    open(above, 0o777);
    refused(above, "may be written by other users");
    open(above, 0o700);
    if rustix::process::geteuid().is_root() {
        let dot_dir = dot_dir.components().collect::<std::path::PathBuf>();
        for foreign in [root.as_path(), &dot_dir, &auth] {
            chown(foreign, Some(OTHER), None).unwrap();
            refused(foreign, "belongs to user 65534");
            chown(foreign, Some(0), None).unwrap();
        }
        let seed = site.path("auth/operator.seed");
        chown(&seed, Some(OTHER), None).unwrap();
        site.run(&["up", "--detach"]).ends(3).says("operator.seed belongs to user 65534");
        chown(&seed, Some(0), None).unwrap();
    }
    site.run(&["up", "--detach"]).ok();
}

/// What is made again empty looks as if it had never held anything.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_space_lost_is_told_before_it_is_made_again_and_its_agents_get_their_consumers_back()
{
    let site = Site::new();
    let up = site.run(&["up", "--detach", "--server-port", "0"]).ok();
    assert!(!up.err.contains("is gone"), "a new space has lost nothing: {up:?}");
    site.run(&["agent", "add", "alice", "--read", "a", "--post", "a"]).ok();
    site.run(&["down"]).ok();
    let streams = std::fs::read_dir(site.path("broker/jetstream/jetstream")).unwrap();
    let store = streams
        .map(|account| account.unwrap().path().join("streams/DLV_main"))
        .find(|store| store.exists())
        .unwrap();
    std::fs::remove_dir_all(store).unwrap();
    let up = site.run(&["up", "--detach"]).ok();
    for told in [
        "DLV_main is gone, and with it for good posts that members had not read",
        "the consumer of local.alice on DLV_main was gone",
    ] {
        assert!(up.err.contains(told), "{told:?} is not in {up:?}");
    }
    let (told, made) = (up.err.find("DLV_main is gone"), up.err.find("created space main"));
    assert!(told.unwrap() < made.unwrap(), "{up:?}");
    let findings = site.json(&["doctor", "--json"]);
    let stores = findings.as_array().unwrap().iter().find(|f| f["check"] == "stores of main");
    assert_eq!(stores.unwrap()["verdict"], "ok");
    site.run(&["join", "a", "--as", "alice"]).ok();
    let again = site.run(&["up", "--detach"]).ok();
    assert!(!again.err.contains("gone"), "{again:?}");
}
