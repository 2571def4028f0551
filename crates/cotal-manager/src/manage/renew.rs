//! Renewal of what the daemon runs on: signed anew at half of its life, adopted at once, and what
//! became of it recorded per component.
//!
//! Half a life comes well before the 75 % at which the daemon re-reads its key by itself, so an
//! adoption that is refused or not answered is made up for there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cotal_rules::renewal::half_life;
use cotal_wire::Space;
use cotal_wire::control::{Adoption, Expected, ReloadArgs, Reloaded, op};
use cotal_wire::creds::Creds;
use cotal_workspace::files::{self, Privacy};
use cotal_workspace::{Root, SecretKey, SecretKind, SecretStore, Segment, StoreIdentity};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tracing::{info, warn};

use crate::authority::Authority;
use crate::clock::{unix_millis, unix_seconds};
use crate::credentials::renew_in;
use crate::error::ManagerError;
use crate::rail::Rail;

/// The longest sleep, so that a clock that was set is noticed.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Between two attempts at an adoption that did not come about.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// A pass is never due sooner, whatever the clocks say.
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);

/// The components whose credential the manager renews.
pub(crate) const OWNED: [SecretKind; 2] = [SecretKind::Delivery, SecretKind::MembershipRw];

/// What became of a credential that was offered to the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", content = "reason", rename_all = "kebab-case")]
pub enum RenewalOutcome {
    /// The broker accepted it on a proof connection, and the daemon holds it.
    Adopted,
    /// The component does not run, for this reason.
    Skipped(String),
    /// The daemon refused it.
    Refused(String),
    /// Nobody answered; the daemon reads its key again at 75 % of the lifetime.
    Unanswered(String),
}

/// The last offer of one component's credential.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Renewal {
    /// SHA-256 of the JWT that was offered.
    pub fingerprint: String,
    /// When, Unix milliseconds.
    pub at: i64,
    /// What became of it.
    pub outcome: RenewalOutcome,
}

/// The last offer of each component's credential, by the credential's name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Renewals(BTreeMap<String, Renewal>);

impl Renewals {
    /// What a root records of a space; what cannot be parsed is nothing.
    ///
    /// # Errors
    /// When the record exists and cannot be read.
    pub fn load(root: &Root, space: &Space) -> Result<Self, ManagerError> {
        let text = files::read(&root.renewals_file(&Segment::from(space)))?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default())
    }

    /// The last offer of a credential.
    #[must_use]
    pub fn of(&self, kind: &SecretKind) -> Option<&Renewal> {
        self.0.get(&kind.name())
    }

    /// Whether this very credential was adopted, or belongs to a component that does not run.
    #[must_use]
    pub fn is_settled(&self, kind: &SecretKind, creds: &Creds) -> bool {
        self.of(kind).is_some_and(|renewal| {
            renewal.fingerprint == creds.fingerprint()
                && matches!(renewal.outcome, RenewalOutcome::Adopted | RenewalOutcome::Skipped(_))
        })
    }
}

/// Renews for one space.
pub(crate) struct Renewer {
    authority: Arc<Authority>,
    store: Arc<dyn SecretStore>,
    rail: Rail,
    told: Option<String>,
}

impl std::fmt::Debug for Renewer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renewer").field("rail", &self.rail).finish_non_exhaustive()
    }
}

impl Renewer {
    pub(crate) fn new(authority: Arc<Authority>, store: Arc<dyn SecretStore>, rail: Rail) -> Self {
        Self { authority, store, rail, told: None }
    }

    pub(crate) fn space(&self) -> &Space {
        self.authority.space()
    }

    /// Renews what is past half of its life and has it adopted, under the lease of the one owner;
    /// tells how long nothing will be due.
    pub(super) async fn pass(&mut self, holds_lease: bool) -> Duration {
        if !holds_lease {
            return LONGEST_PAUSE;
        }
        match self.renew().await {
            Ok(wait) => {
                self.told = None;
                wait
            }
            Err(error) => {
                let why = error.to_string();
                if self.told.as_ref() != Some(&why) {
                    warn!(space = %self.space(), why, "the space's credentials are not renewed");
                    self.told = Some(why);
                }
                RETRY_AFTER
            }
        }
    }

    /// One pass.
    ///
    /// # Errors
    /// When the daemon reads another store, or something cannot be signed, read or written.
    pub(crate) async fn renew(&self) -> Result<Duration, ManagerError> {
        let answers = match self.challenge().await {
            Ok(()) => true,
            Err(error) if error.is_silence() => false,
            Err(error) => return Err(error),
        };
        let Some(renewed) = renew_in(&self.authority, &*self.store)? else {
            // Whoever stopped the daemon for good took its credential away.
            return Ok(RETRY_AFTER);
        };
        for renewed in renewed {
            let (space, kind, reason) = (self.space(), renewed.kind.name(), renewed.reason);
            info!(%space, kind, %reason, "a credential was signed anew");
        }
        let held = self.held()?;
        let mut renewals = Renewals::load(self.authority.root(), self.space())?;
        let settled = |renewals: &Renewals| held.iter().all(|(k, c)| renewals.is_settled(k, c));
        if !settled(&renewals) {
            self.offer(&held, &mut renewals, answers).await?;
        }
        let due = held
            .iter()
            .filter_map(|(_, creds)| half_life(creds.claims.issued_at, creds.claims.expires_at));
        let due = due.min().map_or(LONGEST_PAUSE, |half| {
            Duration::from_secs((half - unix_seconds()).max(0).unsigned_abs())
        });
        let longest = if settled(&renewals) { LONGEST_PAUSE } else { RETRY_AFTER };
        Ok(due.clamp(SHORTEST_PAUSE, longest))
    }

