//! What a check of `doctor` found.

use serde::Serialize;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum CheckOutcome {
    Ok,
    Warning,
    Broken,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) check: String,
    pub(super) verdict: CheckOutcome,
    /// What was found, and what to do when it is not right.
    pub(super) detail: String,
}

impl Finding {
    pub(super) fn new(
        check: impl Into<String>,
        verdict: CheckOutcome,
        detail: impl Into<String>,
    ) -> Self {
        Self { check: check.into(), verdict, detail: detail.into() }
    }
}
