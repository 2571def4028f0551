//! What `up` is to bring about: what was asked for, over what the root already is.

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

use cotal_broker::ListenPort;
use cotal_wire::Space;
use cotal_workspace::{Durability, MeshFile, Mode};

use super::args::{self, Args};
use crate::context::{DEFAULT_SERVER, DEFAULT_SPACE};
use crate::exit::{Exit, Failure};

/// As many meshes as one machine may have beside one another before somebody should choose.
const PORTS_TRIED: u16 = 100;

/// The mesh as it will be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) mode: Mode,
    pub(super) durability: Durability,
    pub(super) spaces: Vec<Space>,
    pub(super) port: ListenPort,
    /// Nobody chose the port, and no mesh was here that had it.
    is_default_port: bool,
    /// Whether every connection demands TLS (LIF-1).
    pub(super) tls: bool,
    /// The authority that signed the broker's certificate, when it is not the system's.
    pub(super) ca: Option<PathBuf>,
    /// What `mesh.json` said before, if there was one.
    pub(super) before: Option<MeshFile>,
}

impl Plan {
    /// Joins the command line and `mesh.json`; refuses what would silently turn one mesh into
    /// another.
    pub(super) fn new(args: &Args, before: Option<MeshFile>) -> anyhow::Result<Self> {
        let mode = if args.open { Mode::Open } else { Mode::Auth };
        let mode = match before.as_ref().map(|mesh| mesh.mode) {
            // A bare `up` completes whatever the root is.
            Some(Mode::Open) => Mode::Open,
            Some(Mode::Auth) if args.open => return Err(already_authenticated()),
            Some(Mode::Auth) | None => mode,
        };
        let durability = match (args.durability, &before) {
            (Some(args::Durability::Strict), _) => Durability::Strict,
            (Some(args::Durability::Default), _) | (None, None) => Durability::Default,
            (None, Some(mesh)) => mesh.durability,
        };
        let port = match args.server_port {
            Some(0) => ListenPort::Any,
            Some(port) => ListenPort::Fixed(port),
            None => port_of(before.as_ref().map_or(DEFAULT_SERVER, |mesh| &mesh.server))?,
        };
        let is_default_port = args.server_port.is_none() && before.is_none();
        let tls =
            args.tls || args.tls_cert.is_some() || before.as_ref().is_some_and(|mesh| mesh.tls);
        let ca = before.as_ref().and_then(|mesh| mesh.ca.clone());
        let spaces = spaces(args, before.as_ref())?;
        Ok(Self { mode, durability, spaces, port, is_default_port, tls, ca, before })
    }

    /// Takes the next port that is free where nobody chose one and the default is taken; tells it.
    /// From then on the mesh keeps it.
    pub(super) fn free_default_port(&mut self) -> anyhow::Result<Option<u16>> {
        let (true, ListenPort::Fixed(first)) = (self.is_default_port, self.port) else {
            return Ok(None);
        };
        let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
        let free = (first..=first.saturating_add(PORTS_TRIED)).find(is_free).ok_or_else(|| {
            let message = format!(
                "port {first} and the next {PORTS_TRIED} are taken: choose one with --server-port, \
                 0 takes any"
            );
            Failure::new(Exit::Conflict, message)
        })?;
        self.port = ListenPort::Fixed(free);
        Ok((free != first).then_some(free))
    }

    /// The content of `mesh.json` once the broker answers at `server`.
    pub(super) fn mesh(&self, server: &str) -> MeshFile {
        MeshFile {
            server: server.to_owned(),
            tls: self.tls,
            ca: self.ca.clone(),
            mode: self.mode,
            durability: self.durability,
            spaces: self.spaces.clone(),
        }
    }
}

fn spaces(args: &Args, before: Option<&MeshFile>) -> anyhow::Result<Vec<Space>> {
    let mut spaces = before.map(|mesh| mesh.spaces.clone()).unwrap_or_default();
    let wanted = match &args.space {
        None if !spaces.is_empty() => return Ok(spaces),
        None => Space::parse(DEFAULT_SPACE)?,
        Some(space) => space.clone(),
    };
    if !spaces.contains(&wanted) {
        spaces.push(wanted);
    }
    Ok(spaces)
}

fn port_of(server: &str) -> anyhow::Result<ListenPort> {
    let port = server.trim_end_matches('/').rsplit(':').next();
    let port = port.and_then(|text| text.parse().ok()).ok_or_else(|| {
        let message = format!("mesh.json names {server}, which has no port: give --server-port");
        Failure::new(Exit::Usage, message)
    })?;
    Ok(ListenPort::Fixed(port))
}

fn already_authenticated() -> anyhow::Error {
    let message = "this root is an authenticated mesh, and opening it would let anyone in: run \
                   `cotal up --open` in another directory";
    Failure::new(Exit::Conflict, message).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &[&str]) -> Args {
        use clap::Parser;
        let line = ["cotal", "up"].iter().chain(line).copied();
        match crate::cli::Cli::parse_from(line).command {
            crate::cli::Command::Up(args) => args,
            other => panic!("{other:?}"),
        }
    }

    fn mesh(server: &str, mode: Mode) -> MeshFile {
        MeshFile {
            server: server.to_owned(),
            tls: false,
            ca: None,
            mode,
            durability: Durability::Strict,
            spaces: vec![Space::parse("alpha").unwrap()],
        }
    }

    #[test]
    fn a_bare_second_up_asks_for_what_there_is() {
        let before = mesh("nats://127.0.0.1:4333", Mode::Auth);
        let plan = Plan::new(&args(&[]), Some(before.clone())).unwrap();
        assert_eq!(plan.port, ListenPort::Fixed(4333));
        assert_eq!(plan.mesh("nats://127.0.0.1:4333"), before);
        let open = mesh("nats://127.0.0.1:4333", Mode::Open);
        assert_eq!(Plan::new(&args(&[]), Some(open)).unwrap().mode, Mode::Open);
    }

    #[test]
    fn what_is_asked_for_is_added() {
        let before = mesh("nats://127.0.0.1:4333", Mode::Auth);
        let line = ["--space", "beta", "--durability", "default", "--server-port", "0"];
        let plan = Plan::new(&args(&line), Some(before)).unwrap();
        let names: Vec<_> = plan.spaces.iter().map(Space::as_str).collect();
        assert_eq!(names, ["alpha", "beta"]);
        assert_eq!((plan.durability, plan.port), (Durability::Default, ListenPort::Any));
        let fresh = Plan::new(&args(&[]), None).unwrap();
        assert_eq!((fresh.spaces[0].as_str(), fresh.port), ("main", ListenPort::Fixed(4222)));
    }

    #[test]
    fn lif_1_a_tls_mesh_stays_one() {
        let before = MeshFile { tls: true, ..mesh("nats://127.0.0.1:4333", Mode::Auth) };
        let plan = Plan::new(&args(&[]), Some(before.clone())).unwrap();
        assert_eq!(plan.mesh("nats://127.0.0.1:4333"), before);
        assert!(Plan::new(&args(&["--tls"]), None).unwrap().tls);
        assert!(!Plan::new(&args(&[]), None).unwrap().tls);
    }

    #[test]
    fn lif_14_an_authenticated_mesh_is_never_opened() {
        let before = mesh("nats://127.0.0.1:4333", Mode::Auth);
        let error = Plan::new(&args(&["--open"]), Some(before)).unwrap_err();
        assert_eq!(Exit::of(&error), Exit::Conflict);
    }
}
