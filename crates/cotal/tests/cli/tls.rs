//! A mesh that demands TLS.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use rustix::process::Signal;
use serde_json::json;

use crate::site::{Site, is_alive, signal, wait_until};

fn tls_up() -> (Site, String) {
    let site = Site::new();
    let up = site.run(&["up", "--tls", "--detach", "--server-port", "0"]).ok();
    let port = up.out.trim().rsplit_once(':').unwrap().1.to_owned();
    (site, port)
}

#[test]
fn lif_1_up_makes_a_certificate_and_every_launch_demands_tls() {
    let (site, _) = tls_up();
    site.run(&["status"]).ok();
    let mesh: serde_json::Value = serde_json::from_str(&site.read("mesh.json")).unwrap();
    assert_eq!(mesh["tls"], json!(true));
    assert!(site.read("broker/server.conf").contains("cert_file"));
    let made = site.read("broker/tls/cert.pem");
    // A relaunch, and a mesh that comes back, say nothing of TLS and inherit it.
    let daemon = site.daemon();
    signal(daemon, Signal::TERM);
    wait_until("the daemon's end", || !is_alive(daemon));
    site.run(&["up"]).ok().says("delivery daemon serving");
    site.run(&["down"]).ok();
    site.run(&["up", "--detach"]).ok().says("delivery daemon serving");
    assert!(site.read("broker/server.conf").contains("cert_file"));
    assert_eq!(site.read("broker/tls/cert.pem"), made);
    site.run(&["agent", "add", "alice", "--read", "a", "--post", "a"]).ok();
    site.run(&["post", "a", "hello", "--as", "alice"]).ok();
}

#[test]
fn lif_1_tls_is_not_added_under_a_running_broker() {
    let site = Site::up();
    site.run(&["up", "--detach", "--tls"]).ends(8).says("cotal down");
    site.run(&["down"]).ok();
    site.run(&["up", "--detach", "--tls"]).ok().says("delivery daemon serving");
}

#[test]
fn lif_1_a_plaintext_listener_on_the_same_port_is_refused_and_told_nothing() {
    let (site, port) = tls_up();
    let creds = site.read("main/delivery.creds");
    site.run(&["down"]).ok();
    std::fs::write(site.path("main/delivery.creds"), creds).unwrap();
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).unwrap();
    let liar = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let info = r#"{"server_id":"X","version":"2.15.1","max_payload":1048576,"headers":true,"proto":1}"#;
        client.write_all(format!("INFO {info}\r\n").as_bytes()).unwrap();
        // A handshake is no protocol line, so a plaintext broker hangs up.
        let mut said = vec![0; 4096];
        let read = client.read(&mut said).unwrap_or(0);
        said.truncate(read);
        said
    });
    let run = site.run(&["deliver", "--space", "main"]);
    assert!([5, 9].contains(&run.code), "{run:?}");
    let said = liar.join().unwrap();
    let said = String::from_utf8_lossy(&said);
    assert!(!said.contains("CONNECT"), "{said}");
}

#[test]
fn a_certificate_implies_tls_and_one_that_cannot_serve_is_refused_before_the_broker_starts() {
    let site = Site::new();
    let made = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        rcgen::generate_simple_self_signed(names).unwrap()
    };
    let (good, other) = (made(&["localhost", "127.0.0.1"]), made(&["broker.example"]));
    let write = |name: &str, text: &str| {
        let path = site.root().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let cert = write("cert.pem", &good.cert.pem());
    let key = write("key.pem", &good.signing_key.serialize_pem());
    let (foreign, foreign_key) = (
        write("other.pem", &other.cert.pem()),
        write("other-key.pem", &other.signing_key.serialize_pem()),
    );
    let up = |cert: &str, key: &str, ca: &str| {
        let port = ["up", "--detach", "--server-port", "0"];
        let tls = ["--tls-cert", cert, "--tls-key", key, "--tls-ca", ca];
        site.run(&[&port[..], &tls].concat())
    };
    for (cert, key, why) in [
        (&foreign, &foreign_key, "for 127.0.0.1"),
        (&cert, &foreign_key, "the key does not serve the certificate"),
    ] {
        up(cert, key, cert).ends(1).says("cannot serve").says(why);
        assert!(!site.path("broker/nats-server.pid").exists(), "a broker was started");
    }
    up(&cert, &key, &cert).ok().says("delivery daemon serving");
    assert!(site.read("broker/server.conf").contains("cert_file"));
    let findings = site.json(&["doctor", "--json"]);
    let findings = findings.as_array().unwrap();
    let shown = findings.iter().find(|finding| finding["check"] == "certificate").unwrap();
    assert_eq!(shown["verdict"], "ok");
    let ends = "clients accept it; it ends on 4096-01-01";
    assert_eq!(shown["detail"], ends);
    assert!(site.run(&["status"]).ok().out.contains(&format!("tls       {ends}")));
    // What stands is judged anew each time: it may have expired since.
    std::fs::write(site.path("broker/tls/cert.pem"), other.cert.pem()).unwrap();
    std::fs::write(site.path("broker/tls/key.pem"), other.signing_key.serialize_pem()).unwrap();
    let doctor = site.run(&["doctor"]).ends(1);
    assert!(doctor.out.contains("broken    certificate"), "{doctor:?}");
    let monitor = site.run(&["status", "--components"]).ends(2);
    assert!(monitor.out.contains("would refuse it for 127.0.0.1"), "{monitor:?}");
    site.run(&["status"]).ends(7);
}
