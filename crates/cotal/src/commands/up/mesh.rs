//! The mesh that `up` completes.

use cotal_manager::BrokerAddress;
use cotal_workspace::{MeshFile, Root};

use crate::args::LogFormat;
use crate::context::{Context, tls_of};

/// A mesh whose broker answers.
pub struct Up<'a> {
    pub(super) ctx: &'a Context,
    pub(super) root: Root,
    pub(super) mesh: MeshFile,
    pub(super) address: BrokerAddress,
    pub(super) log_format: LogFormat,
    /// Whether hosts serve the spaces, so that no daemon of theirs is started.
    pub(super) hosted: bool,
}

impl<'a> Up<'a> {
    /// The spaces of `mesh`, as `ctx` completes them.
    pub fn new(ctx: &'a Context, root: Root, mesh: MeshFile) -> Self {
        let address = BrokerAddress { url: mesh.server.clone(), tls: tls_of(&mesh) };
        Self { ctx, root, mesh, address, log_format: ctx.log_format, hosted: false }
    }

    /// The broker.
    pub fn address(&self) -> &BrokerAddress {
        &self.address
    }
}
