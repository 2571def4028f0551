//! Two roots of one user with a space of the same name, and what a root's own files do not tell.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::foreground::Foreground;
use crate::site::{Site, free_lease, is_alive, signal, wait_until};

/// The root that the registry records for `main`.
fn recorded(site: &Site) -> Value {
    let text = std::fs::read_to_string(site.registry()).unwrap();
    let registry: Value = serde_json::from_str(&text).unwrap();
    registry["meshes"]["main"]["root"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn lif_9_what_died_is_restarted_although_another_root_has_recorded_the_space() {
    let site = Site::new();
    let up = Foreground::up(&site);
    up.says("it renews the daemon's credentials");
    let server = site.json(&["status", "--json"])["broker"]["server"].as_str().unwrap().to_owned();
    let other = site.beside("other");
    let take_over = || {
        other.run(&["up", "--detach", "--server-port", "0"]).ok();
        assert_eq!(recorded(&site), json!(other.root()));
    };

    take_over();
    let daemon = site.daemon();
    signal(daemon, Signal::STOP);
    free_lease(&site, &server).await;
    signal(daemon, Signal::KILL);
    up.says("delivery daemon running again");
    assert_eq!(recorded(&site), json!(site.root()));

    other.run(&["down"]).ok();
    take_over();
    let manager = site.pid("manager.main.pid");
    signal(manager, Signal::KILL);
    wait_until("another manager", || up.said().matches("it renews the daemon's").count() == 2);
    assert_eq!(recorded(&site), json!(site.root()));
}

#[test]
fn lif_13_deliver_and_manage_name_the_other_root_whose_broker_they_dial() {
    let site = Site::up();
    let other = site.beside("other");
    other.run(&["up", "--detach", "--server-port", "0"]).ok();
    for record in ["manager.main.pid", "delivery.main.pid"] {
        let pid = site.pid(record);
        signal(pid, Signal::TERM);
        wait_until("its end", || !is_alive(pid));
    }
    let named = format!("for another root, {}, so its broker", other.root().display());
    for (command, log) in [("deliver", "delivery.main.log"), ("manage", "manager.main.log")] {
        let run = site.run(&[command, "--space", "main"]);
        assert!(![0, 8].contains(&run.code), "{run:?}");
        run.says(&named);
        let log = site.read(log);
        let (warned, refused) = (log.find(&named).unwrap(), log.rfind("✗").unwrap());
        assert!(warned < refused, "it is said before anything is dialled: {log}");
    }
    let own = other.read("delivery.main.log") + &other.read("manager.main.log");
    assert!(!own.contains("another root"), "{own}");
}

#[test]
fn lif_10_down_stops_what_is_recorded_whatever_mesh_json_says() {
    let site = Site::up();
    site.run(&["space", "add", "other"]).ok();
    let mesh = site.path("mesh.json");
    let listed = std::fs::read_to_string(&mesh).unwrap();
    let mut shorter: Value = serde_json::from_str(&listed).unwrap();
    shorter["spaces"] = json!(["main"]);
    let damaged =
        "is not usable: it is not a JSON object; repair it, or run `cotal down`, move it away";
    for (text, said) in [
        (None, "broker stopped"),
        (Some("garbage".to_owned()), damaged),
        (Some(shorter.to_string()), ""),
    ] {
        let records = ["delivery.main.pid", "delivery.other.pid", "manager.main.pid"];
        let processes = records.map(|record| site.pid(record));
        let (manager, broker) = (site.pid("manager.other.pid"), site.broker());
        match &text {
            None => std::fs::remove_file(&mesh).unwrap(),
            Some(text) => std::fs::write(&mesh, text).unwrap(),
        }
        let down = site.run(&["down"]).ok().says(said);
        let down = down.says("space other: delivery daemon stopped");
        for pid in processes.into_iter().chain([manager, broker]) {
            assert!(!is_alive(pid), "{pid} was left running: {down:?}");
        }
        assert!(!site.path("other/delivery.creds").exists());
        let again = site.run(&["down"]).ok().says("broker was not running");
        assert!(!again.err.contains("space other"), "{again:?}");
        std::fs::write(&mesh, &listed).unwrap();
        site.run(&["up", "--detach"]).ok();
    }
}