    /// Whether the daemon that answers reads this very store.
    async fn challenge(&self) -> Result<(), ManagerError> {
        let theirs = self.rail.admin(op::RELOAD_STORE_IDENTITY, json!({})).await?;
        let theirs: StoreIdentity = serde_json::from_value(theirs)?;
        same_store(self.space(), &self.store.identity(), &theirs)
    }

    /// What the store holds of the components.
    fn held(&self) -> Result<Vec<(SecretKind, Creds)>, ManagerError> {
        let mut held = Vec::new();
        for kind in OWNED {
            let key = SecretKey::new(self.space(), kind.clone());
            let secret = self.store.get(&key)?;
            if let Some(creds) = secret.and_then(|secret| Creds::parse(secret.expose()).ok()) {
                held.push((kind, creds));
            }
        }
        Ok(held)
    }

    /// Asks for the adoption and records what became of each.
    async fn offer(
        &self,
        held: &[(SecretKind, Creds)],
        renewals: &mut Renewals,
        answers: bool,
    ) -> Result<(), ManagerError> {
        let outcome = match answers {
            true => self.reload(held).await,
            false => {
                Err(RenewalOutcome::Unanswered("no daemon answers on ctl.delivery-admin".into()))
            }
        };
        for (kind, creds) in held {
            let outcome = match &outcome {
                Ok(reloaded) => judge(kind, creds, reloaded),
                Err(outcome) => outcome.clone(),
            };
            let fingerprint = creds.fingerprint();
            let before = renewals.of(kind);
            if before.is_some_and(|b| b.fingerprint == fingerprint && b.outcome == outcome) {
                continue;
            }
            let (space, name) = (self.space(), kind.name());
            match &outcome {
                RenewalOutcome::Adopted => {
                    info!(%space, name, fingerprint, "the credential is adopted");
                }
                other => info!(%space, name, fingerprint, outcome = ?other, "not adopted"),
            }
            renewals.0.insert(name, Renewal { fingerprint, at: unix_millis(), outcome });
        }
        let path = self.authority.root().renewals_file(&Segment::from(self.space()));
        let text = serde_json::to_string(renewals)?;
        Ok(files::replace(&path, text.as_bytes(), Privacy::Secret)?)
    }

    async fn reload(&self, held: &[(SecretKind, Creds)]) -> Result<Reloaded, RenewalOutcome> {
        let of = |wanted: &SecretKind| {
            held.iter().find(|(kind, _)| kind == wanted).map(|(_, creds)| creds.fingerprint())
        };
        let expected = Expected {
            delivery: of(&SecretKind::Delivery),
            membership: of(&SecretKind::MembershipRw),
        };
        let args = json!(ReloadArgs { expected: Some(expected) });
        match self.rail.admin(op::RELOAD_CREDS, args).await {
            Ok(data) => serde_json::from_value(data).map_err(|e| {
                RenewalOutcome::Refused(format!("the daemon's answer cannot be parsed: {e}"))
            }),
            Err(ManagerError::Refused { reason, .. }) => Err(RenewalOutcome::Refused(reason)),
            Err(error) => Err(RenewalOutcome::Unanswered(error.to_string())),
        }
    }
}

/// A manager of another store never renews.
pub(super) fn same_store(
    space: &Space,
    own: &StoreIdentity,
    theirs: &StoreIdentity,
) -> Result<(), ManagerError> {
    if own == theirs {
        return Ok(());
    }
    let shown = |identity: &StoreIdentity| match identity {
        StoreIdentity::Fs { root } => format!("the files of {}", root.display()),
        StoreIdentity::Injected { coordinate } => format!("the store {coordinate}"),
    };
    let (theirs, own) = (shown(theirs), shown(own));
    Err(ManagerError::OtherStore { space: space.clone(), theirs, own })
}

/// An adoption counts only when it names the credential that was offered.
fn judge(kind: &SecretKind, creds: &Creds, reloaded: &Reloaded) -> RenewalOutcome {
    let adoption = match kind {
        SecretKind::MembershipRw => &reloaded.membership,
        _ => &reloaded.delivery,
    };
    match adoption {
        Adoption::BrokerAccepted(accepted) if accepted.fingerprint == creds.fingerprint() => {
            RenewalOutcome::Adopted
        }
        Adoption::BrokerAccepted(_) => RenewalOutcome::Refused(
            "the daemon adopted another credential than the one offered".into(),
        ),
        Adoption::Skipped(why) => RenewalOutcome::Skipped(why.clone()),
    }
}
