//! The broker's certificate, as the clients of the mesh judge it now.

use cotal_manager::launch::{certificate_ends, judge_certificate};
use cotal_workspace::{MeshFile, Root};
use serde::Serialize;

/// A certificate that stands on the root. The broker serves whatever it was given.
#[derive(Debug, Serialize)]
pub(in crate::commands) struct Certificate {
    /// Its last day, such as `2030-01-01`.
    pub(in crate::commands) ends: Option<String>,
    /// Why clients refuse it, and what to do.
    pub(in crate::commands) problem: Option<String>,
}

impl Certificate {
    /// Judges it; `None` for a mesh without TLS.
    pub(in crate::commands) fn of(root: &Root, mesh: &MeshFile) -> Option<Self> {
        let refused = |why| {
            format!(
                "{why}; `cotal down`, then `cotal up --tls-cert PEM --tls-key PEM` gives the broker \
                 another"
            )
        };
        mesh.tls.then(|| Self {
            ends: certificate_ends(root),
            problem: judge_certificate(root, mesh.ca.as_deref()).err().map(refused),
        })
    }

    /// What a person is told of it.
    pub(in crate::commands) fn told(&self) -> String {
        let ends = self.ends.as_deref().map_or(String::new(), |day| format!("ends on {day}"));
        match (&self.problem, ends.as_str()) {
            (Some(problem), "") => problem.clone(),
            (Some(problem), ends) => format!("{problem} ({ends})"),
            (None, "") => "clients accept it".to_owned(),
            (None, ends) => format!("clients accept it; it {ends}"),
        }
    }
}
